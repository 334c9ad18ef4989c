"""Regions of a picture over which a segmenter's logits are averaged: predicted ones, islands, borders, masks."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.errors import MaskError, TargetError
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.tasks.choices import Part

Mask = NDArray[np.bool_]

_MOST = 8192
"""Largest side of a mask, in pixels, of which all pixels count; of larger masks every second one does, and so on."""


@dataclass(frozen=True, eq=False)
class Region:
    """The target of a segmenter in one picture: a class, a region, and the part over which its logits are averaged.

    The region is a mask, the connected one at a pixel, or the part of the picture that the model gives the class.

    Attributes:
        label: class index; None for the class that the model gives the pixel, most of the mask, or most of the picture.
        part: part of the region.
        pixel: x and y in pixels of the picture, or, once placed, as fractions of the model's input: the region is the
            connected one there.
        mask: (h, w), the region, over the picture, or, once placed, over the model's input.
        name: as users name it.
    """

    label: int | None
    part: Part = "region"
    pixel: tuple[float, float] | None = None
    mask: Mask | None = None
    name: int | str = ""

    @property
    def is_plural(self) -> bool:
        """False: the target is one region."""
        return False

    def placed(self, geometry: Geometry) -> Self:
        """Return the target with its pixel and mask in the model's input."""
        left, top, right, bottom = geometry.box
        if self.pixel is not None:
            x, y = ((self.pixel[0] + 0.5 - left) / (right - left), (self.pixel[1] + 0.5 - top) / (bottom - top))
            if not (0 <= x < 1 and 0 <= y < 1 and self.pixel[0] < geometry.width and self.pixel[1] < geometry.height):
                raise TargetError(
                    f"{self.name} lies outside of what the model sees: x from {max(left, 0):.0f} to "
                    f"{min(right, geometry.width) - 1:.0f} and y from {max(top, 0):.0f} to "
                    f"{min(bottom, geometry.height) - 1:.0f} of this picture."
                )
            return replace(self, pixel=(x, y))
        if self.mask is not None:
            return replace(self, mask=_visible_part(self.mask, geometry))
        return self

    def mirrored(self) -> Self:
        """Return the target of the mirrored picture."""
        pixel = None if self.pixel is None else (1 - self.pixel[0], self.pixel[1])
        return replace(self, pixel=pixel, mask=None if self.mask is None else self.mask[:, ::-1].copy())


def share_outside(
    region: Region, values: NDArray[np.float32], reach: tuple[float, float, float, float]
) -> float | None:
    """Return the share of a map's magnitude outside a region with a mask; None for a map that is zero everywhere.

    Args:
        region: in the model's input.
        values: (h, w), the map.
        reach: reach of its cells, see `Geometry`.
    """
    if region.mask is None:
        return None
    height, width = region.mask.shape
    sizes = np.abs(Geometry(width, height, (0.0, 0.0, float(width), float(height)), reach).lay_back(values))
    total = float(sizes.sum(dtype=np.float64))
    return float(sizes[~region.mask].sum(dtype=np.float64)) / total if total else None


def checked(mask: NDArray[Any]) -> Mask:
    """Return a mask (H, W).

    Raises:
        MaskError: the mask is empty, or not a mask.
    """
    if mask.ndim != 2 or mask.dtype != np.bool_:
        raise MaskError(
            f"A mask must be a bool array (H, W), true in the region; this one has shape {mask.shape}, {mask.dtype}."
        )
    if not mask.any():
        raise MaskError("The mask is empty: no pixel is true or above zero; mark the region.")
    return mask


def resized(mask: Mask, like: Tensor) -> Tensor:
    """Return a mask over the model's input on the positions (H, W) of its outputs, at least one of them true."""
    whole = torch.from_numpy(mask)[None, None].to(like.device, torch.float32)
    share = functional.interpolate(whole, size=like.shape, mode="area")[0, 0]
    return share >= min(0.5, float(share.max()))


def island(pixel: tuple[float, float], predicted: Tensor) -> tuple[int, Tensor]:
    """Return the class at a pixel, given as fractions of the input, and its connected region (H, W) there."""
    from skimage.measure import label  # slow to import

    height, width = predicted.shape
    row, column = min(int(pixel[1] * height), height - 1), min(int(pixel[0] * width), width - 1)
    index = int(predicted[row, column])
    islands = label((predicted == index).cpu().numpy(), connectivity=1)  # type: ignore[no-untyped-call]
    return index, torch.from_numpy(islands == islands[row, column]).to(predicted.device)


def border(mask: Tensor) -> Tensor:
    """Return the positions of a mask (H, W) with a neighbour outside it, of eight, in the picture.

    Raises:
        TargetError: there are none.
    """
    outside = functional.pad((~mask).float()[None, None], (1, 1, 1, 1))
    edge = mask & (functional.max_pool2d(outside, 3, stride=1)[0, 0] > 0)
    if not edge.any():
        raise TargetError(
            "The region covers everything that the model sees and has no border; explain the region itself."
        )
    return edge


def _visible_part(mask: Mask, geometry: Geometry) -> Mask:
    """Return the part of a mask of the picture that the model sees."""
    if mask.shape != (geometry.height, geometry.width):
        raise MaskError(
            f"The mask has {mask.shape[1]}x{mask.shape[0]} pixels, but the upright picture has "
            f"{geometry.width}x{geometry.height}; pass a mask of the same size."
        )
    left, top, right, bottom = geometry.box
    columns, rows = _samples(left, right), _samples(top, bottom)
    inside = np.ix_(rows.clip(0, len(mask) - 1), columns.clip(0, mask.shape[1] - 1))
    beyond = ((rows < 0) | (rows >= len(mask)))[:, None] | ((columns < 0) | (columns >= mask.shape[1]))[None]
    part: Mask = mask[inside] & ~beyond
    if not part.any():
        raise MaskError("The model sees nothing of the mask: its preprocessing cuts this part of the picture away.")
    return part


def _samples(start: float, stop: float) -> NDArray[np.intp]:
    """Return pixels from one edge to the other, which padding may have moved far beyond the picture."""
    first, last = round(start), round(stop)
    return np.arange(first, last, max(1, (last - first) // _MOST))
