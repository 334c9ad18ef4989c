"""How maps are tried: how much of a picture they mark, and what hides it."""

from typing import Annotated

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import OptionError, plain_fault
from seewhy.explainers.trust.calibration import Calibration
from seewhy.explainers.trust.choices import AREA, AREAS, Extent, Fill

_PLAIN, _COPIES = 2, 6
"""Masked copies of a picture, without and with those of the map's own copies."""


@dataclass(frozen=True)
class Trial:
    """How maps are tried.

    Attributes:
        area: share of the model's input that each map marks.
        fill: what hides pixels.
        full: whether the map's own turned and mirrored copies are tried too.
    """

    area: Annotated[float, Field(ge=AREAS[0], le=AREAS[1])] = AREA
    fill: Fill = "blur"
    full: bool = False

    @property
    def passes(self) -> Passes:
        """The most forward passes for a map: one more than `Faithfulness` says where the score is a probability."""
        return Passes((_COPIES if self.full else _PLAIN) + 1)


def trial_of(
    proof: Extent, area: float = AREA, fill: Fill = "blur", calibration: Calibration | None = None
) -> Trial | None:
    """Return how maps are tried, as users ask for it; None for no proof.

    Raises:
        OptionError: a value out of bounds, an unknown one, or a calibration of other trials.
    """
    if proof not in (False, True, "full"):
        raise OptionError(f"proof is {proof!r}; it must be False, True or 'full'.", "proof")
    try:
        trial = Trial(area, fill, proof == "full")
    except ValidationError as error:
        first = error.errors()[0]
        field = f"proof_{('area', 'fill')[int(first['loc'][0])]}"
        raise OptionError(f"{field}: {plain_fault(first)}", field) from error
    if calibration is not None and (calibration.area, calibration.fill) != (trial.area, trial.fill):
        raise OptionError(
            f"The calibration is of proof_area={calibration.area:g} and proof_fill={calibration.fill!r}; give these, "
            "or a calibration of the same.",
            "proof_calibration",
        )
    return trial if proof else None
