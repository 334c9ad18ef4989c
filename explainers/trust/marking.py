"""The pixels that a map marks, and blurred pictures that replace them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.question import widened
from seewhy.explainers.methods import baselines

SIGMA = 11 / 224
"""Standard deviation of the blur that hides pixels, as a share of the picture's shorter side."""

WHOLE = (0.0, 0.0, 1.0, 1.0)
"""The reach of a map whose cells cover the whole input of the model."""


def reach_of(model: AnyModel, layers: tuple[str, ...], maps: Tensor) -> tuple[float, float, float, float]:
    """Return the reach of the cells of maps (N, h, w) of layers, see `Geometry`; a bare module's is the whole input."""
    return WHOLE if isinstance(model, nn.Module) else model.survey.reach(layers, (maps.shape[1], maps.shape[2]))


def resized(maps: Tensor, size: tuple[int, int], reach: tuple[float, float, float, float] = WHOLE) -> Tensor:
    """Return maps (N, h, w) resampled bilinearly, with half-pixel centres, to the model's input: (N, H, W) float32.

    Args:
        maps: maps of any resolution, finer or coarser.
        size: height and width of the model's input.
        reach: left, top, right, bottom of the maps' cells as fractions of the input, see `Geometry`; outside of
            them, the nearest cell is used.
    """
    maps = maps.float()
    if reach == WHOLE:
        return functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
    left, top, right, bottom = reach
    down, across = (_places(length, *ends) for length, ends in zip(size, ((top, bottom), (left, right)), strict=True))
    grid = torch.stack(torch.meshgrid(down, across, indexing="ij")[::-1], dim=-1).to(maps.device)
    whole = grid.expand(len(maps), -1, -1, -1)
    return functional.grid_sample(maps[:, None], whole, padding_mode="border", align_corners=False)[:, 0]


def _places(count: int, start: float, stop: float) -> Tensor:
    """Return the positions of the centres of `count` pixels relative to two ends, which are -1 and 1."""
    return ((torch.arange(count) + 0.5) / count - start) / (stop - start) * 2 - 1


def top_share(maps: Tensor, share: float) -> Tensor:
    """Return (N, H, W) bool: the largest values of each map, exactly ``round(share * H * W)`` of them.

    Among equal values, those near larger values and far from smaller ones are chosen: a sparse map of few bright spots
    marks their surroundings, not zeros anywhere. Where nothing tells them apart, the first ones in row-major order are.

    Args:
        maps: (N, H, W), finite.
        share: in [0, 1].
    """
    count = round(share * maps[0].numel())
    if count == 0:
        return torch.zeros_like(maps, dtype=torch.bool)
    above, equal = _split(maps.flatten(1), count)
    if (above | equal).sum() > count * len(maps):
        levels = above.float().masked_fill(~(above | equal), -1).view_as(maps)[:, None]
        # What is nearest counts first; the wide blur only orders the positions that the narrow one does not reach.
        around = (blurred(levels) + 0.03 * blurred(levels, 1 / 4)).flatten(1)
        above, equal = _split(around.masked_fill(~(above | equal), -torch.inf).masked_fill(above, torch.inf), count)
    return (above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))).view_as(maps)


def _split(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return which values (N, P) are larger than the `count`-th largest of their row, and which are equal to it."""
    least = values.kthvalue(values.shape[1] - count + 1, dim=1, keepdim=True).values  # much faster than sorting
    return values > least, values == least


def blurred(images: Tensor, sigma: float = SIGMA) -> Tensor:
    """Return images (N, C, H, W) blurred by a Gaussian, with mirrored borders, in their own dtype.

    Args:
        images: normalised or not.
        sigma: standard deviation, as a share of the shorter side.
    """
    return baselines.blurred(widened(images), sigma * min(images.shape[2:])).to(images.dtype)


def turned(maps: Tensor) -> Tensor:
    """Return maps or masks (..., H, W) rotated by 180 degrees."""
    return maps.flip(-2, -1)


def mirrored(maps: Tensor) -> Tensor:
    """Return maps or masks (..., H, W) with left and right exchanged."""
    return maps.flip(-1)
