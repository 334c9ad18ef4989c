"""What a request is on its way: a plan, an explanation under way, and what was found, from which answers are made."""

from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from seewhy.app.pipeline.decode import Decoded
from seewhy.app.pipeline.jobs import Deadline, Done, Job
from seewhy.app.pipeline.timings import Timings
from seewhy.app.pipeline.work import Explain
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.methods.catalogue import Method
from seewhy.explainers.results.explanation import Explanation, explanations
from seewhy.explainers.tasks.classification import Prediction, best
from seewhy.models import LoadedModel


@dataclass(frozen=True)
class Predicted:
    """Everything that an answer of /predict is made from.

    Attributes:
        model: which model answered.
        predictions: the most probable classes.
        timings: of the stages.
    """

    model: LoadedModel
    predictions: tuple[Prediction, ...]
    timings: Timings


@dataclass(frozen=True)
class Explained:
    """Everything that an answer of /explain is made from.

    Attributes:
        model: which model answered.
        methods: which methods, with their options.
        explanations: one per explained class and method, those of one class together.
        style: how to draw them.
        logits: (K,) float32.
        timings: of the stages so far.
        deadline: when to give up.
    """

    model: LoadedModel
    methods: tuple[tuple[Method, Explainer], ...]
    explanations: list[Explanation]
    style: Style
    logits: "np.ndarray[Any, np.dtype[np.float32]]"
    timings: Timings
    deadline: Deadline

    @property
    def targets(self) -> tuple[Prediction, ...]:
        """The explained classes, each once: of several methods, passes may differ by a rounding."""
        return tuple({one.target.index: one.target for one in reversed(self.explanations)}.values())[::-1]


@dataclass(frozen=True)
class Underway:
    """An explanation that a model is asked for and has not given yet.

    Attributes:
        jobs: one per class that is explained now.
        before, classes: how many classes have been explained already, and are to be in all.
        decoded: the picture.
        style: how to draw the answer.
        signed: whether negative values mean evidence against the class.
        deadline: when to give up.
    """

    jobs: Sequence[Job]
    before: int
    classes: int
    decoded: Decoded
    style: Style
    signed: bool
    deadline: Deadline

    def wait(self, seconds: float) -> bool:
        """Wait for the jobs, for so long at most; return whether there is nothing more to wait for."""
        running = wait([job.future for job in self.jobs], seconds).not_done
        return not running or not self.deadline.remaining or self.deadline.gone()

    @property
    def share(self) -> float | None:
        """How much of all the work is done, 0 to 1; None before any of it began."""
        if not self.before and not any(job.progress.passes[1] for job in self.jobs):
            return None
        return min(1.0, (self.before + sum(job.progress.share for job in self.jobs)) / self.classes)


@dataclass(frozen=True)
class Plan:
    """What is to be explained, whatever the picture is.

    Attributes:
        model: which model answers.
        methods: which methods, with their options.
        style: how to draw.
        first: the classes to explain; None for the most probable one.
        top: how many of the most probable classes to explain; 1 where classes are named.
        against: the class to contrast them with.
        deadline: when to give up.
    """

    model: LoadedModel
    methods: tuple[tuple[Method, Explainer], ...]
    style: Style
    first: tuple[int | None, ...]
    top: int
    against: int | None
    deadline: Deadline

    @property
    def work(self) -> Explain:
        """What the model is to do."""
        return Explain(tuple(explainer for _, explainer in self.methods))

    def others(self, first: Done) -> list[int]:
        """Return the classes that come after the most probable one, now that this is explained."""
        logits = first.result[0].logits[0].numpy()
        return [index for index in best(logits, self.top)[1:] if index != self.against]

    def explained(self, shown: Decoded, done: Sequence[Done], timings: Timings) -> Explained:
        """Return what was found about one picture."""
        return Explained(
            model=self.model,
            methods=self.methods,
            explanations=[
                explanations(self.model, method.name, shown.picture, shown.geometry, attribution)[0]
                for one in done
                for (method, _), attribution in zip(self.methods, one.result, strict=True)
            ],
            style=self.style,
            logits=done[0].result[0].logits[0].numpy(),
            timings=timings,
            deadline=self.deadline,
        )
