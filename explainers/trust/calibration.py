"""Calibration: scores of maps that do not depend on the picture, for a model."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from seewhy.explainers.trust.choices import Fill

ENOUGH = 100
"""Minimum number of scores for a comparison."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of a map with maps that do not depend on the picture.

    Attributes:
        beats: one minus the rank p-value (1 + scores at least as high) / (1 + all scores), in [0, 1).
        of: number of these maps.
        null: description of these maps.
        model: name of the model.
        pictures: number of their pictures; None if unknown.
        false_alarms_at_95: share of such maps, on other pictures, that beat 95 percent; None if not measured.
    """

    beats: float
    of: int
    null: str
    model: str
    pictures: int | None
    false_alarms_at_95: float | None


@dataclass(frozen=True)
class Calibration:
    """Scores of maps that do not depend on the picture, for one model and trial; see `calibrate`.

    Attributes:
        scores: in ascending order.
        null, model, pictures, false_alarms_at_95: as in `Comparison`.
        area, fill: of the trial.
        are_probabilities: whether the scores are of probabilities; other scores are compared with scores of their kind.
    """

    scores: tuple[float, ...]
    null: str
    model: str
    area: float
    fill: Fill
    are_probabilities: bool = True
    pictures: int | None = None
    false_alarms_at_95: float | None = None

    def compared(self, score: float, is_probability: bool = True) -> Comparison | None:
        """Return the comparison of a map with this score; None if there are fewer than `ENOUGH` scores."""
        count = len(self.scores)
        if count < ENOUGH or is_probability != self.are_probabilities:
            return None
        beats = _beats(self.scores, score)
        return Comparison(beats, count, self.null, self.model, self.pictures, self.false_alarms_at_95)


def false_alarms(groups: Sequence[Sequence[float]], level: float = 0.95) -> float | None:
    """Return the share of null scores that beat `level` of those of the other pictures; None without scores.

    Args:
        groups: the scores of each picture.
        level: share to beat.
    """
    alarms = []
    for number, group in enumerate(groups):
        null = sorted(score for place, rest in enumerate(groups) if place != number for score in rest)
        alarms += [_beats(null, score) >= level for score in group]
    return sum(alarms) / len(alarms) if alarms else None


def _beats(scores: Sequence[float], score: float) -> float:
    """Return one minus the rank p-value of a score among others in ascending order."""
    return bisect_left(scores, score) / (1 + len(scores))
