"""Classification: one logit for each class, whose softmax, or the sigmoid of a single one, is its probability."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.objective import MOST_PROBABLE, NO_CONTRAST, Objective
from seewhy.explainers.core.task import Ask
from seewhy.explainers.errors import ModelOutputError, TargetError, near_matches
from seewhy.explainers.execution.deferred_checks import require
from seewhy.explainers.hooks.selection import logits_of

Head = Literal["softmax", "sigmoid"]
"""What makes probabilities of logits: the softmax of several, or the sigmoid of the only one."""


@dataclass(frozen=True)
class Classification:
    """Which of several classes a picture shows, or whether it shows the only one.

    Outputs are logits (N, K); a target is the index of a class.

    Attributes:
        labels: one per class; empty for a bare module, whose classes are called ``class 0``, ``class 1`` and so on.
    """

    labels: Sequence[str] = ()

    def outputs(self, raw: Any) -> Tensor:
        """Return the logits (N, K) in what the module returned.

        Raises:
            ModelOutputError: there are none.
        """
        logits = logits_of(raw)
        if logits.shape[1] < 1:
            raise ModelOutputError("The model returned logits for no class.")
        return logits

    def objective(self, outputs: Tensor, ask: Ask) -> "ClassObjective":
        """Return the classes that are explained, checked.

        Raises:
            TargetError: an index outside 0..K-1; or a class contrasted with itself.
        """
        count = outputs.shape[1]
        targets = outputs.detach().argmax(dim=1)
        if ask.targets is not None:
            chosen = ask.targets.to(outputs.device, torch.int64, non_blocking=outputs.is_cuda)
            targets = _checked(chosen, chosen == MOST_PROBABLE, targets, count)
        if ask.against is None:
            return ClassObjective(targets)
        against = ask.against.to(outputs.device, torch.int64, non_blocking=outputs.is_cuda)
        contrasts = _checked(against, against == NO_CONTRAST, against, count)
        same = targets == contrasts
        require(~same.any(), lambda: contrasted_with_itself(int(targets[same][0]), count))
        return ClassObjective(targets, contrasts)

    def target(self, target: int | str) -> int:
        """Return the index of a class; see `class_index`."""
        return class_index(target, self.labels)

    def describe(self, outputs: Tensor, targets: Sequence[int] = (), top: int = 5) -> "tuple[Prediction, ...]":
        """Return some classes of a picture with logits (K,), and then the `top` most probable ones."""
        logits = outputs.detach().float().cpu().numpy()
        return predictions(logits, self.labels, [*targets, *best(logits, top)])

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether logits (N, K) look like the outcome of a softmax, or of the sigmoid of one logit."""
        values = outputs.float()
        within = bool(((values >= 0) & (values <= 1)).all())
        return within and (values.shape[1] == 1 or bool((values.sum(dim=1) - 1).abs().max() < 1e-2))


@dataclass(frozen=True, eq=False)
class ClassObjective(Objective):
    """For each picture the logit of a class, or its lead over the logit of another one."""

    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the target's logit of each row of logits (N, K), less that of its contrast."""
        outputs = outputs.float()
        scores = outputs.gather(1, self.targets[:, None])[:, 0]
        if self.against is None:
            return scores
        others = outputs.gather(1, self.against.clamp_min(0)[:, None])[:, 0]
        return scores - torch.where(self.against == NO_CONTRAST, 0, others)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities (N, K) of logits (N, K)."""
        return probabilities(outputs.float())

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the logarithms (N, K) of `probabilities`."""
        outputs = outputs.float()
        is_single = head_of(outputs.shape[-1]) == "sigmoid"
        return functional.logsigmoid(outputs) if is_single else outputs.log_softmax(dim=-1)

    def nearest(self, outputs: Tensor, count: int) -> Tensor:
        """Return (N,): the mean logit of the `count` other classes whose logits are nearest to the target's.

        Raises:
            TargetError: the model has one class.
        """
        outputs = outputs.float()
        if outputs.shape[1] < 2:
            raise TargetError("The model has one class, and the method compares classes; use gradcam.")
        distances = (outputs - self.alone.scores(outputs)[:, None]).detach().abs()
        distances = distances.scatter(1, self.targets[:, None], torch.inf)
        indices = distances.topk(min(count, outputs.shape[1] - 1), dim=1, largest=False).indices
        return outputs.gather(1, indices).mean(dim=1)


@dataclass(frozen=True)
class Prediction:
    """One class with its probability.

    Attributes:
        index: class index.
        label: class label.
        probability: softmax over all classes, or the sigmoid of the only logit, in [0, 1].
        logit: as the model gave it.
    """

    index: int
    label: str
    probability: float
    logit: float


def class_index(target: int | str, labels: Sequence[str]) -> int:
    """Return the class that a user means.

    A string that equals a label is that label, case ignored unless it tells two labels apart (ImageNet has a
    dog named Cardigan and a cardigan); otherwise a string of digits is an index.

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
            listing = f"`seewhy predict PICTURE --top {len(labels)}` or GET /models/NAME lists the labels."
            raise TargetError(f"The model has no class {target!r}. {near_matches(name, labels) or listing}")
        target = int(name)
    if not 0 <= target < len(labels):
        raise outside(target, len(labels))
    return target


def outside(index: int, count: int) -> TargetError:
    """Return the error for an index that a model of so many classes lacks."""
    if count == 1:
        return TargetError(
            f"Class {index} is out of range: the model has one logit, class 0, whose probability is its sigmoid. What "
            "speaks against it has negative values with sign=signed."
        )
    return TargetError(f"Class {index} is out of range: the model has classes 0 to {count - 1}.")


def contrasted_with_itself(index: int, count: int) -> TargetError:
    """Return the error for a class, of so many, that is contrasted with itself."""
    if count == 1:
        return TargetError("The model has one logit, so there is no other class to contrast its class with.")
    return TargetError(f"Class {index} is contrasted with itself; name two classes.")


def _checked(classes: Tensor, free: Tensor, others: Tensor, count: int) -> Tensor:
    """Return classes, and others where they are free; none is an index that a model of so many classes lacks."""
    beyond = ((classes < 0) | (classes >= count)) & ~free
    require(~beyond.any(), lambda: outside(int(classes[beyond][0]), count))
    # Within bounds, for a condition on a GPU is looked at later; a copy, for autograd cannot keep an inference tensor.
    return torch.where(free, others, classes.clamp(0, count - 1))


def head_of(classes: int) -> Head:
    """Return what makes probabilities of so many logits."""
    return "sigmoid" if classes == 1 else "softmax"


def probabilities(logits: Tensor) -> Tensor:
    """Return the probabilities (..., K) of logits (..., K): their softmax, or the sigmoid of a single one."""
    return logits.sigmoid() if head_of(logits.shape[-1]) == "sigmoid" else logits.softmax(dim=-1)


def predictions(logits: NDArray[np.float32], labels: Sequence[str], indices: Iterable[int]) -> tuple[Prediction, ...]:
    """Return these classes of one picture with their probabilities.

    Args:
        logits: (K,).
        labels: K of them, or none.
        indices: the classes wanted, in order; see `best`.
    """
    likely = probabilities(torch.from_numpy(logits.astype(np.float64))).numpy()
    return tuple(
        Prediction(index, labels[index] if labels else f"class {index}", float(likely[index]), float(logits[index]))
        for index in indices
    )


def best(logits: NDArray[np.float32], count: int) -> list[int]:
    """Return the indices of the `count` largest logits (K,), the largest first."""
    order: list[int] = np.argsort(-logits, kind="stable")[:count].tolist()
    return order
