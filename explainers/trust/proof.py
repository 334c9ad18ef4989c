"""Proofs: how far a heatmap can be trusted, for people and programs."""

from collections.abc import Collection
from dataclasses import dataclass
from math import floor
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from seewhy.explainers.core.calibration import Calibration, Comparison
from seewhy.explainers.core.choices import LIKELY, Fill, verdict_of
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.faithfulness import LEAST, Faithfulness
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.trust.marking import resized
from seewhy.explainers.trust.sanity import Sanity
from seewhy.explainers.trust.sentences import DECISIVE, LEAST_LEAD, UNMOVED, Subject, keeps_lead, sentence_of

Grade = Literal["supported", "partly supported", "spread", "not supported", "blank"]

WarningCode = Literal[
    "evidence-at-border",
    "same-for-every-class",
    "ignores-the-model",
    "improbable-target",
    "blank-map",
    "crop-hides",
    "fill-hides-little",
]

SUPPORTED, PARTLY = 0.95, 0.8
"""Share of the maps that do not depend on the picture that a map must beat, for the two best grades."""

LEAST_EFFECT = 0.05
"""Minimum score of these grades: below it, the marked part matters hardly more than the rest, whatever other maps
do."""

SPREAD = 0.5
"""At most this share of the score remains without the marked part if other maps do as well but the part matters."""

AT_BORDER = 0.4
"""Maximum mass at the border without a warning; a uniform map has 0.265."""

HIDDEN = 0.25
"""Maximum share of the picture that may be cropped away without a warning."""

LITTLE = 0.1
"""Below this probability, there is hardly any evidence for an improbable target."""

KEPT = 0.5
"""Least share of a contrast without a verdict: with everything hidden, so much of it is left."""

MOST_SCORE = 10
"""Maximum magnitude of the score of a value with a verdict: beyond it, the whole picture has hardly any effect."""

_GRID = 224
"""Side of the grid for measuring the mass at the border."""

_BORDER = _GRID // 14
"""Width of the border on this grid."""


@dataclass(frozen=True)
class Measurement:
    """The model's scores of the whole picture and of parts of it; see `Faithfulness`.

    Attributes:
        area: share of the model's input that is marked.
        fill: replacement of hidden pixels.
        probability: probability of the target in the whole picture; None if the explained score is not a probability.
        value: the explained value, in its own units, even if its decrease is explained; None if it is a probability.
        kept: the probability, or the value, with everything hidden except the marked part.
        dropped: with the marked part hidden.
        turned_dropped: with the same shape, rotated by 180 degrees, hidden; None unless ``proof="full"``.
        hidden: the value with everything hidden; None for probabilities.
        score: kept minus dropped, divided by the probability, or by the difference of `value` and `hidden`; of the
            negative values if the decrease is explained.
    """

    area: float
    fill: Fill
    probability: float | None
    value: float | None
    kept: float
    dropped: float
    turned_dropped: float | None
    hidden: float | None
    score: float


@dataclass(frozen=True)
class Copies:
    """Comparison of the map with its own rotated and mirrored copies.

    Attributes:
        beaten: share of the copies that the map beats by at least `LEAST_LEAD`.
        lead: its score minus that of the best copy.
    """

    beaten: float
    lead: float


@dataclass(frozen=True)
class Shape:
    """Statistics of the map.

    Attributes:
        border_mass: share of its positive mass in the outer fourteenth of each side of the model's input; None
            without positive mass.
        unseen: share of the picture that the model does not see.
        gini: Gini coefficient of its magnitudes: 0 for a uniform map, close to 1 for a single pixel; None for a map of
            zeros.
    """

    border_mass: float | None
    unseen: float
    gini: float | None


@dataclass(frozen=True)
class Proof:
    """How far a heatmap can be trusted. A proof is about this picture and this fill, not about truth.

    Attributes:
        grade: the verdict; None without maps to compare with, if it depends on them.
        sentence: the verdict for people, in one sentence.
        faithfulness: scores of parts of the picture; None for a blank map.
        copies: comparison with copies of the map; None unless ``proof="full"``.
        calibration: comparison with maps that do not depend on the picture; None if there are too few.
        sanity: sanity of the method on this network; None if not measured.
        shape: statistics of the map.
        completeness_gap: relative difference between the sum of the map and its expected sum; None if the method has
            no expected sum.
        warnings: codes of reasons not to trust the map, or to trust it less.
        cost: passes of the model for the proof.
    """

    grade: Grade | None
    sentence: str
    faithfulness: Measurement | None
    copies: Copies | None
    calibration: Comparison | None
    sanity: Sanity | None
    shape: Shape
    completeness_gap: float | None
    warnings: tuple[WarningCode, ...]
    cost: Passes

    @property
    def verdict(self) -> str:
        """The grade for people: ``inconclusive`` if it only shows that the fill hides too little, or ``not graded``."""
        return verdict_of(self.grade, self.warnings)

    @property
    def summary(self) -> str:
        """One line of ASCII: ``supported; score=0.50; beats=0.99``, and ``copies=1.00`` of a full proof."""
        parts: list[str] = [self.grade or "ungraded"]
        if self.faithfulness:
            parts.append(f"score={self.faithfulness.score:z.2f}")
        if self.calibration:
            parts.append(f"beats={floor(100 * self.calibration.beats) / 100:.2f}")  # never 1
        if self.copies:
            parts.append(f"copies={self.copies.beaten:.2f}")
        return "; ".join(parts)


def proof_of(
    faithfulness: Faithfulness,
    values: NDArray[np.float32],
    geometry: Geometry,
    subject: Subject,
    codes: Collection[str] = (),
    calibration: Calibration | None = None,
    sanity: Sanity | None = None,
    discriminates: bool = True,
) -> Proof:
    """Return the proof of one map.

    Args:
        faithfulness: faithfulness of the map (N = 1), on the CPU.
        values: (h, w), the map.
        geometry: geometry of the picture, with the reach of the map's cells.
        subject: the explained target.
        codes: codes of the target's diagnostics, and same-for-every-class if the method does not depend on the class.
        calibration: calibration of the model; one of another kind of score is ignored.
        sanity: sanity of the method on the model.
        discriminates: whether the method's maps depend on the class.
    """
    is_blank = bool(faithfulness.are_blank) or geometry.pixels == 1
    measurement = measurement_of(faithfulness, subject)
    count: int | None = 0 if calibration is None else len(calibration.scores)
    if calibration is not None and calibration.are_probabilities != bool(faithfulness.are_probabilities):
        calibration = count = None
    comparison = None if calibration is None or is_blank else calibration.compared(_comparable_score(measurement))
    as_well = None if comparison is None or comparison.beats >= SUPPORTED else 1 - comparison.beats
    is_common = as_well is not None and as_well > 1 - PARTLY
    shape = shape_of(values, geometry)
    hides_little = not is_blank and _hides_little(measurement, subject)
    warnings = _warnings(shape, sanity, discriminates, is_blank, hides_little, codes)
    without, alone = (float(faithfulness.left(score)) for score in (faithfulness.dropped, faithfulness.kept))
    grade = "blank" if is_blank else grade_of(measurement, without, alone, comparison, warnings)
    is_improbable = _is_improbable(measurement, warnings)
    copies = None if is_blank else _copies(faithfulness)
    return Proof(
        grade=grade,
        sentence=sentence_of(
            grade,
            faithfulness,
            subject,
            copies.lead if copies else None,
            count,
            is_improbable,
            as_well,
            is_common,
            hides_little,
        ),
        faithfulness=None if is_blank else measurement,
        copies=copies,
        calibration=comparison,
        sanity=sanity,
        shape=shape,
        completeness_gap=None if faithfulness.gap is None else float(faithfulness.gap),
        warnings=warnings,
        cost=Passes(faithfulness.forwards),
    )


def grade_of(
    measurement: Measurement,
    without: float,
    alone: float,
    comparison: Comparison | None,
    warnings: Collection[WarningCode] = (),
) -> Grade | None:
    """Return the grade of a map that is not blank; None without a comparison, unless the target is improbable.

    Args:
        measurement: what was measured.
        without: share of the score that is left without the marked part, see `Faithfulness.left`.
        alone: the same of the marked part alone.
        comparison: comparison with unrelated maps.
        warnings: codes of the proof's warnings.
    """
    if _is_improbable(measurement, warnings):
        return "not supported"
    if comparison is None:
        return None
    if "fill-hides-little" in warnings:
        return "not supported"
    is_doubtful = bool({"same-for-every-class", "ignores-the-model", "improbable-target"}.intersection(warnings))
    matters = _comparable_score(measurement) >= LEAST_EFFECT
    if matters and comparison.beats >= SUPPORTED and not is_doubtful:
        return "supported"
    if matters and comparison.beats >= PARTLY:
        return "partly supported"
    if without > SPREAD:
        return "not supported"
    if alone > 1 - DECISIVE:
        return "partly supported"
    return "spread" if measurement.probability is not None else "not supported"


def _comparable_score(measurement: Measurement) -> float:
    """Return the score that is compared with others.

    For a target that is not likely, parts count no more than the whole picture: a part may give it many times its small
    probability, and so a score of any size, even if the probability rises without the marked part.
    """
    whole = measurement.probability
    if whole is None or whole >= LIKELY:
        return measurement.score
    return (min(measurement.kept, whole) - min(measurement.dropped, whole)) / max(whole, LEAST)


def _is_improbable(measurement: Measurement, warnings: Collection[WarningCode]) -> bool:
    """Whether the target is so improbable that there is hardly anything to explain, and shares of it mean nothing."""
    probability = measurement.probability
    return "improbable-target" in warnings and probability is not None and probability < LITTLE


def _hides_little(measurement: Measurement, subject: Subject) -> bool:
    """Whether hiding changes so little that no part can be tested.

    It does if a probability or the lead of a contrast hardly changes, whichever part is hidden, or if a value hardly
    changes when everything is hidden. A contrast must lose at least half of its lead then: zero means that no class
    leads.
    """
    if measurement.probability is not None:
        least = min(measurement.kept, measurement.dropped)
        return measurement.probability >= LIKELY and least >= UNMOVED * measurement.probability
    whole, hidden = measurement.value, measurement.hidden
    if whole is None or hidden is None:
        return False
    is_kept = whole * hidden >= KEPT * whole**2 > 0 or keeps_lead(whole, measurement.kept, measurement.dropped)
    return (subject.is_contrast and is_kept) or abs(measurement.score) > MOST_SCORE


def measurement_of(faithfulness: Faithfulness, subject: Subject) -> Measurement:
    """Return the measurement of one map (N = 1)."""
    is_probability = bool(faithfulness.are_probabilities)
    whole, turned, hidden = subject.said(faithfulness.whole), faithfulness.turned_dropped, faithfulness.hidden
    return Measurement(
        area=faithfulness.area,
        fill=faithfulness.fill,
        probability=whole if is_probability else None,
        value=None if is_probability else whole,
        kept=subject.said(faithfulness.kept),
        dropped=subject.said(faithfulness.dropped),
        turned_dropped=None if turned is None else subject.said(turned),
        hidden=None if hidden is None or is_probability else subject.said(hidden),
        score=float(faithfulness.score),
    )


def shape_of(values: NDArray[np.float32], geometry: Geometry) -> Shape:
    """Return statistics of a map (h, w)."""
    sizes = np.sort(np.abs(values), axis=None).astype(np.float64)
    total = sizes.sum()
    ranks = np.arange(1, sizes.size + 1)
    gini = float(((2 * ranks - sizes.size - 1) * sizes).sum() / (sizes.size * total)) if total else None
    mass = _mass(values, geometry)
    whole = float(mass.sum())
    inner = float(mass[_BORDER:-_BORDER, _BORDER:-_BORDER].sum())
    unseen = 1 - geometry.pixels / (geometry.width * geometry.height)
    return Shape((whole - inner) / whole if whole else None, unseen, gini)


def reaches_cut(values: NDArray[np.float32], geometry: Geometry) -> bool:
    """Return whether a map (h, w) is denser than average at a side beyond which most of the picture is cut off."""
    mass = _mass(values, geometry)
    left, top, right, bottom = geometry.box
    if (right - left) / geometry.width > (bottom - top) / geometry.height:
        mass = mass.T
    densest = max(float(mass[:, :_BORDER].sum()), float(mass[:, -_BORDER:].sum()))
    return densest * _GRID / _BORDER > float(mass.sum())


def _mass(values: NDArray[np.float32], geometry: Geometry) -> torch.Tensor:
    """Return the positive part of a map (h, w) on a grid over the model's input, float64."""
    return resized(torch.from_numpy(np.array(values))[None], (_GRID, _GRID), geometry.reach)[0].clamp_min(0).double()


def _copies(faithfulness: Faithfulness) -> Copies | None:
    scores = faithfulness.copy_scores
    if scores is None:
        return None
    leads = faithfulness.score[:, None] - scores
    return Copies(float((leads >= LEAST_LEAD).double().mean()), float(leads.min()))


def _warnings(
    shape: Shape,
    sanity: Sanity | None,
    discriminates: bool,
    is_blank: bool,
    hides_little: bool,
    codes: Collection[str],
) -> tuple[WarningCode, ...]:
    is_warned: dict[WarningCode, bool] = {
        "evidence-at-border": (shape.border_mass or 0) > AT_BORDER,
        "same-for-every-class": not discriminates or (sanity is not None and sanity.is_same_for_every_class),
        "ignores-the-model": sanity is not None and sanity.ignores_the_model,
        "improbable-target": "improbable-target" in codes,
        "blank-map": is_blank,
        "crop-hides": shape.unseen > HIDDEN,
        "fill-hides-little": hides_little,
    }
    return tuple(code for code, holds in is_warned.items() if holds)
