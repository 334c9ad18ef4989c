"""Feature maps (N, C, h, w) in the outputs of layers: grids with the axes in any order, and tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seewhy.explainers.layers.layout import TokenGrid


@dataclass(frozen=True)
class GridMaps:
    """The feature maps of an output with the axes N, C, h and w in any order.

    Attributes:
        axes: axes of channels, rows and columns.
    """

    axes: tuple[int, int, int]

    def of(self, output: Tensor) -> Tensor:
        """Return the feature maps (N, C, h, w) of an output, or of its gradient; a view."""
        return output.permute(0, *self.axes)

    def put(self, output: Tensor, maps: Tensor) -> Tensor:
        """Return feature maps (R, C, h, w) as an output; the one given, of R pictures or of one, stays as it is."""
        order = (0, *self.axes)
        return maps.permute([order.index(axis) for axis in range(4)])


@dataclass(frozen=True)
class TokenMaps:
    """The feature maps of an output of tokens (N, T, C): those of its patches.

    Attributes:
        tokens: where they lie in the picture.
    """

    tokens: TokenGrid

    def of(self, output: Tensor) -> Tensor:
        """Return the patches, channels first, without class and register tokens."""
        patches = output[:, self._inside]
        return patches.mT.reshape(len(output), -1, self.tokens.rows, self.tokens.columns)

    def put(self, output: Tensor, maps: Tensor) -> Tensor:
        """Return the output with other patches; class and register tokens stay."""
        outside = output.expand(len(maps), -1, -1)
        inside = self._inside
        return torch.cat([outside[:, : inside.start], maps.flatten(2).mT, outside[:, inside.stop :]], dim=1)

    @property
    def _inside(self) -> slice:
        """Where the patches are among the tokens."""
        return slice(self.tokens.before, self.tokens.before + self.tokens.cells)


FeatureMaps = GridMaps | TokenMaps
"""How the output of a layer holds its feature maps."""


def grid_axes(shape: tuple[int, ...], image_size: tuple[int, int]) -> tuple[int, int, int] | None:
    """Return the axes of channels, rows and columns in a feature map by its shape alone; None if it is none.

    This is for tensors that no survey covers: gradients, arguments, outputs of bare modules. A grid here has the
    picture's proportions, up to a cell of rounding. It is channels-first, as PyTorch's convolutions make it, unless
    only the channels-last reading has these proportions, with more channels than cells to a side (Swin Transformers
    keep (N, H, W, C) between their blocks).

    Args:
        shape: shape of the feature map, batch axis first.
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
    # Strides round each side separately, so only a square picture has an exactly square grid.
    return rows == columns if height == width else abs(columns - rows * width / height) <= max(1.0, width / height)
