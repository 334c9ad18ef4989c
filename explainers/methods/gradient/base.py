"""Gradients of the score with respect to pictures, or to many samples made from each picture."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question, checked_finite
from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.execution.vjp import Vjp

KINKS = "whether a ReLU with an input of almost zero lets a gradient through, which affects few values"
"""What rounding can decide in methods with gradients at many pictures."""


def input_gradients(
    question: Question,
    images: Tensor,
    objective: Objective | None = None,
    scores: Callable[[Objective, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Objective, Tensor]:
    """Return gradients of the score with respect to pictures, from one forward and one backward pass.

    No parameter gets a gradient.

    Args:
        question: its module is run.
        images: (R, C, H, W): the question's own, or others made from them.
        objective: objective of the rows; None for that of the question's images.
        scores: returns scores (R,), given the objective and outputs (R, ...); None for the objective's own.

    Returns:
        Gradients (R, C, H, W) float32, the objective, and outputs (R, ...) float32.

    Raises:
        ModelOutputError: no gradient flows to the input; or the model returns no outputs.
        TargetError: a class that the model lacks.
    """
    vjp = question.vjp(images)
    if vjp is not None:
        return _accelerated(vjp, question, images, objective, scores)
    with torch.enable_grad():
        # The model's first layer may modify its input in place, which a leaf forbids: `run` passes on a clone.
        leaf = images.detach().requires_grad_()
        outputs = question.run(leaf)
        objective = objective or question.objective(outputs)
        if not outputs.requires_grad:
            raise ModelOutputError("No gradient flows from the logits to the input: the model switches them off.")
        score = objective.scores(outputs) if scores is None else scores(objective, outputs)
        (gradients,) = torch.autograd.grad(score.sum(), leaf, allow_unused=True)
    if gradients is None:
        raise ModelOutputError("No gradient flows from the logits to the input: the model detaches it.")
    return gradients.float(), objective, outputs.detach().float()


def _accelerated(
    vjp: Vjp,
    question: Question,
    images: Tensor,
    objective: Objective | None,
    scores: Callable[[Objective, Tensor], Tensor] | None,
) -> tuple[Tensor, Objective, Tensor]:
    """Return what `input_gradients` returns, without autograd except from the scores to the outputs."""
    outputs = images.new_zeros((len(images), *vjp.outputs_shape))  # any values do, because they decide nothing
    is_known = objective is not None or question.ask.is_independent
    if not is_known:
        outputs = question.predict(images)
    objective = objective or question.objective(outputs)
    if is_known and not (objective.is_linear and scores is None):
        outputs = question.predict(images)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        score = objective.scores(leaf) if scores is None else scores(objective, leaf)
        (seeds,) = torch.autograd.grad(score.sum(), leaf)
    outputs, gradients = vjp(images.detach().contiguous(), seeds.contiguous())
    return gradients, objective, checked_finite(outputs)


class Sample(NamedTuple):
    """A picture made from one of the question's.

    Attributes:
        picture: index of the question's picture.
        image: (C, H, W) floating.
        factor: factor of the gradient at `image`, a number or (C, H, W).
    """

    picture: int
    image: Tensor
    factor: float | Tensor = 1.0


def gradient_terms(
    question: Question, objective: Objective, samples: Iterable[Sample], total: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield, for each sample, the index of its picture, and factor times gradient of the score, (C, H, W) float32.

    As many samples as memory allows share a pass, and no others are in memory.

    Args:
        question: its module is run, in its dtype.
        objective: objective of the question.
        samples: in the order of the terms.
        total: number of samples.

    Raises:
        ModelOutputError: no gradient flows to the input.
    """
    source = iter(samples)
    for part in question.chunks(total, backward=True):
        batch = list(islice(source, part.stop - part.start))
        images = torch.stack([sample.image for sample in batch]).to(question.images)
        pictures = torch.tensor([sample.picture for sample in batch], device=objective.targets.device)
        gradients, _, _ = input_gradients(question, images, objective.rows(pictures))
        for sample, gradient in zip(batch, gradients, strict=True):
            yield sample.picture, (gradient * sample.factor).float()


def maps_of_sums(
    question: Question, samples: Iterable[Sample], count: int, maps: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Objective, Tensor]:
    """Return the maps of the sums of each picture's terms, the objective, and outputs (N, ...), for `answer`.

    The maps of the partial sums are shown after each term.

    Args:
        question, samples: as for `gradient_terms`, including the errors.
        count: number of samples of each picture.
        maps: returns maps (N, h, w) of sums (N, C, H, W) float32.
    """
    objective, outputs = question.plain()
    sums = torch.zeros_like(question.images, dtype=torch.float32)
    for picture, term in gradient_terms(question, objective, samples, len(sums) * count):
        sums[picture] += term
        question.progress.show(lambda: maps(sums))
    return maps(sums), objective, outputs
