"""Gradients of the score with respect to pictures: of the question, or many samples made of each of them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.execution.chunks import pass_size, passes

KINKS = "whether a rectifier whose input is zero but for rounding is open at one of the samples, which few values show"
"""What rounding can decide where gradients are taken at many pictures."""


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
        images: (R, C, H, W): the question's own, or others made of them.
        objective: of the rows; None for that of the question's own images.
        scores: makes scores (R,) of the objective and outputs (R, ...); None for the objective's own.

    Returns:
        Gradients (R, C, H, W) float32, the objective, and outputs (R, ...) float32.

    Raises:
        ModelOutputError: no gradient flows to the input; or the model returns no outputs.
        TargetError: a class that the model lacks.
    """
    with torch.enable_grad():
        # A leaf of autograd must not be modified in place, as the model's first layer may do: `run` makes a clone.
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


class Sample(NamedTuple):
    """A picture made of one of the question's.

    Attributes:
        picture: index of the question's picture.
        image: (C, H, W) floating.
        factor: of the gradient at `image`, a number or (C, H, W).
    """

    picture: int
    image: Tensor
    factor: float | Tensor = 1.0


def gradient_terms(
    question: Question, objective: Objective, samples: Iterable[Sample], total: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield, for each sample, the index of its picture, and factor times gradient of the score, (C, H, W) float32.

    As many samples share a pass as memory allows; only these are in memory at a time.

    Args:
        question: its module is run, in its dtype.
        objective: of the question.
        samples: in the order of the terms.
        total: how many samples there are.

    Raises:
        ModelOutputError: no gradient flows to the input.
    """
    source = iter(samples)
    size = pass_size(question.module, question.images, backward=True)
    for part in passes(total, size, question.progress):
        batch = list(islice(source, part.stop - part.start))
        images = torch.stack([sample.image for sample in batch]).to(question.images)
        pictures = torch.tensor([sample.picture for sample in batch], device=objective.targets.device)
        gradients, _, _ = input_gradients(question, images, objective.rows(pictures))
        for sample, gradient in zip(batch, gradients, strict=True):
            yield sample.picture, (gradient * sample.factor).float()


def maps_of_sums(
    question: Question, objective: Objective, samples: Iterable[Sample], total: int, maps: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the maps of the sums of each picture's terms; after each term, show the maps of the sums so far.

    Args:
        question, objective, samples, total: as for `gradient_terms`; also the errors.
        maps: makes maps (N, h, w) of sums (N, C, H, W) float32.
    """
    sums = torch.zeros_like(question.images, dtype=torch.float32)
    for picture, term in gradient_terms(question, objective, samples, total):
        sums[picture] += term
        question.progress.show(lambda: maps(sums))
    return maps(sums)
