"""Targets of a detector in one picture, as users name them and as they lie in the model's input."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from seewhy.explainers.errors import OptionError, TargetError, near_matches
from seewhy.explainers.imaging.geometry import Box, Geometry
from seewhy.explainers.tasks.classification import class_index

Attribute = Literal["score", "x1", "y1", "x2", "y2", "box", "objectness", "mask"]
"""The explained attribute of a box: its logit, an edge, half its perimeter, its objectness, or its mask."""

ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)

FEATURES = ("score", "x1", "y1", "x2", "y2", "objectness", "mask")
"""The numbers of a candidate that attributes are sums of."""

Kind = Literal["surest", "box", "near", "label", "region", "candidate"]

_FORMS = "box:N, box:X1,Y1,X2,Y2, label:NAME and region:X1,Y1,X2,Y2"

_NUMBER = r"-?\d{1,6}(?:\.\d{1,6})?"


@dataclass(frozen=True)
class BoxTarget:
    """The target of a detector in one picture.

    Attributes:
        kind: the box with the highest score; the box of that number; the shown box nearest to these edges; the boxes of
            a class; the candidate with the largest logit in a region; or a candidate that was explained before.
        label: class index; None if it depends on the detector's outputs.
        number: number of the box among those shown, or of a candidate among all.
        box: its edges, or those of the region, in pixels of the picture; once placed, as fractions of the model's
            input.
        attribute: the explained attribute of the box.
        is_mirrored: whether the picture is mirrored, so that left is right.
        name: as users name it.
    """

    kind: Kind = "surest"
    label: int | None = None
    number: int = 0
    box: Box | None = None
    attribute: Attribute = "score"
    is_mirrored: bool = False
    name: str = ""

    @property
    def is_plural(self) -> bool:
        """Whether all boxes of a class are meant."""
        return self.kind == "label"

    def placed(self, geometry: Geometry) -> Self:
        """Return the target with its edges in the model's input."""
        if self.box is None or self.kind == "candidate":
            return self
        left, top, right, bottom = geometry.box
        across, down = right - left, bottom - top
        x1, y1, x2, y2 = self.box
        box = (x1 - left) / across, (y1 - top) / down, (x2 - left) / across, (y2 - top) / down
        if box[0] >= 1 or box[1] >= 1 or box[2] <= 0 or box[3] <= 0:
            raise TargetError(
                f"{self.name} lies outside of what the model sees: x from {max(left, 0):.0f} to "
                f"{min(right, geometry.width):.0f} and y from {max(top, 0):.0f} to {min(bottom, geometry.height):.0f} "
                "of this picture."
            )
        return replace(self, box=box)

    def mirrored(self) -> Self:
        """Return the target of the mirrored picture."""
        box = None if self.box is None else (1 - self.box[2], self.box[1], 1 - self.box[0], self.box[3])
        return replace(self, box=box, is_mirrored=not self.is_mirrored)

    @property
    def weights(self) -> tuple[float, ...]:
        """The factors of `FEATURES` in the explained score."""
        signs = {"box": (0, -1, -1, 1, 1, 0, 0)}.get(self.attribute)
        weights = signs or tuple(int(name == self.attribute) for name in FEATURES)
        if not self.is_mirrored:
            return tuple(map(float, weights))
        score, x1, y1, x2, *tail = weights
        return tuple(map(float, (score, -x2, y1, -x1, *tail)))  # an edge at x lies at 1 - x


def parse_target(target: int | str, labels: Sequence[str], attributes: Sequence[str]) -> BoxTarget:
    """Return the target that a user names.

    A text that begins like a place is one, whatever the labels: ``label:box:1`` is the class *box:1*. A whole label
    goes before a label and an attribute: ``label:dog:x1`` is the class *dog:x1*, if there is one.

    Args:
        target: a class by its index or label (``label:NAME`` too), `_FORMS`, with ``:LABEL`` after edges and
            ``:ATTRIBUTE`` after each of these.
        labels: labels of the classes.
        attributes: the attributes of this detector's boxes.

    Raises:
        TargetError: it is none of these, or is ambiguous.
    """
    if not isinstance(target, str):
        return BoxTarget("label", class_index(target, labels), name=f"label:{target}")
    name = target.strip()
    form, colon, details = name.partition(":")
    if form not in ("box", "region", "label") or not colon:
        return _of_class(name, name, labels, attributes)
    if form == "label":
        return _of_class(details, name, labels, attributes)
    place, _, suffix = details.partition(":")
    if form == "box" and re.fullmatch(r"\d{1,6}", place):
        # Answers name boxes in this way, and such a box already has a class.
        is_attribute = suffix in ATTRIBUTES
        target_of_box = _suffix(suffix, () if is_attribute else labels, attributes)
        return replace(target_of_box, kind="box", number=int(place), name=name)
    edges = re.fullmatch(rf"({_NUMBER}),({_NUMBER}),({_NUMBER}),({_NUMBER})", place)
    if edges is None:
        raise TargetError(f"{name!r} is not a place; give {_FORMS}, with four numbers in pixels of the picture.")
    x1, y1, x2, y2 = map(float, edges.groups())
    if x1 >= x2 or y1 >= y2:
        raise TargetError(f"{name!r} has no area; give left, top, right, bottom, each edge before its opposite.")
    kind: Kind = "near" if form == "box" else "region"
    return replace(_suffix(suffix, labels, attributes), kind=kind, box=(x1, y1, x2, y2), name=name)


def _of_class(label: str, name: str, labels: Sequence[str], attributes: Sequence[str]) -> BoxTarget:
    """Return the boxes of a class, named by its label or by that and an attribute."""
    front, colon, attribute = label.rpartition(":")
    if colon and attribute in ATTRIBUTES and not _is_label(label, labels):
        return BoxTarget("label", class_index(front, labels), attribute=checked(attribute, attributes), name=name)
    try:
        return BoxTarget("label", class_index(label, labels), name=name)
    except TargetError as error:
        raise TargetError(f"{error} Targets of a detector are {_FORMS}.") from None


def _suffix(suffix: str, labels: Sequence[str], attributes: Sequence[str]) -> BoxTarget:
    """Return the label and the attribute after a place, if any."""
    if not suffix:
        return BoxTarget()
    if suffix in ATTRIBUTES:
        if _is_label(suffix, labels):
            raise TargetError(
                f"{suffix!r} is both an attribute of boxes and a class of this detector; end the target in "
                f"{suffix}:score for the score of the class, or pass attribute={suffix} separately."
            )
        return BoxTarget(attribute=checked(suffix, attributes))
    try:
        return _of_class(suffix, suffix, labels, attributes)
    except TargetError as error:
        hint = near_matches(suffix, attributes)
        raise TargetError(f"{suffix!r} is not an attribute of a box{f' ({hint})' if hint else ''}. {error}") from None


def _is_label(text: str, labels: Sequence[str]) -> bool:
    """Whether a text is a label, as `class_index` reads it."""
    return text.casefold() in (label.casefold() for label in labels)


def checked(attribute: str, attributes: Sequence[str]) -> Attribute:
    """Return an attribute.

    Raises:
        OptionError: there is no such attribute, or the detector lacks it.
    """
    for name in ATTRIBUTES:
        if name == attribute and name in attributes:
            return name
    fault = f"This detector has no {attribute}" if attribute in ATTRIBUTES else f"There is no attribute {attribute!r}"
    hint = near_matches(attribute, attributes)
    raise OptionError(f"{fault}; it has {', '.join(attributes)}. {hint}".rstrip(), "attribute")
