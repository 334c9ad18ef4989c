"""The boxes that a detector shows in one picture, the candidate that a target means, and the text of boxes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from seewhy.explainers.core.percent import likelihood, more_points, points
from seewhy.explainers.core.task import Prediction
from seewhy.explainers.errors import TargetError
from seewhy.explainers.imaging.geometry import Box, Geometry
from seewhy.explainers.tasks.box_target import Attribute, BoxTarget
from seewhy.explainers.tasks.candidates import Detector, areas_of, overlaps

LEAST_OVERLAP = 0.5
"""Minimum intersection over union of a box with the edges that name it."""


class Place(NamedTuple):
    """A candidate of a picture, as a class."""

    candidate: int
    label: int


@dataclass(frozen=True)
class BoxPrediction:
    """One box.

    Attributes:
        index: class index.
        label: class label.
        number: its place among the boxes that the detector shows, in order of score; None if it does not show it.
        probability: the detector's score of it, in [0, 1].
        logit: raw logit of the class.
        box: left, top, right, bottom, in pixels of the upload; as fractions of the model's input until it is `located`.
        attribute: property of the box that is explained, if the box is a target.
        value: value of that property: the logit, an edge, half the perimeter, a raw objectness or a mask's mean logit.
    """

    verb: ClassVar[str] = "speaks for"
    sign: ClassVar[int] = 1

    index: int
    label: str
    number: int | None
    probability: float
    logit: float
    box: Box
    attribute: Attribute
    value: float

    @property
    def name(self) -> str:
        """The target: ``box:3``, and ``box:3:x1`` for an attribute; its edges where it is not shown."""
        edges = ",".join(f"{edge:.0f}" for edge in self.box)
        place = f"box:{self.number}" if self.number is not None else f"box:{edges}"
        return place if self.attribute == "score" else f"{place}:{self.attribute}"

    @property
    def score(self) -> float:
        """The value."""
        return self.value

    @property
    def text(self) -> str:
        """The score in percent, and the attribute if that is another."""
        score = likelihood(self.probability)
        return score if self.attribute == "score" else f"{score}, {self.attribute}"

    def reading(self, score: float) -> str:
        """Return a score in percent, or an edge as a fraction of the model's input, or a raw logit."""
        return likelihood(score) if self.attribute == "score" else f"{self.attribute} {score:.3g}"

    def lead(self, score: float) -> str:
        """Return a difference of scores in percentage points, or that of another value."""
        return points(score) if self.attribute == "score" else self.reading(score)

    def change(self, before: Self) -> str:
        """Return the change of the score in points of percent, or that of another value."""
        if self.attribute != "score":
            return f"{self.value - before.value:+.3g}"
        return more_points(self.probability - before.probability)

    def located(self, geometry: Geometry) -> Self:
        """Return the prediction with its box in pixels of the upload, of which the model sees `geometry.box`."""
        left, top, right, bottom = geometry.box
        across, down = right - left, bottom - top
        x1, y1, x2, y2 = self.box
        box = left + x1 * across, top + y1 * down, left + x2 * across, top + y2 * down
        edges = {"x1": box[0], "y1": box[1], "x2": box[2], "y2": box[3], "box": box[2] - box[0] + box[3] - box[1]}
        limits = (geometry.width, geometry.height) * 2
        x1, y1, x2, y2 = (min(max(edge, 0.0), float(limit)) for edge, limit in zip(box, limits, strict=True))
        return replace(self, box=(x1, y1, x2, y2), value=edges.get(self.attribute, self.value))


def named(prediction: Prediction) -> str:
    """Return the label of a prediction, and the number of a box, which may be one of several of its class."""
    number = prediction.number if isinstance(prediction, BoxPrediction) else None
    return prediction.label if number is None else f"{prediction.label} (box:{number})"


def located(predictions: Sequence[Prediction], geometry: Geometry) -> tuple[Prediction, ...]:
    """Return the predictions of a task, boxes among them in pixels of the upload."""
    return tuple(row.located(geometry) if isinstance(row, BoxPrediction) else row for row in predictions)


class DetectedPicture:
    """The candidates of one picture, and those of them that the detector shows.

    Args:
        detector: reads the outputs.
        label: returns the label of a class.
        outputs: (A, F).
    """

    def __init__(self, detector: Detector, label: Callable[[int], str], outputs: Tensor) -> None:
        self._detector, self._label = detector, label
        self._candidates = detector.layout.unpack(outputs.detach().float())

    @cached_property
    def shown(self) -> list[Place]:
        """The boxes that the detector shows, in order of score."""
        numbers, labels = self._detector.shown(self._candidates)
        return [Place(*pair) for pair in zip(numbers.tolist(), labels.tolist(), strict=True)]

    def place(self, target: BoxTarget) -> Place:
        """Return the candidate that a target means.

        Raises:
            TargetError: there is none.
        """
        places = {
            "surest": lambda _: self.shown[0] if self.shown else self._best(self._scores),
            "box": self._numbered,
            "near": self._near,
            "label": self._of_class,
            "region": self._in_region,
            "candidate": self._again,
        }
        place = places[target.kind](target)
        if target.attribute == "mask" and target.kind != "candidate" and place not in self.shown:
            raise TargetError("Only boxes that the detector finds have a mask; use box:N, or another attribute.")
        return place

    def describe(self, place: Place, attribute: Attribute = "score") -> BoxPrediction:
        """Return a candidate for people, its box as fractions of the model's input."""
        candidate, label = place
        box: Box = tuple(self._candidates.boxes_of(label)[candidate].tolist())
        logit = float(self._candidates.logits[place])
        values = {"score": logit, "box": box[2] - box[0] + box[3] - box[1]}
        values |= zip(("x1", "y1", "x2", "y2"), box, strict=True)
        if self._candidates.objectness is not None:
            values["objectness"] = float(self._candidates.objectness[candidate])
        if self._candidates.masks is not None:
            values["mask"] = float(self._candidates.masks[place])
        number = self.shown.index(place) if place in self.shown else None
        score = float(self._scores[place])
        return BoxPrediction(label, self._label(label), number, score, logit, box, attribute, values[attribute])

    @cached_property
    def _scores(self) -> Tensor:
        """(A, K): the scores; 0 for the background."""
        scores = self._candidates.scores(self._detector.scoring)
        if self._detector.background is not None:
            scores[:, self._detector.background] = 0
        return scores

    def _best(self, values: Tensor) -> Place:
        """Return the largest of values (A, K)."""
        return Place(*divmod(int(values.argmax()), values.shape[1]))

    def _numbered(self, target: BoxTarget) -> Place:
        if target.number >= len(self.shown):
            raise TargetError(f"There is no box:{target.number}. {self._listing}")
        place = self.shown[target.number]
        if target.label not in (None, place.label):
            label = self._label(place.label)
            raise TargetError(f"box:{target.number} is {label!r}; leave the label out. {self._listing}")
        return place

    def _near(self, target: BoxTarget) -> Place:
        edges = self._candidates.logits.new_tensor(target.box)
        places = [place for place in self.shown if target.label in (None, place.label)]
        if not places:
            raise TargetError(f"The detector finds no box near {target.name}. {self._listing}")
        boxes = torch.stack([self._candidates.boxes_of(label)[candidate] for candidate, label in places])
        shares = overlaps(boxes.clamp(0, 1), edges)
        nearest = int(shares.argmax())
        if shares[nearest] >= LEAST_OVERLAP:
            return places[nearest]
        number = self.shown.index(places[nearest])
        raise TargetError(
            f"There is no box at {target.name}: the nearest is box:{number}, {self._label(places[nearest].label)!r}, "
            "whose "
            f"overlap with it (intersection over union) is {float(shares[nearest]):.2f}, and {LEAST_OVERLAP} is "
            "needed. Use region:X1,Y1,X2,Y2 to explain why there is no box."
        )

    def _of_class(self, target: BoxTarget) -> Place:
        for place in self.shown:
            if place.label == target.label:
                return place
        label = self._label(target.label or 0)
        raise TargetError(
            f"The detector finds no {label!r} in this picture. {self._listing} Use region:X1,Y1,X2,Y2:{label} to "
            "explain why there is none."
        )

    def _in_region(self, target: BoxTarget) -> Place:
        left, top, right, bottom = target.box or (0, 0, 1, 1)
        boxes, logits = self._candidates.boxes, self._candidates.logits
        across, down = ((boxes[..., start] + boxes[..., start + 2]) / 2 for start in (0, 1))
        inside = (across >= left) & (across < right) & (down >= top) & (down < bottom) & (areas_of(boxes) > 0)
        classes = torch.arange(logits.shape[1], device=logits.device)
        eligible = classes != self._detector.background if target.label is None else classes == target.label
        inside = (inside if inside.ndim == 2 else inside[:, None]) & eligible
        if not inside.any():
            raise TargetError(f"The detector has no candidate centred in {target.name}; give a larger region.")
        return self._best(torch.where(inside, logits, -torch.inf))

    def _again(self, target: BoxTarget) -> Place:
        label = target.label or 0
        if not (self._detector.moving or target.is_mirrored):
            return Place(target.number, label)
        edges = self._candidates.logits.new_tensor(target.box)
        return Place(int(overlaps(self._candidates.boxes_of(label), edges).argmax()), label)

    @property
    def _listing(self) -> str:
        """The possible targets, as a sentence."""
        if not self.shown:
            return f"It finds no box with a score of {self._detector.threshold:g} or more."
        names = [f"box:{number} ({self._label(place.label)})" for number, place in enumerate(self.shown[:5])]
        more = f" and {len(self.shown) - 5} more" if len(self.shown) > 5 else ""
        return f"It finds {', '.join(names)}{more}."
