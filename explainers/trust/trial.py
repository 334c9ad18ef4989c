"""Parameters of a proof: the share of the picture that a map marks, and the fill."""

from typing import Annotated

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from seewhy.explainers.core.choices import AREA, AREAS, FILLS, Extent, Fill
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import OptionError, plain_fault

_PLAIN, _COPIES = 2, 6
"""Number of masked copies of a picture, without and with those for copies of the map."""


@dataclass(frozen=True)
class Trial:
    """Parameters of a proof.

    Attributes:
        area: share of the model's input that each map marks.
        fill: replacement of hidden pixels.
        full: whether rotated and mirrored copies of the map are tried too.
    """

    area: Annotated[float, Field(ge=AREAS[0], le=AREAS[1])] = AREA
    fill: Fill = "blur"
    full: bool = False

    @property
    def passes(self) -> Passes:
        """The maximum number of forward passes for a map: one more than in `Faithfulness` if the score is a
        probability."""
        return Passes((_COPIES if self.full else _PLAIN) + 1)


def trial_of(proof: Extent, area: float = AREA, fill: Fill = "blur") -> Trial | None:
    """Return the parameters from the options of users; None for no proof.

    Raises:
        OptionError: a value is out of bounds or unknown, or is given without a proof.
    """
    if proof not in (False, True, "full"):
        raise OptionError(f"proof is {proof!r}; it must be False, True or 'full'.", "proof")
    try:
        trial = Trial(area, fill, proof == "full")
    except ValidationError as error:
        first = error.errors()[0]
        field = f"proof_{('area', 'fill')[int(first['loc'][0])]}"
        raise OptionError(f"{field}: {plain_fault(first)}", field) from error
    if proof:
        return trial
    for name, value, usual in (("proof_area", area, AREA), ("proof_fill", fill, FILLS[0])):
        if value != usual:
            raise OptionError(f"{name} is an option of proofs; give `proof` too, or leave it out.", name)
    return None
