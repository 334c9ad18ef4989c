"""Calibration: scores of maps that do not depend on the picture, for a model."""

import json
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from seewhy.explainers.core.choices import Fill
from seewhy.explainers.errors import OptionError

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
class ContrastScores:
    """Scores of the lead of each picture's most probable class over the second; attributes as in `Calibration`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    scores: tuple[FiniteFloat, ...]
    pictures: int | None = None
    false_alarms_at_95: float | None = None


@dataclass(frozen=True)
class Calibration:
    """Scores of maps that do not depend on the picture, for one model; see `calibrate`.

    Attributes:
        scores: in ascending order.
        null: description of the maps.
        model: name of the model.
        pictures: number of the maps' pictures; None if unknown.
        false_alarms_at_95: share of such maps, on other pictures, that beat 95 percent; None if not measured.
        area, fill: area and fill of the trial.
        are_probabilities: whether the scores are of probabilities; other scores are compared with scores of their kind.
        sha256: SHA-256 of the model's weights file, hexadecimal; None if unknown.
        size: height and width of the model's input; None if unknown.
        contrast: scores for contrasts of the most probable class; None if there are none.
        others: the model's scores in trials with other areas or fills.
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
    contrast: ContrastScores | None = None
    others: "tuple[Calibration, ...]" = ()

    @property
    def trials(self) -> "dict[tuple[float, str], Calibration]":
        """The scores of each trial, by its area and fill."""
        return {(part.area, part.fill): part for part in (self, *self.others)}

    @property
    def of_contrasts(self) -> "Calibration | None":
        """The calibration of contrasts of the most probable class; None if there is none."""
        if self.contrast is None:
            return None
        return replace(self, **vars(self.contrast), are_probabilities=False, contrast=None)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file, which `load` reads, and return its path.

        Raises:
            OSError: the file cannot be written.
        """
        file = Path(path)
        file.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        return file

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Calibration":
        """Read a file that `save` or ``seewhy calibrate`` wrote.

        Raises:
            OptionError: the file is not a calibration.
            OSError: the file cannot be read.
        """
        try:
            calibration = _sorted(_FILE.validate_json(Path(path).read_bytes()))
        except ValidationError as error:
            raise OptionError(
                f"{path} is not a calibration; `seewhy calibrate` and `Calibration.save` write one.",
                "proof_calibration",
            ) from error
        if len(calibration.trials) <= len(calibration.others) or any(part.others for part in calibration.others):
            raise OptionError(
                f"{path} has several lists of scores for the same proofs; keep one for each area and fill.",
                "proof_calibration",
            )
        return calibration

    def compared(self, score: float) -> Comparison | None:
        """Return the comparison of a map with this score; None if there are fewer than `ENOUGH` scores."""
        count = len(self.scores)
        if count < ENOUGH:
            return None
        return Comparison(
            beats(self.scores, score), count, self.null, self.model, self.pictures, self.false_alarms_at_95
        )


_FILE = TypeAdapter(Calibration)


def _sorted(calibration: Calibration) -> Calibration:
    leads = calibration.contrast
    contrast = leads and replace(leads, scores=tuple(sorted(leads.scores)))
    others = tuple(map(_sorted, calibration.others))
    return replace(calibration, scores=tuple(sorted(calibration.scores)), contrast=contrast, others=others)


def beats(scores: Sequence[float], score: float) -> float:
    """Return one minus the rank p-value of a score among others in ascending order."""
    return bisect_left(scores, score) / (1 + len(scores))
