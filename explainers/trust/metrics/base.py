"""Base of metrics: frozen parameters, and a score for each picture's map."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass as plain
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.attribution import require_finite
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.baselines import baseline_of
from seewhy.explainers.methods.explainer import Explainer, Parameters
from seewhy.explainers.trust.marking import WHOLE, blurred, resized

Seed = Annotated[
    int, Field(ge=0, lt=2**63, description="Seed of the random generator; the same seed gives the same value.")
]

Fill = Literal["blur", "zero", "black", "mean"]

FILLS = (
    "`blur`: the picture blurred, by 11 pixels at 224. `zero`: zeros of the normalised input, for most models the mean "
    "colour of their training pictures. `black`: black, for models whose normalisation is known. `mean`: the picture's "
    "own mean colour."
)
FillOption = Annotated[Fill, Field(description=f"Replacement of hidden pixels. {FILLS}")]

Reach = tuple[float, float, float, float]

Copies = Callable[[Tensor, Tensor], Tensor]
"""Returns altered copies (R, C, H, W), given their pictures' indices and their numbers among the picture's copies."""


@plain(frozen=True, eq=False)
class Subject:
    """The maps that a metric judges.

    Attributes:
        question: the pictures, the prepared module, and the explained targets.
        explainer: the method that made the maps.
        raw: (N, h, w) float32, the method's maps of the pictures.
        plain: the objective, and the model's outputs (N, ...) for the pictures.
        truth: (N, H, W) bool, the target's place in the model's input; all false if unknown.
        reach: reach of the maps' cells in the model's input, see `Geometry`.
        shared: values that depend only on the pictures, by key; computed once for all methods, see `once`.
    """

    question: Question
    explainer: Explainer
    raw: Tensor
    plain: tuple[Objective, Tensor]
    truth: Tensor | None = None
    reach: Reach = WHOLE
    shared: dict[Hashable, Tensor] = field(default_factory=dict)

    @property
    def images(self) -> Tensor:
        """(N, C, H, W) in the module's dtype."""
        return self.question.images

    @cached_property
    def maps(self) -> Tensor:
        """(N, H, W) float32, the maps over the model's input."""
        height, width = self.images.shape[2:]
        return resized(self.raw, (height, width), self.reach)

    @cached_property
    def ranks(self) -> Tensor:
        """(N, H, W) int64: the rank of each position by value, the largest first; equal values in row-major order."""
        order = self.maps.flatten(1).argsort(dim=1, descending=True, stable=True)
        places = torch.arange(order.shape[1], device=order.device).expand_as(order)
        return torch.empty_like(order).scatter_(1, order, places).view_as(self.maps)

    @property
    def objective(self) -> Objective:
        """The explained score of each picture."""
        return self.plain[0]

    @property
    def logits(self) -> Tensor:
        """(N,) float32: the score of each picture."""
        return logit(*self.plain)

    @property
    def probabilities(self) -> Tensor:
        """(N,) float32: the probability of each picture's target; values with a unit are unchanged."""
        return probability(*self.plain)

    def filled(self, fill: Fill) -> Tensor:
        """Return the replacement of hidden pixels, (N, C, H, W) in the pictures' dtype; errors as in `baseline_of`."""

        def hidden() -> Tensor:
            if fill == "blur":
                return blurred(self.images)
            return baseline_of(self.images, fill, self.question.model).to(self.images.dtype)

        return self.once(("filled", fill), hidden)

    def once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return the cached result of a function by key; the function must not read the maps."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]

    def probe(self, count: int, copies: Copies, score: Callable[[Objective, Tensor], Tensor]) -> Tensor:
        """Run altered copies of the pictures, as many at once as memory allows.

        Args:
            count: number of copies of each picture.
            copies: see `Copies`.
            score: returns scores (R,), given an objective and outputs (R, ...).

        Returns:
            (N, count) float32.
        """
        objective, scores = self.objective, []
        for part in self.question.chunks(len(self.images) * count):
            rows = torch.arange(part.start, part.stop, device=self.images.device)
            pictures = rows // count
            outputs = self.question.predict(copies(pictures, rows % count).to(self.images.dtype))
            scores.append(score(objective.rows(pictures), outputs))
        return torch.cat(scores).view(-1, count)

    def explained(self, images: Tensor, ask: Ask | None = None) -> Tensor:
        """Return the method's maps (N, h, w) of other pictures (N, C, H, W), for the same targets or those of `ask`."""
        question = replace(self.question, images=images.to(self.images.dtype), ask=ask or self.question.ask)
        question = replace(question, progress=question.progress.unseen)
        maps = self.explainer.attribution(question).maps
        require_finite(maps)
        return maps


@dataclass(frozen=True, kw_only=True)
class Metric(Parameters, ABC):
    """Base of all metrics. A metric is its parameters, checked on creation.

    With `shares_forwards`, its forward passes do not depend on the map, and are shared by all methods.

    A uniform map, such as a blank one, ranks its positions in row-major order. Undefined values are NaN, and averages
    omit them.
    """

    needs_truth: ClassVar[bool] = False
    shares_forwards: ClassVar[bool] = False
    over_pictures: ClassVar[bool] = False

    @abstractmethod
    def score(self, subject: Subject) -> Tensor:
        """Return the value of each map, (N,) float32; (M, columns) for a metric with several columns."""

    def left_out(self, subject: Subject) -> Tensor | None:
        """Return which values (N,) bool do not count in means; None if all do."""
        return None

    def quantities(self) -> dict[str, int]:
        """Return the quantities besides the options on which the number of passes depends."""
        return {}


def logit(objective: Objective, outputs: Tensor) -> Tensor:
    """Return the scores (R,) float32 of outputs (R, ...)."""
    return objective.scores(outputs)


def probability(objective: Objective, outputs: Tensor) -> Tensor:
    """Return the targets' probabilities (R,) float32 in outputs (R, ...)."""
    return objective.scores(objective.probabilities(outputs))


def shares(maps: Tensor) -> Tensor:
    """Return maps (N, ...) without negative values, divided by their sums; a blank map becomes uniform."""
    values = maps.flatten(1).double().clamp_min(0)
    totals = values.sum(dim=1, keepdim=True)
    return torch.where(totals > 0, values / totals.where(totals > 0, 1), 1 / values.shape[1]).view(maps.shape)
