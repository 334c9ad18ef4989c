"""The result of an explainer: maps, their targets, and diagnostics."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seewhy.explainers.core.ask import Targets
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.faithfulness import Faithfulness, tensor_rows
from seewhy.explainers.errors import NonFiniteError
from seewhy.explainers.execution.deferred_checks import require

FAINT = 2.0**-6
"""If the score changes by less than this share, rounding (10^-6 of the score) exceeds 10^-4 of the change."""

_SHOWN = 8
"""Number of targets that a repr shows."""

_BAD_MAP = "The map contains NaN or infinity; use a float32 model, or another layer or method."


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of each picture of a batch, the largest gain first.

    Attributes:
        maps: (N, k, h, w) float32, not negative: how much each position belongs to each region.
        gains: (N, k) float32: the score with the region alone in the layer, minus the score with an empty layer.
        outputs: (N, k, ...) float32: the model's outputs when the region's concept alone fills the layer.
    """

    maps: Tensor
    gains: Tensor
    outputs: Tensor

    def rows(self) -> list["Regions"]:
        """Return the regions of each picture (N = 1), on the CPU."""
        return tensor_rows(self, len(self.maps))


class Answered:
    """Base of results with the outputs of a model."""

    outputs: Tensor

    @property
    def logits(self) -> Tensor:
        """(N, K) float32, or (K,) of one picture: the outputs of a classifier."""
        return self.outputs


@dataclass(frozen=True, eq=False)
class Attribution(Answered):
    """The maps of a batch, with their targets and outputs.

    Attributes:
        maps: (N, h, w) float32, raw: not resized, not normalised; on the images' device.
        targets: the explained target of each image: (N,) int64, a classifier's class; or N that lie in the pictures.
        outputs: (N, ...) float32, as the model's task reads them.
        layers: paths of the layers used, in the model's order; empty for methods that use none.
        signed: whether negative values speak against the target.
        against: (N,) int64, the contrast of each target, or `NO_CONTRAST`; None without any contrast.
        regions: regions from methods that segment the pictures; None for all others.
        diagnostics: a tuple of remarks for each map; empty if there is none about any map.
        change: (N,) for methods that hide parts of the picture: the change of the score, as a share of the values whose
            difference it is; 0 where it may be mere rounding. None for all others.
        faithfulness: faithfulness of the maps, if a proof was requested.
    """

    maps: Tensor
    targets: Targets
    outputs: Tensor
    layers: tuple[str, ...]
    signed: bool
    against: Tensor | None = None
    regions: Regions | None = None
    diagnostics: tuple[tuple[Diagnostic, ...], ...] = ()
    change: Tensor | None = None
    faithfulness: Faithfulness | None = None

    def is_faint(self, row: int) -> bool:
        """Whether hiding changes the score so little that rounding is visible in the map; reads the tensor."""
        return self.change is not None and 0 < float(self.change[row]) < FAINT

    def __repr__(self) -> str:
        targets = self.targets.tolist() if isinstance(self.targets, Tensor) else list(self.targets)
        listing = ", ".join(map(str, targets[:_SHOWN])) + (", ..." if len(targets) > _SHOWN else "")
        layers = f", layers {', '.join(self.layers)}" if self.layers else ""
        return f"Attribution(maps {tuple(self.maps.shape)}, targets [{listing}]{layers})"

    def rows(self) -> list["Attribution"]:
        """Return the attribution of each image (N = 1), on the CPU."""
        nothing = [None] * len(self.maps)
        regions = nothing if self.regions is None else self.regions.rows()
        faithfulness = nothing if self.faithfulness is None else self.faithfulness.rows()
        return [
            replace(
                part,
                targets=part.targets[row : row + 1] if isinstance(part.targets, tuple) else part.targets,
                regions=regions[row],
                diagnostics=self.diagnostics[row : row + 1],
                faithfulness=faithfulness[row],
            )
            for row, part in enumerate(tensor_rows(self, len(self.maps)))
        ]


def require_finite(maps: Tensor) -> None:
    """Raise `NonFiniteError` unless maps are finite; within `deferred`, at its end."""
    require(torch.isfinite(maps).all(), lambda: NonFiniteError(_BAD_MAP))
