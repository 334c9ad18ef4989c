"""Detection: boxes with a class each; a box's logit, an edge or its mask is explained."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seewhy.explainers.core.ask import Ask, Targets
from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.percent import percent
from seewhy.explainers.errors import TargetError
from seewhy.explainers.tasks.box_target import ATTRIBUTES, BoxTarget, parse_target
from seewhy.explainers.tasks.candidates import Candidates, Detector, overlaps
from seewhy.explainers.tasks.choices import BOX_METHOD
from seewhy.explainers.tasks.classification import class_index, contrasts_of, mean_of_nearest
from seewhy.explainers.tasks.detected import BoxPrediction, DetectedPicture


@dataclass(frozen=True)
class Detection:
    """Detection: finds the objects that a picture shows, each with a box.

    Outputs are candidates (N, A, F), packed by the detector's `Layout`. Without a target, the best box is explained.

    Attributes:
        labels: one per class; empty for ``class 0``, ``class 1`` and so on.
        detector: reads the module's results.
    """

    labels: Sequence[str] = field(repr=False)
    detector: Detector

    default_method: ClassVar[str] = BOX_METHOD

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes of a box that can be explained."""
        layout = self.detector.layout
        absent = {"objectness": layout.objectness, "mask": layout.masks}
        return tuple(name for name in ATTRIBUTES if absent.get(name, True))

    @property
    def objectives(self) -> type["BoxObjective"]:
        """The kind of its objectives."""
        return BoxObjective

    def outputs(self, raw: Any) -> Tensor:
        """Return the candidates (N, A, F) in the module's result."""
        return self.detector.layout.pack(self.detector.candidates(raw))

    def objective(self, outputs: Tensor, ask: Ask) -> "BoxObjective":
        """Return the checked boxes to explain."""
        in_pictures = ask.in_pictures(len(outputs), lambda label: BoxTarget("label", label))
        targets = [target if isinstance(target, BoxTarget) else BoxTarget() for target in in_pictures]
        places = [picture.place(target) for picture, target in zip(self._pictures(outputs), targets, strict=True)]
        candidates = torch.tensor([place.candidate for place in places], device=outputs.device)
        labels = torch.tensor([place.label for place in places], device=outputs.device)
        if ask.against is not None and any(target.attribute != "score" for target in targets):
            raise TargetError("Only the score of a box can be contrasted with that of another class.")
        rows = torch.arange(len(outputs), device=outputs.device)
        picks = self.detector.layout.unpack(outputs.detach()[rows, candidates].float())
        return BoxObjective(
            labels,
            contrasts_of(ask, labels, self.detector.layout.classes),
            detector=self.detector,
            candidates=candidates,
            boxes=_boxes_of(picks, labels),
            weights=torch.tensor([target.weights for target in targets], device=outputs.device),
            likeness=picks.scores(self.detector.scoring),
            attributes=torch.tensor([ATTRIBUTES.index(target.attribute) for target in targets], device=outputs.device),
        )

    def target(self, target: Any) -> BoxTarget:
        """Return the box that a user names; see `parse_target`."""
        if isinstance(target, BoxTarget):
            return target
        return parse_target(target, self._names, self.attributes)

    def with_label(self, target: BoxTarget | None, label: int | str) -> BoxTarget:
        """Return a target as one of a class, or all boxes of the class for None.

        Raises:
            TargetError: there is no such class, or the target is of another one.
        """
        index = class_index(label, self._names)
        if target is None:
            return BoxTarget("label", index, name=f"label:{label}")
        if target.label not in (None, index):
            raise TargetError(
                f"{target.name} names {self._label(target.label)!r}, but the label is {label!r}; leave one of them out."
            )
        return replace(target, label=index)

    def each(self, outputs: Tensor, target: BoxTarget) -> tuple[BoxTarget, ...]:
        """Return the targets that a target stands for in one picture's outputs (A, F): each box of a class, in order of
        score.

        Raises:
            TargetError: there is none.
        """
        picture = self._picture(outputs)
        if not target.is_plural:
            return (target,)
        picture.place(target)
        numbers = [number for number, place in enumerate(picture.shown) if place.label == target.label]
        return tuple(BoxTarget("box", number=number, attribute=target.attribute) for number in numbers)

    def describe(self, outputs: Tensor, targets: Sequence[Any] = (), top: int = 5) -> "tuple[BoxPrediction, ...]":
        """Return the targets of a picture with candidates (A, F), and then the `top` most confident boxes.

        A target that is a number is a class, at the candidate of the target before it.
        """
        picture = self._picture(outputs)
        rows: list[BoxPrediction] = []
        place = None
        for target in targets:
            if isinstance(target, BoxTarget):
                place, attribute = picture.place(target), target.attribute
                rows.append(picture.describe(place, attribute))
            else:  # a class as a contrast, at the candidate of the target before it
                place = place or picture.place(BoxTarget("label", int(target)))
                rows.append(picture.describe(place._replace(label=int(target))))
        return (*rows, *(picture.describe(place) for place in picture.shown[:top]))

    def remarks(self, outputs: Tensor, target: Any) -> tuple[Diagnostic, ...]:
        """Return remarks about a box that is not shown, for the reader of its map."""
        (row,) = self.describe(outputs, [target], top=0)
        if row.number is not None:
            return ()
        reason = (
            f"below the threshold of {percent(self.detector.threshold)}"
            if row.probability <= self.detector.threshold
            else "and a box of the class with a higher score suppresses it"
        )
        return (
            Diagnostic(
                "box-not-shown",
                f"The detector does not show this box: its score as {row.label!r} is {percent(row.probability)}, "
                f"{reason}. The map shows what little evidence there is.",
            ),
        )

    def are_probabilities(self, outputs: Tensor) -> bool:
        """Whether the logits in candidates (N, A, F) look like scores."""
        logits = self.detector.layout.unpack(outputs.float()).logits
        return bool(((logits >= 0) & (logits <= 1)).all())

    @property
    def _names(self) -> list[str]:
        return [self._label(index) for index in range(self.detector.layout.classes)]

    def _label(self, index: int) -> str:
        return self.labels[index] if self.labels else f"class {index}"

    def _picture(self, outputs: Tensor) -> DetectedPicture:
        return DetectedPicture(self.detector, self._label, outputs)

    def _pictures(self, outputs: Tensor) -> list[DetectedPicture]:
        """Return the pictures of candidates (N, A, F); equal pictures share one object."""
        if outputs.stride(0) == 0:
            return [self._picture(outputs[0])] * len(outputs)
        return [self._picture(row) for row in outputs]


@dataclass(frozen=True, eq=False, kw_only=True)
class BoxObjective(Objective):
    """For each picture the logit of a box, its lead over another class's, an edge, its objectness or its mask.

    In other pictures, such as masked copies, the same candidate counts. If the detector's candidates move, the one
    whose box overlaps the explained box most counts instead.

    Attributes:
        detector: reads outputs.
        candidates: (N,) int64, the number of each picture's candidate.
        boxes: (N, 4) float32, its box for the target's class, as fractions of the model's input.
        weights: (N, 7) float32, the factors of `FEATURES`.
        likeness: (N, K) float32, the scores of its classes, which `similarity` compares.
        attributes: (N,) int64, places in `ATTRIBUTES`.
    """

    detector: Detector
    candidates: Tensor
    boxes: Tensor
    weights: Tensor
    likeness: Tensor
    attributes: Tensor

    @property
    def ask_targets(self) -> Targets:
        """The same candidates."""
        columns = self.targets, self.candidates, self.boxes, self.weights, self.attributes
        return tuple(
            BoxTarget("candidate", label, number, tuple(box), ATTRIBUTES[attribute])
            for label, number, box, _, attribute in zip(*(column.tolist() for column in columns), strict=True)
        )

    def scores(self, outputs: Tensor) -> Tensor:
        """Return (N,) float32: the explained attribute of each picture's candidate, minus that of its contrast."""
        picks, rows = self._picks(outputs)
        logits = picks.logits[rows, self.targets]
        absent = torch.zeros_like(logits)
        masks = absent if picks.masks is None else picks.masks[rows, self.targets]
        objectness = absent if picks.objectness is None else picks.objectness
        features = (logits, *_boxes_of(picks, self.targets).unbind(1), objectness, masks)
        scores = (torch.stack(features, dim=1) * self.weights).sum(dim=1)
        if self.against is None:
            return scores
        return scores - torch.where(self.is_contrasted, picks.logits[rows, self.against.clamp_min(0)], 0)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return outputs (N, A, F) with scores in place of the logits."""
        scoring = self.detector.scoring
        return self.detector.layout.replaced(outputs.float(), lambda candidates: candidates.scores(scoring))

    @property
    def are_probabilities(self) -> Tensor:
        """(N,) bool: scores of boxes, except leads over a contrast."""
        return (self.attributes == ATTRIBUTES.index("score")) & ~self.is_contrasted

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return outputs (N, A, F) with the logarithms of the scores in place of the logits."""
        tiny = torch.finfo(torch.float32).tiny
        scoring = self.detector.scoring
        return self.detector.layout.replaced(
            outputs.float(), lambda candidates: candidates.scores(scoring).clamp_min(tiny).log()
        )

    def nearest(self, outputs: Tensor, count: int) -> Tensor:
        """Return (N,): the mean logit of the `count` other classes whose logits at the candidate are nearest."""
        return mean_of_nearest(self._picks(outputs)[0].logits, self.targets, count)

    def similarity(self, outputs: Tensor) -> Tensor:
        """Return (N,) in [0, 1]: overlap times cosine of the scores times objectness, of the most similar candidate."""
        candidates = self.detector.layout.unpack(outputs.float())
        scores = candidates.scores(self.detector.scoring)
        norm = torch.linalg.vector_norm
        lengths: Tensor = norm(scores, dim=2) * norm(self.likeness, dim=1)[:, None]
        cosines = torch.einsum("nak,nk->na", scores, self.likeness) / lengths.clamp_min(torch.finfo(scores.dtype).tiny)
        likeness = overlaps(self._of_target(candidates), self.boxes[:, None]) * cosines
        if candidates.objectness is not None:
            likeness = likeness * candidates.objectness.sigmoid()
        return likeness.amax(dim=1)

    def _picks(self, outputs: Tensor) -> tuple[Candidates, Tensor]:
        """Return each picture's candidate (N, ...), float32, and the numbers of the rows (N,)."""
        rows = torch.arange(len(outputs), device=outputs.device)
        numbers = self.candidates
        if self.detector.moving:
            candidates = self.detector.layout.unpack(outputs.detach().float())
            numbers = overlaps(self._of_target(candidates), self.boxes[:, None]).argmax(dim=1)
        return self.detector.layout.unpack(outputs[rows, numbers].float()), rows

    def _of_target(self, candidates: Candidates) -> Tensor:
        """Return the boxes (N, A, 4) of each picture's candidates for its target's class."""
        boxes: Tensor = candidates.boxes
        rows = torch.arange(len(boxes), device=boxes.device)
        return boxes[rows, :, self.targets] if self.detector.layout.per_class else boxes


def _boxes_of(picks: Candidates, labels: Tensor) -> Tensor:
    """Return the boxes (N, 4) of single candidates (N, ...) for classes (N,)."""
    boxes: Tensor = picks.boxes
    return boxes if boxes.ndim == 2 else boxes[torch.arange(len(labels), device=labels.device), labels]
