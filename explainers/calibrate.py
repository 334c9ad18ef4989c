"""Scores of maps that cannot depend on the picture, for proofs."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import Any

import torch
from torch import Tensor

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.calibration import ENOUGH, Calibration, ContrastScores
from seewhy.explainers.core.choices import AREA, FILLS, LIKELY, Fill
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import OptionError, TargetError, counted
from seewhy.explainers.explain import Layers, Target, ask_of, explainers_of
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.trust.calibration import false_alarms, is_comparable
from seewhy.explainers.trust.faithfulness import prove
from seewhy.explainers.trust.strangers import Strangers, digest_of
from seewhy.explainers.trust.trial import Trial
from seewhy.explainers.view import View, ViewSource, check_series, prepare

LEAST_PICTURES = ceil(ENOUGH / 3)
"""Minimum number of pictures: each gives three scores at most."""

NULL = "rotated maps, mirrored maps and maps of other pictures"


def calibrate(
    model: Model,
    pictures: Iterable[ViewSource],
    method: str | None = None,
    layer: Layers | None = None,
    *,
    target: Target | None = None,
    proof_area: float = AREA,
    proof_fill: Fill | None = None,
    batch_size: int = 8,
    **options: Any,
) -> Calibration:
    """Score maps that do not depend on the picture, for ``explain(..., proof=True, proof_calibration=...)``.

    `Calibration.save` keeps the result in a file, for `Calibration.load` and ``seewhy explain --proof-calibration``.

    Three such maps are tried on each picture: its own map rotated by 180 degrees and mirrored, and the map of the
    previous picture. A proof grades a map by the share of these that it beats. Pictures must resemble those to be
    explained. Repeated ones are left out, as are those without the target, and those whose explained class has less
    than 30 % of the probability, because scores are shares of it. With a few dozen pictures, the comparison is rough.
    For a classifier, three maps of the contrast between the two most probable classes are tried too.

    Args:
        model: a `LoadedModel`.
        pictures: pictures as for `explain`.
        method, layer, options: as in `explain`, including the errors.
        target: as in `explain`, the same for all pictures, such as the class of a segmenter's regions; None for the
            default target of `explain`.
        proof_area: as in `explain`; a calibration is valid for proofs with the same value.
        proof_fill: as in `explain`; by default the calibration is valid for each fill, which takes up to twice as long.
        batch_size: pictures per pass.

    Raises:
        OptionError: too few pictures.
        TargetError: no picture has the target.
    """
    check_series(model, pictures, batch_size)
    entry = get_method(model.task.default_method if method is None else method)
    (explainer,) = explainers_of([entry], layer, options, model.module, calibrate)
    trials = [Trial(proof_area, fill, full=True) for fill in (FILLS if proof_fill is None else [proof_fill])]
    if isinstance(pictures, Sized):
        check_count(len(pictures))
    trial_rows = null_rows(model, explainer, pictures, trials, batch_size, ask_of(model, target))
    first, *others = [_calibration(model, *pair, target) for pair in zip(trials, trial_rows, strict=True)]
    return replace(first, others=tuple(others))


def _calibration(model: Model, trial: Trial, rows: Sequence["NullRow"], target: Target | None) -> Calibration:
    """Return the calibration of a trial from its rows; errors as in `calibrate`."""
    groups = [row.target.null_scores for row in rows if row.target.is_likely]
    count = sum(map(len, groups))
    if count < ENOUGH:
        left_out = len(rows) - len(groups)
        reason = f" {left_out} gave none: their explained class has a probability below {LIKELY:.0%}."
        unlikely = reason if left_out else ""
        which = "more pictures" if target is None else "more pictures that show the target"
        total = ceil(ENOUGH * len(rows) / count) if count else LEAST_PICTURES
        raise OptionError(
            f"{counted(len(rows), 'picture')} gave {counted(count, 'score')} to compare with, but {ENOUGH} are needed."
            f"{unlikely} Pass {which}, {'about' if count else 'at least'} {total} in all; each gives three scores at "
            "most, and a blank map gives none. Without scores, proof=full says whether a map does better than its own "
            "rotated and mirrored copies, but gives no grade.",
            "pictures",
        )
    result = calibration_of(model, trial, groups, bool(rows[0].target.are_probabilities))
    leads = contrast_scores([row.contrast for row in rows if row.contrast])
    name = target if isinstance(target, int | str) else "a target"
    return replace(
        result,
        null=NULL if target is None else f"{NULL}, of {name}",
        contrast=leads if len(leads.scores) >= ENOUGH else None,
    )


def check_count(count: int) -> None:
    """Refuse so few pictures that they cannot give enough scores.

    Raises:
        OptionError: too few.
    """
    if count < LEAST_PICTURES:
        raise OptionError(
            f"{counted(count, 'picture')} cannot give the {ENOUGH} scores that are needed, because each gives three at "
            f"most. Pass at least {LEAST_PICTURES}; those whose explained class has less than {LIKELY:.0%} give none.",
            "pictures",
        )


def calibration_of(
    model: Model, trial: Trial, groups: Sequence[Sequence[float]], are_probabilities: bool
) -> Calibration:
    """Return the calibration of scores, given those of each picture."""
    return Calibration(
        scores=tuple(sorted(score for group in groups for score in group)),
        null=NULL,
        model=model.identity.name,
        area=trial.area,
        fill=trial.fill,
        are_probabilities=are_probabilities,
        pictures=len(groups),
        false_alarms_at_95=false_alarms(groups),
        sha256=model.sha256,
        size=model.preprocess.size,
    )


def contrast_scores(groups: Sequence[Sequence[float]]) -> ContrastScores:
    """Return scores of contrasts, given those of each picture."""
    return ContrastScores(
        tuple(sorted(score for group in groups for score in group)), len(groups), false_alarms(groups)
    )


@dataclass(frozen=True, eq=False)
class NullRow:
    """Maps that do not depend on a picture, tried on it.

    Attributes:
        target: the faithfulness (N = 1) of the target's map, with its `null_scores`.
        contrast: the null scores of the contrast of the most probable class with the second; empty if the model does
            not classify, or the class is not likely.
    """

    target: Faithfulness
    contrast: Sequence[float]


def null_rows(
    model: Model,
    explainer: Explainer,
    pictures: Iterable[ViewSource],
    trials: Sequence[Trial],
    batch_size: int = 8,
    ask: Ask = DEFAULT_ASK,
) -> list[list[NullRow]]:
    """Return, for each trial, the scores on each picture that has the target.

    Args:
        model: a `LoadedModel`.
        explainer: explainer that draws the maps.
        pictures: pictures as for `explain`; each is also tried with the map of the previous one; repeated ones are left
            out.
        trials: the trials of each map, with copies.
        batch_size: pictures in a pass.
        ask: the question about each picture.

    Raises:
        TargetError: no picture has the target.
    """
    columns: list[list[NullRow]] = [[] for _ in trials]
    strangers = [(Strangers(are_distinct=True), Strangers(are_distinct=True)) for _ in trials]
    error: TargetError | None = None
    source = _distinct(prepare(model, picture) for picture in pictures)
    while batch := list(islice(source, batch_size)):
        for part in _explained(model, explainer, batch, ask):
            if isinstance(part, TargetError):
                error = part
                continue
            images, attribution = part
            lead = _lead(model, explainer, images, attribution)
            for rows, trial, (of_targets, of_leads) in zip(columns, trials, strangers, strict=True):
                (proved,) = prove(model, images, [attribution], trial, ask, strangers=of_targets)
                contrasts = _contrasts(model, images, lead, trial, of_leads)
                targets = [row.faithfulness for row in proved.rows() if row.faithfulness]
                rows += [NullRow(*pair) for pair in zip(targets, contrasts, strict=True)]
    if error and not any(columns):
        raise error
    return columns


def _explained(
    model: Model, explainer: Explainer, views: Sequence[View], ask: Ask
) -> list[tuple[Tensor, Attribution] | TargetError]:
    """Explain pictures in one batch; if one lacks the target, one by one, so that it fails alone."""
    images = torch.stack([view.image for view in views]).to(model.device)
    try:
        asks = [ask.placed(view.geometry) for view in views]
        return [(images, explainer.explain(model, images, Ask.stacked(asks)))]
    except TargetError as error:
        if len(views) == 1:
            return [error]
        return [part for view in views for part in _explained(model, explainer, [view], ask)]


def _lead(model: Model, explainer: Explainer, images: Tensor, attribution: Attribution) -> Attribution | None:
    """Return the maps of the contrast of each picture's most probable class with the second; None without classes."""
    outputs = attribution.outputs
    if not isinstance(model.task, Classification) or outputs.shape[1] == 1:
        return None
    best, second = outputs.topk(2).indices.T
    return explainer.explain(model, images, Ask(best, second))


def _contrasts(
    model: Model, images: Tensor, lead: Attribution | None, trial: Trial, strangers: Strangers
) -> list[Sequence[float]]:
    """Return the null scores of each picture's contrast; empty ones without contrasts."""
    if lead is None:
        return [()] * len(images)
    (proved,) = prove(model, images, [lead], trial, strangers=strangers)
    return [
        row.faithfulness.null_scores if row.faithfulness and is_comparable(model.task, row) else ()
        for row in proved.rows()
    ]


def _distinct(views: Iterable[View]) -> Iterator[View]:
    """Yield the view of each picture, but only once."""
    digests: set[bytes] = set()
    for view in views:
        digest = digest_of(view.image)
        if digest not in digests:
            digests.add(digest)
            yield view
