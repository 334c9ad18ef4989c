"""Feature maps (N, C, h, w) in the outputs of layers: grids with the axes in any order, and tokens."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seewhy.explainers.layers.layout import TokenGrid


class FeatureMaps(Protocol):
    """How the output of a layer holds its feature maps."""

    def of(self, output: Tensor) -> Tensor:
        """Return the feature maps (N, C, h, w) of an output, or of its gradient; a view."""

    def put(self, output: Tensor, maps: Tensor) -> Tensor:
        """Return an output with other feature maps.

        Args:
            output: of R pictures, or of one; it stays as it is.
            maps: (R, C, h, w).
        """


@dataclass(frozen=True)
class GridMaps:
    """The feature maps of an output with the axes N, C, h and w in any order.

    Attributes:
        axes: of channels, rows and columns.
    """

    axes: tuple[int, int, int]

    def of(self, output: Tensor) -> Tensor:
        """Return the output, channels first."""
        return output.permute(0, *self.axes)

    def put(self, output: Tensor, maps: Tensor) -> Tensor:
        """Return the maps with the axes of the output."""
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
