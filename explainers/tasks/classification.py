"""Classification: a logit for each class; probabilities are their softmax, or the sigmoid of each."""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_flatten

from seewhy.explainers.core.ask import MOST_PROBABLE, NO_CONTRAST, Ask
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.objective import ONE_CLASS, Objective
from seewhy.explainers.core.percent import likelihood, more_points, percent, points
from seewhy.explainers.errors import ModelOutputError, TargetError, UnsuitableModelError, listed, near_matches
from seewhy.explainers.execution.deferred_checks import require
from seewhy.explainers.tasks.choices import DEFAULT_METHOD

ClassHead = Literal["softmax", "sigmoid"]
"""From logits to probabilities: the softmax of classes that exclude each other, the sigmoid of labels that do not."""

SATURATED = 0.9999
"""Above this probability a softmax hardly changes with the logits."""

IMPROBABLE = 0.01
"""Below this probability a class of a softmax is improbable, however many classes there are."""

EQUAL = 1e-5
"""Up to this share of their largest magnitude, logits differ by rounding alone."""

_AGAINST = "gradcam and most other methods show with sign=signed what speaks against it."

_LISTED = 12
"""Maximum number of labels that an error lists."""

_PLACES = ("box:", "region:", "pixel:")
"""Prefixes of the targets of detectors and segmenters that name a place."""


@dataclass(frozen=True)
class Classification:
    """Classification: finds the class that a picture shows, or the labels that apply to it.

    Outputs are logits (N, K); a target is the index of a class.

    Attributes:
        labels: one per class; empty for a bare module, whose classes are ``class 0``, ``class 1`` and so on.
        head: None for the sigmoid of a single logit and the softmax of several.
    """

    labels: Sequence[str] = ()
    head: ClassHead | None = None

    default_method: ClassVar[str] = DEFAULT_METHOD

    @property
    def objectives(self) -> type["ClassObjective"]:
        """The kind of its objectives."""
        return ClassObjective

    def outputs(self, raw: Any) -> Tensor:
        """Return the logits (N, K) in the module's result."""
        logits = logits_of(raw)
        if logits.shape[1] < 1:
            raise ModelOutputError("The model returned no logits.")
        return logits

    def objective(self, outputs: Tensor, ask: Ask) -> "ClassObjective":
        """Return the checked classes to explain."""
        count = outputs.shape[1]
        targets = outputs.detach().argmax(dim=1)
        if ask.numbers is not None:
            classes = ask.numbers.to(outputs.device, torch.int64, non_blocking=outputs.is_cuda)
            targets = _checked(classes, classes == MOST_PROBABLE, targets, count)
        return ClassObjective(targets, contrasts_of(ask, targets, count), self.head)

    def target(self, target: int | str) -> int:
        """Return the index of a class; see `class_index`."""
        try:
            return class_index(target, self.labels)
        except TargetError as error:
            if not isinstance(target, str) or not target.strip().startswith(_PLACES):
                raise
            raise TargetError(
                f"{target!r} is a place, but this model classifies whole pictures; name a class, or use a detector or "
                "a segmenter."
            ) from error

    def describe(self, outputs: Tensor, targets: Sequence[int] = (), top: int = 5) -> "tuple[ClassPrediction, ...]":
        """Return the targets of a picture with logits (K,), and then its `top` most probable classes."""
        logits = outputs.detach().float().cpu().numpy()
        likely = self.probabilities(torch.from_numpy(logits.astype(np.float64))).numpy()
        return tuple(
            ClassPrediction(index, self._label(index), float(likely[index]), float(logits[index]))
            for index in (*targets, *best(logits, top))
        )

    def _label(self, index: int) -> str:
        return self.labels[index] if self.labels else f"class {index}"

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities (..., K) of logits (..., K)."""
        return probabilities(outputs, self.head)

    def remarks(self, outputs: Tensor, target: int) -> tuple[Diagnostic, ...]:
        """Return remarks about the probability of a target, given logits (K,), for the reader of its map."""
        count = len(outputs)
        head = self.head or head_of(count)
        likely, *_, best_one = self.describe(outputs, [target], top=1)
        low, high = outputs.detach().float().aminmax()
        are_equal = count > 1 and float(high - low) <= EQUAL * max(abs(float(low)), abs(float(high)))
        remarks = []
        if count == 1:
            remarks.append(
                Diagnostic(
                    "one-logit",
                    "The model has one logit: the probability is its sigmoid, and the map shows what speaks for "
                    f"{likely.label!r}. {_AGAINST}",
                )
            )
        elif are_equal:
            remarks.append(
                Diagnostic(
                    "equal-logits",
                    f"The model gives all {count} classes the same logit, so it chooses none; {likely.label!r} is only "
                    "the one that was asked for, or the first. Check the weights of the model's head.",
                )
            )
        elif head == "softmax" and best_one.probability > SATURATED:
            remarks.append(
                Diagnostic(
                    "saturated-softmax",
                    f"The model is certain ({best_one.text}), so small changes of the picture hardly move "
                    "the probability. The map explains the logit, which they do move.",
                )
            )
        bound = _unreached(likely.probability, count, head)
        if bound and not (are_equal and head == "softmax"):
            share, name = bound
            probability = likely.text.replace("<", "less than ")
            gives = f"just below {name}" if probability == percent(share) else f"{probability}, below {name}"
            remarks.append(
                Diagnostic(
                    "improbable-target",
                    f"The model gives {likely.label!r} {gives}: the map shows the evidence for it, "
                    "not that the class is present.",
                )
            )
        return tuple(remarks)

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether logits (N, K) look like the result of a softmax, its logarithm, or the result of a sigmoid."""
        values = outputs.float()
        within = bool(((values >= 0) & (values <= 1)).all())
        if (self.head or head_of(values.shape[1])) == "sigmoid":
            return within
        total = values.sum(dim=1) if within else values.exp().sum(dim=1)
        return bool((total - 1).abs().max() < 1e-2)


@dataclass(frozen=True, eq=False)
class ClassObjective(Objective):
    """For each picture the logit of a class, or its lead over the logit of another class.

    Attributes:
        head: as in `Classification`.
    """

    is_linear: ClassVar[bool] = True

    head: ClassHead | None = None

    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the target's logit of each row of logits (N, K), minus that of its contrast."""
        outputs = outputs.float()
        scores = outputs.gather(1, self.targets[:, None])[:, 0]
        if self.against is None:
            return scores
        contrasts = outputs.gather(1, self.against.clamp_min(0)[:, None])[:, 0]
        return scores - torch.where(self.against == NO_CONTRAST, 0, contrasts)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities (N, K) of logits (N, K)."""
        return probabilities(outputs.float(), self.head)

    @property
    def are_probabilities(self) -> Tensor:
        """(N,) bool: all except leads over a contrast."""
        return ~self.is_contrasted

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the logarithms (N, K) of `probabilities`."""
        outputs = outputs.float()
        head = self.head or head_of(outputs.shape[-1])
        return functional.logsigmoid(outputs) if head == "sigmoid" else outputs.log_softmax(dim=-1)

    def nearest(self, outputs: Tensor, count: int) -> Tensor:
        """Return (N,): the mean logit of the `count` other classes whose logits are nearest to the target's."""
        return mean_of_nearest(outputs.float(), self.targets, count)

    def rivals(self, outputs: Tensor) -> Tensor:
        """Return (N, K) bool: the contrast, if any; else all other classes of a softmax, and none of a sigmoid."""
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        rivals = (classes != self.targets[:, None]) & ((self.head or head_of(outputs.shape[1])) == "softmax")
        if self.against is None:
            return rivals
        return torch.where(self.is_contrasted[:, None], classes == self.against[:, None], rivals)


class OfClass:
    """Base of a prediction of a class, which a user names by its index."""

    verb: ClassVar[str] = "speaks for"
    sign: ClassVar[int] = 1

    index: int
    logit: float

    @property
    def name(self) -> int:
        """The index."""
        return self.index

    @property
    def score(self) -> float:
        """The logit."""
        return self.logit


@dataclass(frozen=True)
class ClassPrediction(OfClass):
    """One class with its probability.

    Attributes:
        index: class index.
        label: class label.
        probability: by the softmax over all classes, or the sigmoid of the logit, in [0, 1].
        logit: the model's.
    """

    index: int
    label: str
    probability: float
    logit: float

    @property
    def text(self) -> str:
        """The probability in percent."""
        return likelihood(self.probability)

    def reading(self, score: float) -> str:
        """Return a probability in percent."""
        return likelihood(score)

    def lead(self, score: float) -> str:
        """Return a difference of probabilities in percentage points."""
        return points(score)

    def change(self, before: Self) -> str:
        """Return the change of the probability in points of percent."""
        return more_points(self.probability - before.probability)


def class_index(target: int | str, labels: Sequence[str]) -> int:
    """Return the index of a class that a user names; integers of other libraries are accepted.

    A string that equals a label means that label. Case is ignored unless it distinguishes two labels (ImageNet has a
    dog named Cardigan and a cardigan). Any other string of digits is an index.

    Raises:
        TargetError: an index out of range, an unknown label (with near matches), or one of several classes.
    """
    if isinstance(target, str):
        name = target.strip()
        classes = [index for index, label in enumerate(labels) if label == name]
        classes = classes or [index for index, label in enumerate(labels) if label.casefold() == name.casefold()]
        if len(classes) > 1:
            numbers = ", ".join(map(str, classes))
            raise TargetError(f"The label {target!r} names the classes {numbers}; give one of these numbers.")
        if classes:
            return classes[0]
        if not re.fullmatch(r"[+-]?\d{1,18}", name):
            listing = "`seewhy models NAME` or GET /models/NAME lists its labels; in Python, `model.labels` has them."
            if len(labels) <= _LISTED:
                listing = f"It has {listed(labels)}."
            if len(labels) == 1:
                listing = f"It has one logit, for {labels[0]!r}. {_AGAINST}"
            raise TargetError(f"The model has no class {target!r}. {near_matches(name, labels) or listing}")
        target = int(name)
    if isinstance(target, bool) or not hasattr(target, "__index__"):
        raise TargetError(f"A target must be the index or the label of a class, not {target!r}.")
    target = operator.index(target)
    if not 0 <= target < len(labels):
        raise outside(target, len(labels))
    return target


def outside(index: int, count: int) -> TargetError:
    """Return the error for an index outside the `count` classes of a model."""
    if count == 1:
        return TargetError(
            f"Class {index} is out of range: the model has one logit, class 0, whose probability is its sigmoid. "
            f"{_AGAINST}"
        )
    return TargetError(f"Class {index} is out of range: the model has classes 0 to {count - 1}.")


def _unreached(probability: float, count: int, head: ClassHead) -> tuple[float, str] | None:
    """Return the bound that the probability of one of `count` classes does not reach, and its name; None if it does."""
    if head == "sigmoid":
        return (0.5, "one half") if probability < 0.5 else None
    if probability < 1 / count:
        return 1 / count, "chance"
    return (IMPROBABLE, f"{IMPROBABLE:.0%}") if probability < IMPROBABLE else None


def _contrasted_with_itself(index: int, count: int) -> TargetError:
    """Return the error for a class, of `count`, that is contrasted with itself."""
    if count == 1:
        return TargetError("The model has one output, so there is no other class to contrast its class with.")
    return TargetError(f"Class {index} is contrasted with itself; name two classes.")


def _checked(classes: Tensor, free: Tensor, defaults: Tensor, count: int) -> Tensor:
    """Return checked classes (N,) of `count`, with the defaults where they are free."""
    beyond = ((classes < 0) | (classes >= count)) & ~free
    require(~beyond.any(), lambda: outside(int(classes[beyond][0]), count))
    # Clamped, because a check on a GPU is read later; a copy, because autograd cannot save an inference tensor.
    return torch.where(free, defaults, classes.clamp(0, count - 1))


def logits_of(output: Any) -> Tensor:
    """Return the logits (N, K) of an output: itself, ``.logits``, ``["logits"]``, or the only one.

    Raises:
        ModelOutputError: none, or several, of the tensors in the output look like logits.
    """
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        output = logits
    matrices = [
        value
        for value in tree_flatten(output)[0]
        if isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()
    ]
    if isinstance(output, Tensor) and output.ndim == 1:
        raise ModelOutputError(
            f"Expected logits of shape (N, K) from the model, found {tuple(output.shape)}; one logit is returned as "
            "(N, 1), for example without squeeze(1)."
        )
    if len(matrices) != 1:
        raise ModelOutputError(
            f"Expected logits of shape (N, K) from the model, found {len(matrices)} such tensors in its "
            f"{type(output).__name__}; wrap the model so that it returns its logits. (One that returns them at each "
            "position is a segmenter: head='segmentation'.)"
        )
    return matrices[0]


def mean_of_nearest(values: Tensor, targets: Tensor, count: int) -> Tensor:
    """Return (N,): the mean of the `count` values (N, K) of other classes nearest to those of the targets (N,).

    Raises:
        UnsuitableModelError: there is one class.
    """
    if values.shape[1] < 2:
        raise UnsuitableModelError(ONE_CLASS)
    distances = (values - values.gather(1, targets[:, None])).detach().abs()
    distances = distances.scatter(1, targets[:, None], torch.inf)
    indices = distances.topk(min(count, values.shape[1] - 1), dim=1, largest=False).indices
    return values.gather(1, indices).mean(dim=1)


def contrasts_of(ask: Ask, targets: Tensor, count: int) -> Tensor | None:
    """Return the classes (N,), of `count`, that target classes (N,) are contrasted with; None without any contrast.

    Raises:
        TargetError: a class is out of range, or contrasted with itself.
    """
    if ask.against is None:
        return None
    against = ask.against.to(targets.device, torch.int64, non_blocking=targets.is_cuda)
    contrasts = _checked(against, against == NO_CONTRAST, against, count)
    same = targets == contrasts
    require(~same.any(), lambda: _contrasted_with_itself(int(targets[same][0]), count))
    return contrasts


def head_of(classes: int) -> ClassHead:
    """Return the function from this many logits to probabilities, where none is declared."""
    return "sigmoid" if classes == 1 else "softmax"  # the softmax of one logit is always 1


def probabilities(logits: Tensor, head: ClassHead | None = None) -> Tensor:
    """Return the probabilities (..., K) of logits (..., K) under a head; None for that of `head_of`."""
    return logits.sigmoid() if (head or head_of(logits.shape[-1])) == "sigmoid" else logits.softmax(dim=-1)


def best(logits: NDArray[np.float32], count: int) -> list[int]:
    """Return the indices of the `count` largest logits (K,), the largest first."""
    order: list[int] = np.argsort(-logits, kind="stable")[:count].tolist()
    return order
