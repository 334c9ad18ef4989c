"""The part of a tensor that an edit means: channels, a region of the picture, or all of it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhy.explainers.layers.layout import grid_axes

if TYPE_CHECKING:
    from seewhy.explainers.inspection.edits import Edit


class MisfitError(Exception):
    """A field of an edit that does not fit the tensor; whoever knows the edit's index makes it an `EditError`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Part:
    """The part of a tensor that an edit changes.

    Attributes:
        mask: bool, broadcastable to the tensor: what is changed.
        channel: the axis of channels; None where the tensor has none.
        spatial: the axes of positions.
        swapped: the tensor of the other picture, for `swap`.
    """

    mask: Tensor
    channel: int | None
    spatial: tuple[int, ...]
    swapped: Tensor | None = field(default=None, repr=False)


def part_of(edit: "Edit", values: Tensor, image_size: tuple[int, int], swapped: Tensor | None = None) -> Part:
    """Return the part of a layer's tensor that an edit means.

    Channels are the second axis of (N, C, h, w) and of (N, C), the last of (N, h, w, C) (told by the
    picture's proportions) and of tokens (N, L, C).

    Args:
        edit: see `Edit`.
        values: batch axis first; of a parameter's gradient, a batch of one.
        image_size: (H, W) of the model's input.
        swapped: what `swap` takes.

    Raises:
        MisfitError: channels or a region that the tensor does not have.
    """
    channel, spatial = _axes(tuple(values.shape), image_size, edit.at == "parameter_grad")
    mask = torch.ones([1] * values.ndim, dtype=torch.bool, device=values.device)
    if edit.channels is not None:
        if channel is None:
            raise MisfitError("channels", f"A tensor of shape {tuple(values.shape)} has no known axis of channels.")
        count = values.shape[channel]
        if max(edit.channels) >= count:
            raise MisfitError("channels", f"Channel {max(edit.channels)} is out of range: there are 0 to {count - 1}.")
        mask = mask & _along(edit.channels, channel, values)
    if edit.region is not None:
        if len(spatial) != 2:
            raise MisfitError("region", f"A tensor of shape {tuple(values.shape)} is no feature map; leave region out.")
        rows, columns = (values.shape[axis] for axis in spatial)
        top, left, bottom, right = edit.region
        if not (top < bottom <= rows and left < right <= columns):
            raise MisfitError(
                "region",
                f"The region {list(edit.region)} (top, left, bottom, right) is empty or outside of the "
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
    chosen = torch.zeros(values.shape[axis], dtype=torch.bool, device=values.device)
    chosen[torch.tensor(list(indices), device=values.device)] = True
    return chosen.reshape([-1 if other == axis else 1 for other in range(values.ndim)])
