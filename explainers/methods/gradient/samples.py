"""Gradients at many pictures made of each picture asked about: noisy copies, points of a path."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.execution.chunks import pass_size, passes
from seewhy.explainers.methods.gradient.base import input_gradients

KINKS = "whether a rectifier whose input is zero but for rounding is open at one of the samples, which few values show"
"""What rounding can decide where gradients are taken at many pictures, one of which may lie so."""


class Sample(NamedTuple):
    """One picture made of a picture of the question.

    Attributes:
        picture: index of the picture that it is made of.
        image: (C, H, W) floating.
        factor: what the gradient at `image` is multiplied by, a number or (C, H, W).
    """

    picture: int
    image: Tensor
    factor: float | Tensor = 1.0


def gradient_terms(
    question: Question, objective: Objective, samples: Iterable[Sample], total: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield, for each sample, its picture and its factor times the gradient of the score there, (C, H, W) float32.

    As many samples share a pass as memory allows; only those are made at a time.

    Args:
        question: whose module is run, in its dtype.
        objective: of the question.
        samples: in the order in which the terms are wanted.
        total: how many there are.

    Raises:
        ModelOutputError: no gradient flows to the input.
    """
    source = iter(samples)
    size = pass_size(question.module, question.images, backward=True)
    for part in passes(total, size, question.progress):
        taken = list(islice(source, part.stop - part.start))
        images = torch.stack([sample.image for sample in taken]).to(question.images)
        pictures = torch.tensor([sample.picture for sample in taken], device=objective.targets.device)
        gradients, _, _ = input_gradients(question, images, objective.rows(pictures))
        for sample, gradient in zip(taken, gradients, strict=True):
            yield sample.picture, (gradient * sample.factor).float()


def maps_of_sums(
    question: Question, objective: Objective, samples: Iterable[Sample], total: int, maps: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the maps of the sums of each picture's terms, and show those of the sums so far.

    Args:
        question, objective, samples, total: as `gradient_terms`; also the errors.
        maps: makes maps (N, h, w) of sums (N, C, H, W) float32.
    """
    found = torch.zeros_like(question.images, dtype=torch.float32)
    for picture, term in gradient_terms(question, objective, samples, total):
        found[picture] += term
        question.progress.show(lambda: maps(found))
    return maps(found)
