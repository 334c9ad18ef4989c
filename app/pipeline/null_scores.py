"""Scores of maps that do not depend on the picture, collected from requests, for models without included scores."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.choices import AREA, Fill
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.trust.embedded import calibration_of
from seewhy.explainers.trust.strangers import Strangers
from seewhy.explainers.trust.trial import Trial
from seewhy.models import LoadedModel

Explained = Literal["target", "likeness"]
"""The subject of a map; its scores are compared with those of the same kind."""

LIKENESS: Explained = "likeness"

MOST = 480
"""Maximum number of scores for a model, a fill and a kind of score."""

MOST_MODELS = 64
"""Maximum number of models and fills; the least recently used are dropped first."""

NULL = "maps of other pictures, collected by this process"


@dataclass(eq=False)
class _Gathering:
    """The scores collected for a model and a fill: those that are probabilities (True), and others (False)."""

    strangers: Strangers = field(default_factory=Strangers)
    scores: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})

    @property
    def is_full(self) -> bool:
        """Whether there are enough scores of one kind."""
        return any(len(part) >= MOST for part in self.scores.values())


class NullScores:
    """Collects scores: the map of each request is tried on the picture of the next one, until there are `MOST`.

    This takes two forward passes, once for each picture, so no client can fill a collection with a few pictures. It
    happens for the default area only, so requests cannot add further collections.
    """

    def __init__(self) -> None:
        self._gatherings: OrderedDict[tuple[str, str, str], _Gathering] = OrderedDict()
        self._lock = threading.Lock()

    def gathers(self, model: LoadedModel, area: float, fill: Fill, of: Explained = "target") -> bool:
        """Whether such proofs are compared with collected scores, not with the model's own or included ones."""
        return area == AREA and (of != "target" or calibration_of(model, area, fill) is None)

    def strangers(self, model: LoadedModel, trial: Trial, of: Explained = "target") -> Strangers | None:
        """Return the maps to try on the pictures of a batch; None if there are enough scores."""
        gathering = self._gathering(model, trial.area, trial.fill, of)
        return None if gathering is None or gathering.is_full else gathering.strangers

    def add(self, model: LoadedModel, faithfulness: Iterable[Faithfulness], of: Explained = "target") -> None:
        """Add the scores of maps of other pictures on some pictures (N = 1 each)."""
        for part in faithfulness:
            gathering = self._gathering(model, part.area, part.fill, of)
            if gathering is not None:
                scores = gathering.scores[bool(part.are_probabilities)]
                scores += part.stranger_scores[: MOST - len(scores)]

    def calibration(
        self, model: LoadedModel, part: Faithfulness | None, of: Explained = "target"
    ) -> Calibration | None:
        """Return the collected scores that the proof of a map (N = 1) is compared with; None if none are collected."""
        gathering = None if part is None else self._gathering(model, part.area, part.fill, of)
        if part is None or gathering is None:
            return None
        is_probability = bool(part.are_probabilities)
        scores = tuple(sorted(gathering.scores[is_probability]))
        return Calibration(scores, NULL, model.name, part.area, part.fill, is_probability, pictures=len(scores))

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
