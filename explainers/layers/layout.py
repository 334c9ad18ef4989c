"""Where the axes of a tensor lie in the picture: which count its rows or columns, how far apart, and from where.

A layout is arithmetic on shapes, without numbers. An axis of a tensor is a product of *factors*, the outermost first:
the tokens of a transformer, for instance, are rows times columns, and the batch axis of windowed attention is
pictures times rows of windows times columns of windows. So a feature map is told from queries, attention and windows
by what its axes are, not by how long they happen to be.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

ROWS, COLUMNS = 0, 1


class Factor(NamedTuple):
    """A part of an axis.

    Attributes:
        along: `ROWS` or `COLUMNS` of the picture; None for anything else, such as channels.
        size: how many positions.
        step: pixels from one to the next.
    """

    along: int | None
    size: int
    step: float


class Axis(NamedTuple):
    """An axis of a tensor.

    Attributes:
        factors: the outermost first.
        before, after: positions in front of and behind these that lie nowhere in the picture, such as class tokens.
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
        """Whether any of it lies along the picture."""
        return any(factor.along is not None for factor in self.factors)

    @property
    def single(self) -> Factor | None:
        """The rows or the columns that this axis is, and nothing else; None if it is no such axis."""
        if len(self.factors) == 1 and self.before == self.after == 0 and self.factors[0].along is not None:
            return self.factors[0]
        return None


class Grid(NamedTuple):
    """A feature map in the picture.

    Attributes:
        axes: of channels, rows and columns.
        start: the middle of the first cell's receptive field in pixels, (down, across).
        step: pixels from one cell to the next, (down, across).
        field: height and width of a cell's receptive field in pixels; infinite where attention is behind it.
        exact: whether start and step are those of convolutions and poolings, not what a resize was taken for.
    """

    axes: tuple[int, int, int]
    start: tuple[float, float]
    step: tuple[float, float]
    field: tuple[float, float]
    exact: bool

    def reach(self, along: int, cells: int, pixels: int) -> tuple[float, float]:
        """Return where the cells of an axis begin and end, as fractions of the picture.

        From edge to edge, as padded convolutions lay them up to half a cell, unless more than a cell is missing or
        too much at an end, as without padding: then each cell lies about the middle of its receptive field.

        Args:
            along: `ROWS` or `COLUMNS`.
            cells: how many.
            pixels: of the picture.
        """
        step = self.step[along]
        start = self.start[along] - step / 2
        stop = start + cells * step
        if not self.exact or not step or max(abs(start), abs(pixels - stop)) <= step:
            return 0.0, 1.0
        return start / pixels, stop / pixels


class Layout(NamedTuple):
    """Where a tensor lies in the picture.

    Attributes:
        axes: of the tensor.
        start: the middle of the first position's receptive field in pixels, (down, across).
        field: height and width of a position's receptive field in pixels.
        exact: whether start and steps are known, not taken for those of a resize.
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
        """The feature map that a tensor (N, C, h, w), or with its axes in another order, is; None for other tensors.

        Rows and columns have an axis each, and nothing of the picture is among the batch.
        """
        if len(self.axes) != 4 or self.axes[0].spatial:
            return None
        places: dict[int, int] = {}
        for index, axis in enumerate(self.axes[1:], 1):
            if axis.single is not None and axis.single.along is not None:
                places.setdefault(axis.single.along, index)
        if not places:
            return None
        if len(places) == 1:  # of a single row or column, a reshaping loses which axis it was
            ((along, place),) = places.items()
            beside = place - 1 if along == COLUMNS else place + 1
            if not 1 <= beside <= 3 or self.axes[beside].size != 1:
                return None
            places[1 - along] = beside
        rows, columns = places[ROWS], places[COLUMNS]
        if any(axis.before or axis.after for axis in self.axes):
            return None
        (step_down, step_across) = (self.axes[index].factors[:1] for index in (rows, columns))
        step = (step_down[0].step if step_down else 0.0, step_across[0].step if step_across else 0.0)
        return Grid((6 - rows - columns, rows, columns), self.start, step, self.field, self.exact)

    def moved(self, along: int, start: float = 0.0, field: float = 0.0) -> "Layout":
        """Return the layout with its first position further on by `start`, and receptive fields larger by `field`."""
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
    """Return an axis that has no place in the picture."""
    return Axis((Factor(None, size, 0.0),))


def of_pictures(shape: Sequence[int]) -> Layout:
    """Return the layout of pictures (N, C, H, W)."""
    count, channels, height, width = shape
    rows, columns = Axis((Factor(ROWS, height, 1.0),)), Axis((Factor(COLUMNS, width, 1.0),))
    return Layout((plain(count), plain(channels), rows, columns), (0.5, 0.5), (1.0, 1.0))


def reshaped(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the layout of a view of another shape, elements in the same order; None where axes are cut unevenly."""
    if layout.shape == tuple(shape):
        return layout
    waiting: list[Factor | Axis] = []
    for axis in layout.axes:
        if axis.before or axis.after:
            waiting.append(axis)
        else:
            waiting += [factor for factor in axis.factors if factor.size > 1]
    waiting.reverse()
    axes = []
    for size in shape:
        parts: list[Factor | Axis] = []
        rest = size
        while rest > 1:
            if not waiting:
                return None
            part = waiting.pop()
            if rest % part.size == 0:
                parts.append(part)
                rest //= part.size
                continue
            if isinstance(part, Axis):
                return None
            if part.size % rest:
                # Channels that are cut unevenly may be next to more channels.
                if part.along is None and waiting and isinstance(waiting[-1], Factor) and waiting[-1].along is None:
                    waiting.append(Factor(None, part.size * waiting.pop().size, 0.0))
                    continue
                return None
            inner = part.size // rest
            parts.append(Factor(part.along, rest, part.step * inner))
            waiting.append(Factor(part.along, inner, part.step))
            rest = 1
        axes.append(_joined(parts, size))
    return layout.with_axes(axes)


def _joined(parts: Sequence[Factor | Axis], size: int) -> Axis:
    """Return one axis of several parts; neighbours that go on from each other become one factor."""
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
    """Return the layout after an operation that may change the sizes of axes, not their order: a resize, or pooling.

    Each axis that changes is taken to be scaled from edge to edge.
    """
    if len(shape) != len(layout.axes):
        return None
    for index, (axis, size) in enumerate(zip(layout.axes, shape, strict=True)):
        if axis.size == size:
            continue
        single = axis.single
        if single is None or single.along is None or size == 0:
            layout = layout.with_axis(index, plain(size))
            continue
        step = single.step * single.size / size
        layout = layout.with_axis(index, Axis((Factor(single.along, size, step),)))
        layout = layout.moved(single.along, (step - single.step) / 2, step)._replace(exact=False)
    return layout


def broadcast(layouts: Sequence[Layout], shape: Sequence[int]) -> Layout | None:
    """Return the layout of what is computed elementwise: each axis is that of the first tensor that has it."""
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
    """Return the layout after windows slid over the last axes, of which each gave one position.

    Args:
        layout: before.
        shape: of the result.
        kernel, stride, padding, dilation: one number per axis that the windows slide over.
    """
    for back, size in enumerate(kernel, -len(kernel)):
        axis, positions = layout.axes[back], shape[back]
        reach = dilation[back] * (size - 1)
        single = axis.single
        if single is not None and single.along is not None:
            layout = layout.moved(single.along, (reach / 2 - padding[back]) * single.step, reach * single.step)
            axis = Axis((Factor(single.along, positions, single.step * stride[back]),))
        elif axis.size != positions:
            axis = plain(positions)
        layout = layout.with_axis(back % len(shape), axis)
    return layout


def contracted(layout: Layout, axis: Axis) -> Layout:
    """Return the layout after a sum over another axis, along which every position now sees everything."""
    for factor in axis.factors:
        if factor.along is not None:
            layout = layout.moved(factor.along, field=math.inf)
    return layout


def grid_axes(shape: tuple[int, ...], image_size: tuple[int, int]) -> tuple[int, int, int] | None:
    """Return the axes of channels, rows and columns in a feature map by its shape alone; None if it has none.

    For tensors that no survey knows: gradients, arguments, outputs of bare modules. A grid here has the picture's
    proportions, up to a cell of rounding. A map is channels-first, as PyTorch's convolutions make it, unless only the
    channels-last reading has them, with more channels than cells to a side (Swin Transformers keep (N, H, W, C) between
    their blocks).

    Args:
        shape: of the feature map, batch axis first.
        image_size: (H, W) of the input.
    """
    if len(shape) != 4:
        return None
    _, first, second, third = shape
    if _proportional((second, third), image_size):
        return (1, 2, 3)
    if _proportional((first, second), image_size) and third > max(first, second):
        return (3, 1, 2)
    return None


def _proportional(grid: tuple[int, int], image_size: tuple[int, int]) -> bool:
    rows, columns = grid
    height, width = image_size
    if rows > height or columns > width:
        return False
    # Strides round each side by itself, so only a square picture has an exactly square grid.
    return rows == columns if height == width else abs(columns - rows * width / height) <= max(1.0, width / height)
