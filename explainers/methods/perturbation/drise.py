"""D-RISE: random masks, weighted by how like a box of a detector is still found."""

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution, Diagnostic
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.perturbation.random_masks import Moments, RandomMasks


@method(
    "drise",
    family="perturbation",
    summary="Average of random masks, weighted by the similarity of the boxes that a detector still finds; detectors "
    "only.",
    paper=Paper(
        "Petsiuk, Jain, Manjunatha, Morariu, Mehra, Ordonez, Saenko",
        "Black-box Explanation of Object Detectors via Saliency Maps",
        2021,
        "https://arxiv.org/abs/2006.03204",
    ),
    forwards="1 + samples",
    backwards="0",
    fine=True,
)
class DRISE(RandomMasks):
    r"""D-RISE: the parts of the picture that a detector needs to find a box like the explained one.

    .. math:: S(\lambda) \approx \frac{\sum_i w_i\, M_i(\lambda)}{\sum_i M_i(\lambda)} - \frac{1}{N} \sum_i w_i,
              \qquad w_i = \max_{d \in f(I \odot M_i)} \mathrm{IoU}(b, b_d)\, \frac{P \cdot P_d}{|P|\, |P_d|}\, O_d

    where b is the explained box and P the scores of its classes; :math:`b_d` and :math:`P_d` are those of a candidate
    of the masked picture, and :math:`O_d` is its objectness, or 1 if the detector has none. All candidates count,
    before thresholding and suppression. Masks are those of RISE, and several boxes of a picture share them and the
    passes. Results report the standard error of the estimate (``monte-carlo-error``).

    Deviations: as in RISE, the sum is divided by that of the masks, and the mean weight is subtracted; the paper uses
    5000 masks of 16 by 16 cells. Attributes of the box other than its score have no effect.
    """

    reads_boxes: ClassVar[bool] = True

    cells: Annotated[int, Field(ge=1, le=64, description="Number of cells of a mask on each side.")] = 16

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the similarities (R,) float32 of outputs (R, ...)."""
        return objective.similarity(outputs)

    def finished(self, attribution: Attribution, moments: Moments) -> Attribution:
        """Return the attribution, with its Monte Carlo error."""
        largest = moments.means.abs().amax(dim=(1, 2))
        errors = moments.errors.amax(dim=(1, 2)) / largest.where(largest > 0, 1)
        return replace(attribution, diagnostics=tuple((self._error(share),) for share in errors.tolist()))

    def _error(self, share: float) -> Diagnostic:
        return Diagnostic(
            "monte-carlo-error",
            f"The map is an estimate from {self.samples} masks: the standard error of its values is at most "
            f"{share:.0%} of the largest. Four times the samples halve it.",
        )
