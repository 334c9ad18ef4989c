"""What an explainer returns: maps, what they are of, and what a reader should know about them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seewhy.explainers.errors import NonFiniteError
from seewhy.explainers.execution.deferred_checks import require

_BAD_MAP = "The map holds NaN or infinity; use a float32 model, or another layer or method."


@dataclass(frozen=True, eq=False)
class Regions:
    """The parts into which a method cuts each picture of a batch, that with the largest gain first.

    Attributes:
        maps: (N, k, h, w) float32, not negative: how much each position belongs to each region.
        gains: (N, k) float32: the score with nothing in the layer but the region, less that with nothing at all.
        outputs: (N, k, ...) float32: what the model says when the region's concept alone fills the layer.
    """

    maps: Tensor
    gains: Tensor
    outputs: Tensor

    def rows(self) -> list["Regions"]:
        """Return the regions of each picture by itself (N = 1), on the CPU."""
        tensors = (self.maps.cpu(), self.gains.cpu(), self.outputs.cpu())
        return [Regions(*(tensor[row : row + 1] for tensor in tensors)) for row in range(len(self.maps))]


@dataclass(frozen=True)
class Diagnostic:
    """Something about a map that its reader should know.

    Attributes:
        code: such as blank-map; docs/http.md lists them.
        message: what it means and what to try.
    """

    code: str
    message: str


@dataclass(frozen=True, eq=False)
class Attribution:
    """The maps of a batch, and what they explain.

    Attributes:
        maps: (N, h, w) float32, raw: not resized, not normalised; on the images' device.
        targets: (N,) int64, what is explained of each image: of a classifier, its class.
        outputs: (N, ...) float32, as the model's task reads them.
        layers: the paths of the layers used, in the model's order; empty for methods that need none.
        signed: whether negative values mean evidence against the target.
        against: (N,) int64, what each target is contrasted with, or `NO_CONTRAST`; None where there is no contrast.
        regions: of methods that cut the pictures into parts; None for all others.
        diagnostics: what a reader should know, a tuple for each map; empty where there is nothing about any.
        change: (N,) of methods that watch the score while something is hidden: its largest change, as a share of the
            values that it is a difference of; None for all others.
    """

    maps: Tensor
    targets: Tensor
    outputs: Tensor
    layers: tuple[str, ...]
    signed: bool
    against: Tensor | None = None
    regions: Regions | None = None
    diagnostics: tuple[tuple[Diagnostic, ...], ...] = ()
    change: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """(N, K) float32: the outputs of a classifier."""
        return self.outputs

    def rows(self) -> list["Attribution"]:
        """Return the attribution of each image by itself (N = 1), on the CPU."""
        maps, targets, outputs = self.maps.cpu(), self.targets.cpu(), self.outputs.cpu()
        against = None if self.against is None else self.against.cpu()
        regions = None if self.regions is None else self.regions.rows()
        change = None if self.change is None else self.change.cpu()
        return [
            Attribution(
                maps=maps[row : row + 1],
                targets=targets[row : row + 1],
                outputs=outputs[row : row + 1],
                layers=self.layers,
                signed=self.signed,
                against=None if against is None else against[row : row + 1],
                regions=None if regions is None else regions[row],
                diagnostics=self.diagnostics[row : row + 1],
                change=None if change is None else change[row : row + 1],
            )
            for row in range(len(maps))
        ]


def checked_maps(attribution: Attribution) -> Attribution:
    """Return the attribution if its maps are finite.

    Raises:
        NonFiniteError: they are not.
    """
    require_finite(attribution.maps)
    return attribution


def require_finite(maps: Tensor) -> None:
    """Raise `NonFiniteError` unless maps are finite; within `deferred` at its end."""
    require(torch.isfinite(maps).all(), lambda: NonFiniteError(_BAD_MAP))
