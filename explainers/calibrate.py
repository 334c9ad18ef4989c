"""Scores of maps that cannot depend on the picture, for proofs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.calibration import ENOUGH, Calibration, ContrastScores
from seewhy.explainers.core.choices import AREA, Fill
from seewhy.explainers.core.faithfulness import LIKELY, Faithfulness
from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import OptionError
from seewhy.explainers.explain import Layers, explainers_of
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.trust.calibration import false_alarms
from seewhy.explainers.trust.faithfulness import prove
from seewhy.explainers.trust.strangers import Strangers, digest_of
from seewhy.explainers.trust.trial import Trial
from seewhy.explainers.view import ViewSource, check_series, prepare

NULL = "rotated maps, mirrored maps and maps of other pictures"


def calibrate(
    model: Model,
    pictures: Iterable[ViewSource],
    method: str | None = None,
    layer: Layers | None = None,
    *,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    batch_size: int = 8,
    **options: Any,
) -> Calibration:
    """Score maps that do not depend on the picture, for ``explain(..., proof=True, proof_calibration=...)``.

    `Calibration.save` keeps the result in a file, for `Calibration.load` and ``seewhy explain --proof-calibration``.

    Three such maps are tried on each picture: its own map rotated by 180 degrees and mirrored, and the map of the
    previous picture. A proof grades a map by the share of these that it beats. Repeated pictures are left out. Pictures
    must resemble those to be explained; those whose explained class has less than 30 % of the probability are left out
    too, as scores are shares of it. With a few dozen pictures, the comparison is rough. Of a classifier, three maps
    of the contrast of the two most probable classes are tried too.

    Args:
        model: a `LoadedModel`.
        pictures: what `explain` takes.
        method, layer, options: of the maps, as `explain`; also the errors.
        proof_area, proof_fill: as `explain`; a calibration serves proofs of the same ones.
        batch_size: pictures in a pass.

    Raises:
        OptionError: too few pictures.
    """
    check_series(model, pictures, batch_size)
    (explainer,) = explainers_of([get_method(method or model.task.default_method)], layer, options, model.module)
    trial = Trial(proof_area, proof_fill, full=True)
    rows, contrasts = null_rows(model, explainer, pictures, trial, batch_size)
    groups = [row.null_scores for row in rows if row.is_likely]
    count = sum(map(len, groups))
    if count < ENOUGH:
        left_out = len(rows) - len(groups)
        unlikely = f", {left_out} of them none, with less than {LIKELY:.0%} for the explained class" if left_out else ""
        raise OptionError(
            f"{len(rows)} pictures give {count} scores to compare with{unlikely}, but {ENOUGH} are needed; pass more "
            "pictures, which give three scores each, or fewer if maps are blank.",
            "pictures",
        )
    result = calibration_of(model, trial, groups, bool(rows[0].are_probabilities))
    known = [lead.null_scores for row, lead in zip(rows, contrasts, strict=False) if row.is_likely]
    leads = contrast_scores(known)
    return replace(result, contrast=leads if len(leads.scores) >= ENOUGH else None)


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


def null_rows(
    model: Model, explainer: Explainer, pictures: Iterable[ViewSource], trial: Trial, batch_size: int = 8
) -> tuple[list[Faithfulness], list[Faithfulness]]:
    """Return the faithfulness (N = 1) of each picture's map, with its `null_scores`, and the same of its contrast.

    A classifier's contrast is that of the most probable class with the second; for others there is none.

    Args:
        model: a `LoadedModel`.
        explainer: of the maps.
        pictures: what `explain` takes; each is also tried with the map of the one before it; repeated ones are left
            out.
        trial: how they are tried, with copies.
        batch_size: pictures in a pass.
    """
    parts: list[tuple[Strangers, list[Faithfulness]]] = [(Strangers(are_distinct=True), []) for _ in range(2)]
    source = _distinct(prepare(model, picture).image for picture in pictures)
    while batch := list(islice(source, batch_size)):
        images = torch.stack(batch).to(model.device)
        attributions = [explainer.explain(model, images)]
        targets, outputs = attributions[0].targets, attributions[0].outputs
        if isinstance(model.task, Classification) and isinstance(targets, Tensor) and outputs.shape[1] > 1:
            second = outputs.scatter(1, targets[:, None], -torch.inf).argmax(dim=1)
            attributions.append(explainer.explain(model, images, Ask(targets, second)))
        for (strangers, rows), attribution in zip(parts, attributions, strict=False):
            (attribution,) = prove(model, images, [attribution], trial, strangers=strangers)
            rows += [] if attribution.faithfulness is None else attribution.faithfulness.rows()
    (_, rows), (_, contrasts) = parts
    return rows, contrasts


def _distinct(images: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield pictures (C, H, W), but each only once."""
    seen: set[bytes] = set()
    for image in images:
        digest = digest_of(image)
        if digest not in seen:
            seen.add(digest)
            yield image
