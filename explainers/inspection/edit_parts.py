"""The part of a tensor that an edit changes: channels, a region of the picture, or all of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seewhy.explainers.errors import EditError
from seewhy.explainers.hooks.gradient_tap import is_differentiable
from seewhy.explainers.layers.feature_maps import grid_axes


class MisfitError(Exception):
    """A field of an edit does not fit the tensor; `edit_errors` turns this into an `EditError`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@contextmanager
def edit_errors(path: str, index: int = 0) -> Iterator[None]:
    """Turn a `MisfitError` into an `EditError` that names the layer and the edit."""
    try:
        yield
    except MisfitError as error:
        raise EditError(f"At {path or 'the model'!r}: {error}", field=f"edits[{index}].{error.field}") from None


def sole_place(leaves: Sequence[Any], at: str, path: str, index: int = 0) -> int:
    """Return the place of the only tensor that can be edited among those of a layer.

    Args:
        leaves: the layer's arguments or outputs, or their gradients.
        at: which of them, as in `Edit`.
        path: path of the layer.
        index: index of the edit.

    Raises:
        EditError: there is none, or there are several.
    """
    places = [place for place, leaf in enumerate(leaves) if is_differentiable(leaf)]
    if len(places) != 1:
        raise EditError(
            f"The {at.removeprefix('grad_')} of {path!r} holds {len(places)} tensors that can be edited, where one is "
            "expected; choose a layer inside or around it.",
            field=f"edits[{index}].layer",
        )
    return places[0]


@dataclass(frozen=True)
class Part:
    """The part of a tensor that an edit changes.

    Attributes:
        mask: bool, broadcastable to the tensor: true where the edit applies.
        channel: the axis of channels; None if the tensor has none.
        spatial: the axes of positions.
        swapped: the tensor of the other picture, for `swap`.
    """

    mask: Tensor
    channel: int | None
    spatial: tuple[int, ...]
    swapped: Tensor | None = field(default=None, repr=False)


def part_of(
    values: Tensor,
    image_size: tuple[int, int],
    channels: Sequence[int] | None,
    region: tuple[int, int, int, int] | None,
    is_parameter: bool = False,
    swapped: Tensor | None = None,
) -> Part:
    """Return the part of a layer's tensor that channels and a region select.

    Channels are the second axis of (N, C, h, w) and of (N, C), and the last of tokens (N, L, C) and of (N, h, w, C),
    which the picture's proportions reveal.

    Args:
        values: batch axis first; of a parameter's gradient, a batch of one.
        image_size: (H, W) of the model's input.
        channels, region: see `Edit`.
        is_parameter: whether it is a parameter's gradient.
        swapped: the tensor of the other picture, for `swap`.

    Raises:
        MisfitError: channels or a region that the tensor lacks.
    """
    channel, spatial = _axes(tuple(values.shape), image_size, is_parameter)
    mask = torch.ones([1] * values.ndim, dtype=torch.bool, device=values.device)
    if channels is not None:
        if channel is None:
            raise MisfitError("channels", f"A tensor of shape {tuple(values.shape)} has no known axis of channels.")
        count = values.shape[channel]
        if max(channels) >= count:
            raise MisfitError("channels", f"Channel {max(channels)} is out of range: there are 0 to {count - 1}.")
        mask = mask & _along(channels, channel, values)
    if region is not None:
        if len(spatial) != 2:
            raise MisfitError("region", f"A tensor of shape {tuple(values.shape)} is not a feature map; omit region.")
        rows, columns = (values.shape[axis] for axis in spatial)
        top, left, bottom, right = region
        if not (top < bottom <= rows and left < right <= columns):
            raise MisfitError(
                "region",
                f"The region {list(region)} (top, left, bottom, right) is empty or outside of the "
                f"{rows}x{columns} cells.",
            )
        mask = mask & _along(range(top, bottom), spatial[0], values) & _along(range(left, right), spatial[1], values)
    return Part(mask, channel, spatial, swapped)


def _axes(shape: tuple[int, ...], image_size: tuple[int, int], parameter: bool) -> tuple[int | None, tuple[int, ...]]:
    """Return the axis of channels and those of positions."""
    if parameter:
        return (1 if len(shape) > 1 else None), ()
    if len(shape) == 4:
        channel, rows, columns = grid_axes(shape, image_size) or (1, 2, 3)
        return channel, (rows, columns)
    if len(shape) == 3:
        return 2, (1,)
    return (1 if len(shape) == 2 else None), ()


def _along(indices: Any, axis: int, values: Tensor) -> Tensor:
    selection = torch.zeros(values.shape[axis], dtype=torch.bool, device=values.device)
    selection[torch.tensor(list(indices), device=values.device)] = True
    return selection.reshape([-1 if other == axis else 1 for other in range(values.ndim)])
