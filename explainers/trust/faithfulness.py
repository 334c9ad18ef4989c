"""Faithfulness by masked copies of the picture, a few forward passes in one batch."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import torch
from torch import Tensor, nn

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.faithfulness import LEAST, Faithfulness
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.pose import pose
from seewhy.explainers.trust.choices import Fill
from seewhy.explainers.trust.marking import WHOLE, blurred, mirrored, resized, top_share, turned
from seewhy.explainers.trust.strangers import Strangers
from seewhy.explainers.trust.trial import Trial

STRANGER = Passes(2)
"""Forward passes of the map of another picture, for each picture."""


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

    Here *keep* is the picture with all hidden but the top share of the map, *drop* the picture with that share hidden,
    and :math:`p` the probability of the target, or its mean over the region of a segmenter, in the whole picture. Other
    scores (values, edges of boxes, functions, leads over a contrast) are divided by :math:`|p - p(\text{hidden})|`,
    how far the score changes when the whole picture is hidden, so the units cancel.

    Args:
        model, images: those of the attributions.
        attributions: of the same pictures and targets, by one or several methods, whose masked copies share passes.
        trial: how the maps are tried; None to leave the attributions as they are.
        ask: what was asked, for its function.
        progress: see `Progress`.
        strangers: maps of other pictures, to try one on each picture, for a calibration; None for none.
        explainers: the methods of the attributions, for what their maps should sum to.

    Raises:
        ModelOutputError: the model returns no outputs, or NaN.
    """
    if trial is None:
        return list(attributions)
    first = attributions[0]
    with pose(model, images, Ask(first.targets, first.against, ask.function), progress) as question:
        objective = question.objective(first.outputs)
        marks = [_marks(question, attribution, trial.area) for attribution in attributions]
        foreign = None if strangers is None else strangers.of(question.images, marks[0], _are_blank(first))
        groups = [*(_copies(part, trial.full) for part in marks), _nothing(objective, marks[0])]
        groups.append(groups[-1][:0] if foreign is None else torch.stack([foreign.marks, ~foreign.marks]))
        scores = scores_of(question, objective, torch.cat(groups), trial.fill)
        *parts, hidden, pair = torch.split(scores, [len(group) for group in groups])
        stranger = None if foreign is None else torch.where(foreign.exist, pair[0] - pair[1], torch.nan)
        gaps = [_gap(question, objective, *pair) for pair in zip_longest(attributions, explainers)]
        return [
            replace(attribution, faithfulness=_faithfulness(trial, attribution, objective, part, hidden, stranger, gap))
            for attribution, part, gap in zip(attributions, parts, gaps, strict=True)
        ]


def scores_of(question: Question, objective: Objective, visible: Tensor, fill: Fill) -> Tensor:
    """Return the scores (V, N) float32 of masked copies of N pictures, in passes that memory allows.

    Args:
        question: the pictures, and the model.
        objective: of the pictures.
        visible: (V, N, H, W) bool, the pixels that each copy shows; the others are hidden.
        fill: what hides them.
    """
    hidden = filled(question.distinct_images, fill).expand_as(question.images)
    pictures = torch.arange(len(question.images), device=visible.device).repeat(len(visible))
    masks = visible.flatten(0, 1)[:, None]
    parts = []
    for rows in question.chunks(len(masks)):
        numbers = pictures[rows]
        these = slice(1) if len(question.images) == 1 else numbers  # a single picture is not copied
        copies = torch.where(masks[rows], question.images[these], hidden[these])
        part = objective.rows(numbers)
        parts.append(part.scores(part.probabilities(question.predict(copies))))
    return torch.cat(parts).view(visible.shape[:2])


def filled(images: Tensor, fill: Fill) -> Tensor:
    """Return what hides the pixels of images (N, C, H, W)."""
    return blurred(images) if fill == "blur" else torch.zeros_like(images)


def _marks(question: Question, attribution: Attribution, area: float) -> Tensor:
    """Return (N, H, W) bool: the pixels of the model's input that each map marks."""
    maps, model = attribution.maps, question.model
    size = maps.shape[1], maps.shape[2]
    reach = WHOLE if isinstance(model, nn.Module) else model.survey.reach(attribution.layers, size)
    height, width = question.images.shape[2:]
    return top_share(resized(maps, (height, width), reach), area)


def _copies(marks: Tensor, full: bool) -> Tensor:
    """Return the pixels (V, N, H, W) that each masked copy shows: keep and drop, of `full` for the map's copies too."""
    maps = [marks, turned(marks), mirrored(marks)] if full else [marks]
    return torch.stack([copy for part in maps for copy in (part, ~part)])


def _nothing(objective: Objective, marks: Tensor) -> Tensor:
    """Return masks (1, N, H, W) that show no pixel; none, (0, N, H, W), where all scores are probabilities."""
    return torch.zeros_like(marks)[None][: int(not objective.are_probabilities.all())]


def _gap(
    question: Question, objective: Objective, attribution: Attribution, explainer: Explainer | None
) -> Tensor | None:
    """Return by how much the sums of maps miss what they should be, as shares (N,) of that; None without a promise."""
    if explainer is None or not explainer.is_complete:
        return None
    origins = explainer.origins(question.images, question.model).to(question.images.dtype)
    expected = objective.scores(attribution.outputs) - objective.scores(question.predict(origins))
    return (attribution.maps.sum(dim=(1, 2)) - expected).abs() / expected.abs().clamp_min(LEAST)


def _are_blank(attribution: Attribution) -> Tensor:
    """Return which maps (N,) have one value everywhere."""
    values = attribution.maps.flatten(1)
    return values.amax(1) == values.amin(1)


def _faithfulness(
    trial: Trial,
    attribution: Attribution,
    objective: Objective,
    scores: Tensor,
    hidden: Tensor,
    stranger: Tensor | None,
    gap: Tensor | None,
) -> Faithfulness:
    """Return what the scores of masked copies (V, N), and those of hidden pictures (0 or 1, N), tell of maps."""
    kept, dropped = scores[::2], scores[1::2]
    return Faithfulness(
        area=trial.area,
        fill=trial.fill,
        whole=objective.scores(objective.probabilities(attribution.outputs)),
        kept=kept[0],
        dropped=dropped[0],
        turned_dropped=dropped[1] if trial.full else None,
        hidden=hidden[0] if len(hidden) else None,
        copies=(kept - dropped)[1:].T if trial.full else None,
        stranger=stranger,
        are_probabilities=objective.are_probabilities,
        are_blank=_are_blank(attribution),
        forwards=len(scores) + len(hidden) + (0 if stranger is None else STRANGER.forwards) + (gap is not None),
        gap=gap,
    )
