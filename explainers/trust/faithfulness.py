"""Faithfulness: scores of masked copies of the picture, in a few forward passes of one batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.choices import Fill
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.faithfulness import LEAST, Faithfulness, are_likely
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.trust.marking import blurred, mirrored, reach_of, resized, top_share, turned
from seewhy.explainers.trust.strangers import Strangers
from seewhy.explainers.trust.trial import Trial

Scorer = Callable[[Tensor, Tensor], Tensor]
"""Returns the scores (R,) of masked copies (R, C, H, W), given also the numbers (R,) of their pictures."""

STRANGER = Passes(2)
"""Forward passes for the map of another picture, per picture."""


def prove(
    model: AnyModel,
    images: Tensor,
    attributions: Sequence[Attribution],
    trial: Trial | None,
    ask: Ask = DEFAULT_ASK,
    progress: Progress = SILENT,
    strangers: Strangers | None = None,
    explainers: Sequence[Explainer] = (),
) -> list[Attribution]:
    r"""Return attributions with the `Faithfulness` of their maps.

    .. math::
        s = \frac{p(\text{keep}) - p(\text{drop})}{p}

    *keep* is the picture with everything hidden except the top share of the map, *drop* the picture with that share
    hidden, and :math:`p` the probability of the target in the whole picture (for segmenters, its mean over the region).
    Other scores (values, edges of boxes, functions, leads over a contrast) are divided by
    :math:`|p - p(\text{hidden})|`, the change of the score when the whole picture is hidden, so the units cancel.

    Args:
        model, images: those of the attributions.
        attributions: attributions of the same pictures and targets, by one or several methods; their masked copies
            share passes.
        trial: the parameters; None to return the attributions unchanged.
        ask: the question; only its function is used.
        progress: see `Progress`.
        strangers: maps of other pictures, one of which is tried on each picture, for a calibration; None for none.
        explainers: the methods of the attributions, for the expected sums of their maps.

    Raises:
        ModelOutputError: the model returns no outputs, or NaN.
    """
    if trial is None:
        return list(attributions)
    first = attributions[0]
    with pose(model, images, Ask(first.targets, first.against, ask.function), progress) as question:
        objective = question.objective(first.outputs)
        marks = [marked(question, part.maps, part.layers, trial.area) for part in attributions]
        are_probabilities = objective.are_probabilities
        blank = are_blank(first.maps)
        wholes = [objective.scores(objective.probabilities(part.outputs)) for part in attributions]
        kinds = are_probabilities, are_likely(wholes[0], are_probabilities)
        foreign = None if strangers is None else strangers.of(question.images, marks[0], blank, *kinds)
        scores = scores_of(question, _scorer(question, objective), marks, trial, are_probabilities, foreign)
        gaps = [_gap(question, objective, *pair) for pair in zip_longest(attributions, explainers)]
        return [
            replace(part, faithfulness=scores.faithfulness(number, trial, wholes[number], are_blank(part.maps), gap))
            for number, (part, gap) in enumerate(zip(attributions, gaps, strict=True))
        ]


class Scores(NamedTuple):
    """Scores of masked copies of N pictures.

    Attributes:
        parts: for each map (V, N): kept and dropped, and with `full` those of its copies.
        hidden: (0 or 1, N) of hidden pictures.
        stranger: (N,) kept minus dropped for the map of another picture; NaN without such a map; None if not tried.
        are_probabilities: (N,) bool.
    """

    parts: Sequence[Tensor]
    hidden: Tensor
    stranger: Tensor | None
    are_probabilities: Tensor

    def faithfulness(
        self, number: int, trial: Trial, whole: Tensor, are_blank: Tensor, gap: Tensor | None = None
    ) -> Faithfulness:
        """Return the faithfulness of one part.

        Args:
            number: number of the part.
            trial: the parameters.
            whole: (N,) scores of the pictures.
            are_blank: (N,) bool, whether each map is blank.
            gap: see `Faithfulness`.
        """
        part = self.parts[number]
        kept, dropped = part[::2], part[1::2]
        strangers = 0 if self.stranger is None else STRANGER.forwards
        return Faithfulness(
            area=trial.area,
            fill=trial.fill,
            whole=whole,
            kept=kept[0],
            dropped=dropped[0],
            turned_dropped=dropped[1] if trial.full else None,
            hidden=self.hidden[0] if len(self.hidden) else None,
            copies=(kept - dropped)[1:].T if trial.full else None,
            stranger=self.stranger,
            are_probabilities=self.are_probabilities,
            are_blank=are_blank,
            forwards=len(part) + len(self.hidden) + strangers + (gap is not None),
            gap=gap,
        )


def scores_of(
    question: Question,
    score: Scorer,
    marks: Sequence[Tensor],
    trial: Trial,
    are_probabilities: Tensor,
    foreign: tuple[Tensor, Tensor] | None = None,
) -> Scores:
    """Return the scores of masked copies of N pictures, in as many passes as memory requires.

    Args:
        question: the pictures, and the model.
        score: returns the scores of copies.
        marks: for each of several maps per picture, the marked pixels (N, H, W) bool.
        trial: the fill, and whether copies of the maps are tried.
        are_probabilities: (N,) bool; if one is false, hidden pictures are scored too.
        foreign: maps of other pictures to try, see `Strangers.of`.
    """
    nothing = torch.zeros_like(marks[0])[None][: int(not are_probabilities.all())]
    groups = [*(_copies(part, trial.full) for part in marks), nothing]
    groups.append(groups[-1][:0] if foreign is None else torch.stack([foreign[0], ~foreign[0]]))
    scores = _masked(question, score, torch.cat(groups), trial.fill)
    *parts, hidden, pair = torch.split(scores, [len(group) for group in groups])
    stranger = None if foreign is None else torch.where(foreign[1], pair[0] - pair[1], torch.nan)
    return Scores(parts, hidden, stranger, are_probabilities)


def _scorer(question: Question, objective: Objective) -> Scorer:
    """Return the function that scores copies by the objective of their pictures."""

    def score(copies: Tensor, numbers: Tensor) -> Tensor:
        part = objective.rows(numbers)
        return part.scores(part.probabilities(question.predict(copies)))

    return score


def _masked(question: Question, score: Scorer, visible: Tensor, fill: Fill) -> Tensor:
    """Return the scores (V, N) float32 of masked copies, given the visible pixels (V, N, H, W) bool."""
    hidden = filled(question.distinct_images, fill).expand_as(question.images)
    pictures = torch.arange(len(question.images), device=visible.device).repeat(len(visible))
    masks = visible.flatten(0, 1)[:, None]
    parts = []
    for rows in question.chunks(len(masks)):
        numbers = pictures[rows]
        sources = slice(1) if len(question.images) == 1 else numbers  # a single picture is not copied
        copies = torch.where(masks[rows], question.images[sources], hidden[sources])
        parts.append(score(copies, numbers))
    return torch.cat(parts).view(visible.shape[:2])


def filled(images: Tensor, fill: Fill) -> Tensor:
    """Return the replacement of the pixels of images (N, C, H, W)."""
    return blurred(images) if fill == "blur" else torch.zeros_like(images)


def marked(question: Question, maps: Tensor, layers: tuple[str, ...], area: float) -> Tensor:
    """Return (N, H, W) bool: the pixels of the model's input that maps (N, h, w) of layers mark."""
    height, width = question.images.shape[2:]
    return top_share(resized(maps, (height, width), reach_of(question.model, layers, maps)), area)


def are_blank(maps: Tensor) -> Tensor:
    """Return whether each map (N, h, w) has the same value everywhere: (N,) bool."""
    values = maps.flatten(1)
    return values.amax(1) == values.amin(1)


def _copies(marks: Tensor, full: bool) -> Tensor:
    """Return the visible pixels (V, N, H, W) of masked copies: keep and drop, and with `full` those of copies."""
    maps = [marks, turned(marks), mirrored(marks)] if full else [marks]
    return torch.stack([copy for part in maps for copy in (part, ~part)])


def _gap(
    question: Question, objective: Objective, attribution: Attribution, explainer: Explainer | None
) -> Tensor | None:
    """Return the relative differences (N,) between the sums of maps and the expected sums; None if there are none."""
    if explainer is None or not explainer.is_complete:
        return None
    origins = explainer.origins(question.images, question.model).to(question.images.dtype)
    expected = objective.scores(attribution.outputs) - objective.scores(question.predict(origins))
    return (attribution.maps.sum(dim=(1, 2)) - expected).abs() / expected.abs().clamp_min(LEAST)
