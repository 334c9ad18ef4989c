"""Calibration: scores of maps that do not depend on the picture, for a model."""

import json
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from seewhy.explainers.core.model import Model
from seewhy.explainers.errors import OptionError
from seewhy.explainers.trust.choices import Fill
from seewhy.explainers.trust.trial import Trial

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
        sha256: of the model's weights file, hexadecimal; None if unknown.
        size: height and width of the model's input; None if unknown.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    scores: tuple[FiniteFloat, ...]
    null: str
    model: str
    area: float
    fill: Fill
    are_probabilities: bool = True
    pictures: int | None = None
    false_alarms_at_95: float | None = None
    sha256: str | None = None
    size: tuple[int, int] | None = None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file, which `load` reads, and return its path.

        Raises:
            OSError: it cannot be written.
        """
        file = Path(path)
        file.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        return file

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Calibration":
        """Read a file of `save`.

        Raises:
            OptionError: it is no such file.
            OSError: it cannot be read.
        """
        try:
            read = _FILE.validate_json(Path(path).read_bytes())
        except ValidationError as error:
            raise OptionError(
                f"{path} is not a calibration; `seewhy calibrate` and `Calibration.save` write one.",
                "proof_calibration",
            ) from error
        return replace(read, scores=tuple(sorted(read.scores)))

    def check(self, model: Model, trial: Trial) -> None:
        """Refuse to grade maps of a model if this is not for them.

        Raises:
            OptionError: it is for another area or fill; or for another model, as far as name, size of the input and
                weights file are known; or it has too few scores.
        """
        if len(self.scores) < ENOUGH:
            raise OptionError(
                f"The calibration has {len(self.scores)} scores, but {ENOUGH} are needed; make one with more pictures.",
                "proof_calibration",
            )
        if (self.area, self.fill) != (trial.area, trial.fill):
            raise OptionError(
                f"The calibration was made with proof_area={self.area:g} and proof_fill={self.fill!r}; use the same "
                "values here, or another calibration.",
                "proof_calibration",
            )
        for what, value, wanted in (
            ("model", self.model or None, model.identity.name),
            ("input size", self.size, model.preprocess.size),
            ("SHA-256 of the weights", self.sha256, model.sha256),
        ):
            if None not in (value, wanted) and value != wanted:
                raise OptionError(
                    f"The calibration was made for another model ({what} {value}, not {wanted}); make one for this "
                    "model with `calibrate`.",
                    "proof_calibration",
                )

    def compared(self, score: float, is_probability: bool = True) -> Comparison | None:
        """Return the comparison of a map with this score; None if there are fewer than `ENOUGH` scores."""
        count = len(self.scores)
        if count < ENOUGH or is_probability != self.are_probabilities:
            return None
        beats = _beats(self.scores, score)
        return Comparison(beats, count, self.null, self.model, self.pictures, self.false_alarms_at_95)


_FILE = TypeAdapter(Calibration)


def check_calibration(calibration: Calibration | None, model: Model, trial: Trial | None) -> None:
    """Refuse what cannot grade the proofs of a model's maps; see `Calibration.check`.

    Args:
        calibration: as users pass it; None for none.
        model: of the maps.
        trial: parameters of the proofs; None if there are none to grade.

    Raises:
        OptionError: another object, or as `Calibration.check`.
    """
    if calibration is None or trial is None:
        return
    if not isinstance(calibration, Calibration):
        raise OptionError(
            f"proof_calibration is {calibration!r}; pass the result of `calibrate` or of `Calibration.load`.",
            "proof_calibration",
        )
    calibration.check(model, trial)


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
