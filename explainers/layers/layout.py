"""Layouts: which axes of a tensor count rows or columns of the picture, how far apart these are, and where they start.

A layout is arithmetic on shapes, without values. An axis of a tensor is a product of *factors*, the outermost first:
the tokens of a transformer, for instance, are rows times columns, and the batch axis of windowed attention is pictures
times rows of windows times columns of windows. So the meaning of its axes, not their length, tells a feature map from
queries, attention and windows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ROWS, COLUMNS = 0, 1


class Factor(NamedTuple):
    """A part of an axis.

    Attributes:
        along: `ROWS` or `COLUMNS` of the picture; None for anything else, such as channels.
        size: number of positions.
        step: pixels from one position to the next.
    """

    along: int | None
    size: int
    step: float

    def spread(self, size: int, ratio: float = 1.0) -> "Axis":
        """Return an axis along the same side of the picture, of other positions that are `ratio` as far apart."""
        return Axis((Factor(self.along, size, self.step * ratio),))


class Axis(NamedTuple):
    """An axis of a tensor.

    Attributes:
        factors: the outermost first.
        before, after: positions in front of and behind these that lie outside the picture, such as class tokens.
    """

    factors: tuple[Factor, ...]
    before: int = 0
    after: int = 0

    @property
    def size(self) -> int:
        """Number of positions."""
        return self.before + math.prod(factor.size for factor in self.factors) + self.after

    @property
    def spatial(self) -> bool:
        """Whether any factor lies along the picture."""
        return any(factor.along is not None for factor in self.factors)

    @property
    def of_picture(self) -> bool:
        """Whether it counts positions in the picture, and nothing else."""
        return all(factor.along is not None for factor in self.factors)

    def is_beside(self, first: int, count: int) -> bool:
        """Whether `count` positions, from `first` on, all lie outside the picture whose positions this axis counts."""
        return self.spatial and (first + count <= self.before or first >= self.size - self.after)

    @property
    def line(self) -> Factor | None:
        """The factor of the rows or the columns of the picture, if the axis is nothing else; None otherwise."""
        first, *inner = self.factors
        return None if first.along is None or inner or self.before or self.after else first


class Grid(NamedTuple):
    """A feature map in the picture.

    Attributes:
        axes: axes of channels, rows and columns.
        start: the middle of the first cell's receptive field in pixels, (down, across).
        step: pixels from one cell to the next, (down, across).
        field: height and width of a cell's receptive field in pixels; infinite after attention.
        exact: whether start and step follow from convolutions and poolings, and not from a guess about a resize.
    """

    axes: tuple[int, int, int]
    start: tuple[float, float]
    step: tuple[float, float]
    field: tuple[float, float]
    exact: bool

    def reach(self, along: int, cells: int, pixels: int) -> tuple[float, float]:
        """Return where the cells of an axis begin and end, as fractions of the picture.

        Padded convolutions lay cells from edge to edge, up to half a cell: then these are 0 and 1. If more than a cell
        is missing or too much at an end, as without padding, each cell surrounds the middle of its receptive field.

        Args:
            along: `ROWS` or `COLUMNS`.
            cells: number of cells.
            pixels: height or width of the picture.
        """
        step = self.step[along]
        start = self.start[along] - step / 2
        stop = start + cells * step
        if not self.exact or not step or max(abs(start), abs(pixels - stop)) <= step:
            return 0.0, 1.0
        return start / pixels, stop / pixels


@dataclass(frozen=True)
class TokenGrid:
    """The tokens of a transformer, as a grid over the picture.

    Attributes:
        rows, columns: number of rows and columns of the tokens that lie in the picture, row after row.
        before, after: tokens in front of and behind these, which lie outside: class, distillation and register tokens.
    """

    rows: int
    columns: int
    before: int = 0
    after: int = 0

    @property
    def cells(self) -> int:
        """Number of tokens that lie in the picture."""
        return self.rows * self.columns

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.before + self.cells + self.after


class Layout(NamedTuple):
    """Where a tensor lies in the picture.

    Attributes:
        axes: axes of the tensor.
        start: the middle of the first position's receptive field in pixels, (down, across).
        field: height and width of a position's receptive field in pixels.
        exact: whether start and steps are known, and not guessed for a resize.
    """

    axes: tuple[Axis, ...]
    start: tuple[float, float]
    field: tuple[float, float]
    exact: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(axis.size for axis in self.axes)

    @property
    def spatial(self) -> bool:
        """Whether any axis lies along the picture."""
        return any(axis.spatial for axis in self.axes)

    @property
    def extended(self) -> bool:
        """Whether it has more than one position in the picture."""
        return any(factor.along is not None and factor.size > 1 for axis in self.axes for factor in axis.factors)

    @property
    def grid(self) -> Grid | None:
        """The tensor as a feature map, with the axes N, C, h and w in any order; None for other tensors.

        Rows and columns have an axis each, and the batch axis holds no part of the picture.
        """
        if len(self.axes) != 4 or self.axes[0].spatial:
            return None
        places: dict[int, int] = {}
        for index, axis in enumerate(self.axes[1:], 1):
            if axis.line is not None and axis.line.along is not None:
                places.setdefault(axis.line.along, index)
        if not places:
            return None
        if len(places) == 1:  # a reshape of a map of one row or column loses the axis of length 1: take the neighbour
            ((along, place),) = places.items()
            beside = place - 1 if along == COLUMNS else place + 1
            if not 1 <= beside <= 3 or self.axes[beside].size != 1:
                return None
            places[1 - along] = beside
        rows, columns = places[ROWS], places[COLUMNS]
        if any(axis.before or axis.after for axis in self.axes):
            return None
        step = self.axes[rows].factors[0].step, self.axes[columns].factors[0].step
        return Grid((6 - rows - columns, rows, columns), self.start, step, self.field, self.exact)

    @property
    def tokens(self) -> TokenGrid | None:
        """The tokens of a tensor (N, T, C); None for other tensors, and where tokens follow another order."""
        if len(self.axes) != 3 or self.axes[0].spatial or self.axes[2].spatial:
            return None
        factors, before, after = self.axes[1]
        sizes = {factor.along: factor.size for factor in factors}
        if [factor.along for factor in factors] not in ([ROWS, COLUMNS], [ROWS], [COLUMNS]):
            return None
        return TokenGrid(sizes.get(ROWS, 1), sizes.get(COLUMNS, 1), before, after)

    def shift(self, along: int | None, start: float = 0.0, field: float = 0.0) -> "Layout":
        """Return the layout with its first position moved by `start` pixels, and its fields larger by `field`.

        Along None, outside the picture, there is nothing to move.
        """
        if along is None:
            return self
        starts, fields = list(self.start), list(self.field)
        starts[along] += start
        fields[along] += field
        return self._replace(start=(starts[0], starts[1]), field=(fields[0], fields[1]))

    def with_axes(self, axes: Sequence[Axis]) -> "Layout":
        """Return the layout with other axes."""
        return self._replace(axes=tuple(axes))

    def with_axis(self, index: int, axis: Axis) -> "Layout":
        """Return the layout with one axis replaced."""
        axes = list(self.axes)
        axes[index] = axis
        return self.with_axes(axes)


def plain(size: int) -> Axis:
    """Return an axis outside the picture."""
    return Axis((Factor(None, size, 0.0),))


def of_pictures(shape: Sequence[int]) -> Layout:
    """Return the layout of pictures (N, C, H, W)."""
    count, channels, height, width = shape
    rows, columns = Axis((Factor(ROWS, height, 1.0),)), Axis((Factor(COLUMNS, width, 1.0),))
    return Layout((plain(count), plain(channels), rows, columns), (0.5, 0.5), (1.0, 1.0))


def reshaped(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the layout after a reshape, which keeps the order of elements; None where it cuts an axis unevenly."""
    if layout.shape == tuple(shape):
        return layout
    factors: list[Factor | Axis] = []
    for axis in layout.axes:
        if axis.before or axis.after:
            factors.append(axis)
        else:
            factors += [factor for factor in axis.factors if factor.size > 1]
    factors.reverse()
    axes = []
    # Each new axis takes factors, outermost first, until their product is its size; the last may be cut in two.
    for size in shape:
        parts: list[Factor | Axis] = []
        rest = size
        while rest > 1:
            if not factors:
                return None
            part = factors.pop()
            if rest % part.size == 0:
                parts.append(part)
                rest //= part.size
                continue
            if isinstance(part, Axis):
                return None
            if part.size % rest:
                # Adjacent factors outside the picture may be merged and cut anew, as channels times heads.
                if part.along is None and factors and isinstance(factors[-1], Factor) and factors[-1].along is None:
                    factors.append(Factor(None, part.size * factors.pop().size, 0.0))
                    continue
                return None
            inner = part.size // rest
            parts.append(Factor(part.along, rest, part.step * inner))
            factors.append(Factor(part.along, inner, part.step))
            rest = 1
        axes.append(_joined(parts, size))
    return layout.with_axes(axes)


def _joined(parts: Sequence[Factor | Axis], size: int) -> Axis:
    """Return one axis of several parts; contiguous neighbours become one factor."""
    if len(parts) == 1 and isinstance(parts[0], Axis):
        return parts[0]
    factors: list[Factor] = []
    for part in parts:
        if isinstance(part, Axis):
            return plain(size)
        last = factors[-1] if factors else None
        if last and last.along == part.along and math.isclose(last.step, part.step * part.size):
            factors[-1] = Factor(part.along, last.size * part.size, part.step)
        else:
            factors.append(part)
    return Axis(tuple(factors)) if factors else plain(size)


def resized(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the layout after a resize or pooling, which changes sizes of axes and keeps their order.

    An axis of another size counts as scaled from edge to edge.
    """
    if len(shape) != len(layout.axes):
        return None
    for index, (axis, size) in enumerate(zip(layout.axes, shape, strict=True)):
        if axis.size == size:
            continue
        line = axis.line
        if line is None or size == 0:
            layout = layout.with_axis(index, plain(size))
            continue
        step = line.step * line.size / size
        layout = layout.with_axis(index, Axis((line._replace(size=size, step=step),)))
        layout = layout.shift(line.along, (step - line.step) / 2, step)._replace(exact=False)
    return layout


def broadcast(layouts: Sequence[Layout], shape: Sequence[int]) -> Layout | None:
    """Return the layout of an elementwise result: each axis is that of the first tensor that has it."""
    usable = [layout for layout in layouts if len(layout.axes) <= len(shape)]
    if not usable:
        return None
    axes, base = [], None
    for behind, size in zip(range(len(shape), 0, -1), shape, strict=True):
        axis = plain(size)
        for layout in usable:
            candidate = layout.axes[-behind] if behind <= len(layout.axes) else axis
            if candidate.size == size and candidate.spatial:
                axis, base = candidate, base or layout
                break
        axes.append(axis)
    field = (max(layout.field[0] for layout in usable), max(layout.field[1] for layout in usable))
    base = base or usable[0]
    return Layout(tuple(axes), base.start, field, base.exact)


def windowed(
    layout: Layout,
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Layout:
    """Return the layout after windows slide over the last axes, each window giving one position.

    Args:
        layout: layout of the input.
        shape: shape of the result.
        kernel, stride, padding, dilation: one number for each of these axes.
    """
    for back, size in enumerate(kernel, -len(kernel)):
        axis, positions = layout.axes[back], shape[back]
        reach = dilation[back] * (size - 1)
        if (line := axis.line) is not None:
            # The first window's middle lies half its reach behind its start, which padding moves before the picture.
            layout = layout.shift(line.along, (reach / 2 - padding[back]) * line.step, reach * line.step)
            axis = line.spread(positions, stride[back])
        elif axis.size != positions:
            axis = plain(positions)
        layout = layout.with_axis(back % len(shape), axis)
    return layout


def contracted(layout: Layout, axis: Axis) -> Layout:
    """Return the layout after a sum over another axis: along it every position now sees the whole picture."""
    for factor in axis.factors:
        layout = layout.shift(factor.along, field=math.inf)
    return layout
