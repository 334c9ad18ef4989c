"""Insertion and deletion: the probability while the most important pixels appear or vanish."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.faithfulness import are_likely
from seewhy.explainers.trust.metrics.base import FillOption, Metric, Subject, probability
from seewhy.explainers.trust.metrics.catalogue import metric

LEVELS = (0.03, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8)


@dataclass(frozen=True, kw_only=True)
class Curve(Metric):
    """Base of metrics that record the probability while the picture is altered stepwise, in the order of the map."""

    steps: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="Number of equal steps from no pixels to all; 0 for the levels 3, 8, 15, 25, 40, 60 and 80 %.",
        ),
    ] = 0
    fill: FillOption = "blur"
    relative: Annotated[
        bool,
        Field(
            description="Divide by the probability with the whole picture, so that all pictures have the same weight; "
            "means then leave out targets below 30 %."
        ),
    ] = True

    inserts: ClassVar[bool]

    @property
    def levels(self) -> tuple[float, ...]:
        """The shares of pixels that are shown or hidden."""
        return tuple(step / self.steps for step in range(self.steps + 1)) if self.steps else LEVELS

    def quantities(self) -> dict[str, int]:
        """Return the number of levels."""
        return {"levels": len(self.levels)}

    def left_out(self, subject: Subject) -> Tensor | None:
        """Return whether targets (N,) are improbable: shares of a small probability may be of any size."""
        if not self.relative:
            return None
        return ~are_likely(subject.probabilities, subject.objective.are_probabilities)

    def curve(self, subject: Subject) -> Tensor:
        """Return the probabilities (N, levels) float32."""
        other = subject.filled(self.fill)
        positions = subject.ranks[0].numel()
        counts = torch.tensor([round(level * positions) for level in self.levels], device=other.device)

        def copies(pictures: Tensor, numbers: Tensor) -> Tensor:
            first = subject.ranks[pictures] < counts[numbers][:, None, None]
            visible = first if self.inserts else ~first
            return torch.where(visible[:, None], subject.images[pictures], other[pictures])

        return subject.probe(len(self.levels), copies, probability)

    def score(self, subject: Subject) -> Tensor:
        """Return the mean height (N,) of each curve; NaN if it is relative to a probability that is not positive."""
        heights, levels = self.curve(subject), self.levels
        mean = torch.trapezoid(heights, heights.new_tensor(levels)) / (levels[-1] - levels[0])
        whole = subject.probabilities
        return torch.where(whole > 0, mean / whole, torch.nan) if self.relative else mean


@metric("insertion", aspect="faithfulness", better="higher", forwards="levels")
class Insertion(Curve):
    r"""Insertion: mean probability while the most important pixels are revealed in a blurred picture.

    .. math:: \frac{1}{p(x)\,(t_n - t_1)} \int_{t_1}^{t_n} p\big(m_t \odot x + (1 - m_t) \odot \tilde{x}\big)\, dt

    where :math:`m_t` marks the share t of pixels with the largest values, and :math:`\tilde{x}` is the blurred
    picture. The integral uses the trapezoidal rule with seven levels. The paper uses ``steps=224, relative=false``.
    """

    inserts: ClassVar[bool] = True


@metric("deletion", aspect="faithfulness", better="lower", forwards="levels")
class Deletion(Curve):
    r"""Deletion: mean probability while the most important pixels are blurred away.

    .. math:: \frac{1}{p(x)\,(t_n - t_1)} \int_{t_1}^{t_n} p\big((1 - m_t) \odot x + m_t \odot \tilde{x}\big)\, dt

    with the symbols of insertion. The paper hides pixels in grey (``fill=zero``), which adds sharp edges.
    """

    inserts: ClassVar[bool] = False
