"""Calibration: how maps that cannot know the picture fare with a model."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from seewhy.explainers.trust.choices import Fill

ENOUGH = 100
"""Least number of scores that a comparison is made with."""


@dataclass(frozen=True)
class Comparison:
    """How a map fares beside maps that cannot know the picture.

    Attributes:
        beats: one less the rank p-value (1 + scores at least as high) / (1 + all scores), in [0, 1).
        of: number of maps that it is compared with.
        null: what these maps are.
        model: whose they are.
        pictures: number of their pictures; None where that is not known.
        false_alarms_at_95: share of such maps, on other pictures, that beat 95 percent; None where it was not measured.
    """

    beats: float
    of: int
    null: str
    model: str
    pictures: int | None
    false_alarms_at_95: float | None


@dataclass(frozen=True)
class Calibration:
    """Scores of maps that cannot know the picture, of one model and trial; see `calibrate`.

    Attributes:
        scores: in ascending order.
        null, model, pictures, false_alarms_at_95: as of `Comparison`.
        area, fill: of the trial.
        are_probabilities: whether they are of probabilities; scores of other units are compared with their like.
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
        """Return how a map with this score fares; None if there are fewer than `ENOUGH` to compare with."""
        count = len(self.scores)
        if count < ENOUGH or is_probability != self.are_probabilities:
            return None
        beats = _beats(self.scores, score)
        return Comparison(beats, count, self.null, self.model, self.pictures, self.false_alarms_at_95)


def false_alarms(groups: Sequence[Sequence[float]], level: float = 0.95) -> float | None:
    """Return the share of null scores that beat `level` of those of the other pictures; None without any.

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
    """Return one less the rank p-value of a score among others in ascending order."""
    return bisect_left(scores, score) / (1 + len(scores))
