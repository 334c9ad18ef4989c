"""Scores of maps that cannot know the picture, gathered from requests about models for which none ship."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.trust.calibration import Calibration
from seewhy.explainers.trust.choices import AREA, Fill
from seewhy.explainers.trust.embedded import calibration_of
from seewhy.explainers.trust.strangers import Strangers
from seewhy.explainers.trust.trial import Trial
from seewhy.models import LoadedModel

Explained = Literal["target", "likeness"]
"""What maps explain, whose scores are compared with their like."""

LIKENESS: Explained = "likeness"

MOST = 480
"""Maximum number of scores of a model, a fill, and a kind of score."""

MOST_MODELS = 64
"""Maximum number of models and fills; those that were asked for least recently are forgotten first."""

NULL = "maps of other pictures, collected by this process"


@dataclass(eq=False)
class _Gathering:
    """What has been gathered for a model and a fill: scores that are probabilities (True), and others (False)."""

    strangers: Strangers = field(default_factory=Strangers)
    scores: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})

    @property
    def is_full(self) -> bool:
        """Whether there are enough scores of the kind that the model is asked for."""
        return any(len(part) >= MOST for part in self.scores.values())


class NullScores:
    """The map of each request is tried on the picture of the next one: two forward passes, until there are `MOST`.

    Only trials of the default area gather: their number must not depend on requests.
    """

    def __init__(self) -> None:
        self._gatherings: OrderedDict[tuple[str, str, str], _Gathering] = OrderedDict()
        self._lock = threading.Lock()

    def gathers(self, model: LoadedModel, area: float, fill: Fill, of: Explained = "target") -> bool:
        """Whether proofs by such trials are compared with what is gathered, and not with what ships."""
        ships = of == "target" and calibration_of(model.sha256, model.preprocess.size, area, fill) is not None
        return area == AREA and not ships

    def strangers(self, model: LoadedModel, trial: Trial, of: Explained = "target") -> Strangers | None:
        """Return the maps to try on the pictures of a batch; None if there are enough scores."""
        gathering = self._gathering(model, trial.area, trial.fill, of)
        return None if gathering is None or gathering.is_full else gathering.strangers

    def add(self, model: LoadedModel, faithfulness: Faithfulness | None, of: Explained = "target") -> None:
        """Add the scores of other pictures' maps on the pictures of a batch."""
        for part in [] if faithfulness is None else faithfulness.rows():
            gathering = self._gathering(model, part.area, part.fill, of)
            if gathering is not None:
                scores = gathering.scores[bool(part.are_probabilities)]
                scores += part.stranger_scores[: MOST - len(scores)]

    def calibration(
        self, model: LoadedModel, part: Faithfulness | None, of: Explained = "target"
    ) -> Calibration | None:
        """Return what the proof of a map (N = 1) is compared with; None if nothing is gathered for it."""
        gathering = None if part is None else self._gathering(model, part.area, part.fill, of)
        if part is None or gathering is None:
            return None
        is_probability = bool(part.are_probabilities)
        scores = tuple(sorted(gathering.scores[is_probability]))
        return Calibration(scores, NULL, model.name, part.area, part.fill, is_probability)

    def _gathering(self, model: LoadedModel, area: float, fill: Fill, of: Explained) -> _Gathering | None:
        if not self.gathers(model, area, fill, of):
            return None
        key = model.fingerprint, fill, of
        with self._lock:
            gathering = self._gatherings.setdefault(key, _Gathering())
            self._gatherings.move_to_end(key)
            if len(self._gatherings) > MOST_MODELS:
                self._gatherings.popitem(last=False)
            return gathering
