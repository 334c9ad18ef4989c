"""The verdict of a proof as a sentence."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isclose

from torch import Tensor

from seewhy.explainers.core.calibration import ENOUGH
from seewhy.explainers.core.choices import LIKELY
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.core.task import Prediction

WARNINGS = {
    "evidence-at-border": "Much of the map lies at the border of what the model sees.",
    "same-for-every-class": "This method draws nearly the same map for every class.",
    "ignores-the-model": "This method draws nearly the same map for a model that has learnt nothing.",
    "improbable-target": "The model gives the explained target a low probability.",
    "blank-map": "The map has the same value everywhere.",
    "crop-hides": "More than a quarter of the picture is cropped away before the model sees it. If what you ask "
    "about lies there, crop the picture around it.",
    "fill-hides-little": "Hiding changes too little for a test. Either this fill leaves visible what the model relies "
    "on (try the other fill; a blur keeps large areas of one colour), or each part is enough on its own, or the model "
    "gives this answer even to an empty picture or to the hiding itself.",
}
"""The warnings of proofs, as sentences."""

LEAST_LEAD = 0.01
"""Minimum lead over a copy of the map that is told; scores read in hundredths, and less may be rounding."""

DECISIVE = 1 / 3
"""Minimum loss, as a share of the score, for saying that the hidden part decides; as much must be left of it alone."""

_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
"""The hyphens that stand for a minus sign."""

_SHARES = {0.5: "half", 1 / 3: "third", 0.25: "quarter", 0.2: "fifth", 0.1: "tenth"}

UNMOVED = 0.9
"""Share of the probability that hardly differs from all of it; if both parts alone leave it, the fill hides little."""

_HIDDEN = {"blur": "blurred", "mean": "painted over"}
"""Words for hidden pixels with each fill."""


def keeps_lead(whole: float, kept: float, dropped: float) -> bool:
    """Whether the lead of a contrast, of either sign, hardly changes, whichever part is hidden."""
    return min(whole * kept, whole * dropped) >= UNMOVED * whole**2 > 0


@dataclass(frozen=True)
class Subject:
    """The explained target, as the subject of a sentence.

    Attributes:
        name: its name.
        verb: the verb for evidence in its favour.
        reading: returns its score as text.
        sign: -1 if the explained score is the negative of that score; otherwise 1.
        is_compared: whether its score can be compared with those of other maps.
        is_contrast: whether it is a contrast, which has scores of its own.
    """

    name: str
    verb: str
    reading: Callable[[float], str]
    sign: int = 1
    is_compared: bool = True
    is_contrast: bool = False

    def said(self, score: Tensor) -> float:
        """Return the model's score as text, given the explained score (1,)."""
        return self.sign * float(score) + 0.0  # never -0


def subject_of(target: Prediction, against: Prediction | None = None, is_compared: bool = True) -> Subject:
    """Return the subject of sentences about a target, which may be contrasted with another; see `Subject`."""
    name = f"the lead of {target.label!r} over {against.label!r}" if against else repr(target.label)
    reading = target.lead if against else target.reading
    return Subject(name, target.verb, reading, target.sign, is_compared, against is not None)


def sentence_of(
    grade: str | None,
    faithfulness: Faithfulness,
    about: Subject,
    lead: float | None = None,
    count: int | None = 0,
    is_improbable: bool = False,
    as_well: float | None = None,
    is_common: bool = False,
    hides_little: bool = False,
) -> str:
    """Return the verdict on one map as a sentence.

    Args:
        grade: see `Proof`.
        faithfulness: faithfulness of the map (N = 1).
        about: the explained target.
        lead: lead of the map over the best of its own rotated and mirrored copies; None if they were not tried.
        count: number of scores of unrelated maps, if too few for a grade; None if the known ones are of
            another kind.
        is_improbable: whether a map is not supported because the target is improbable.
        as_well: share of the unrelated maps that do as well, where it speaks against the best grade; otherwise None.
        is_common: whether so many of them do that all pictures may be alike.
        hides_little: whether hiding changes too little for a test.
    """
    rivals = ""
    if as_well is not None:
        kept = "a blur may hide too little, or " if faithfulness.fill == "blur" else ""
        reason = f": {kept}the model may look at the same place in every picture" if is_common else ""
        rivals = f"{as_well:.0%} of maps unrelated to the picture do as well{reason}."
    sentence = _verdict(grade, faithfulness, about, count, rivals, hides_little)
    if grade == "not supported" and is_improbable:
        share = about.reading(about.said(faithfulness.whole))
        only = f"less than {share[1:]}" if share.startswith("<") else f"only {share}"
        sentence = f"Do not rely on this heatmap: the model gives {about.name} {only}, so there is little to explain."
    if lead is None:
        return sentence
    does = "about as well" if abs(lead) < LEAST_LEAD else "worse" if lead > 0 else "better"
    return f"{sentence} Rotated or mirrored, the heatmap does {does}."


def _verdict(
    grade: str | None, faithfulness: Faithfulness, about: Subject, count: int | None, rivals: str, hides_little: bool
) -> str:
    """Return the verdict, without the sentence about copies; `rivals` tells how many unrelated maps do as well."""
    then = _HIDDEN[faithfulness.fill]
    first = f"with it {then}"
    part = _part(faithfulness.area)
    subject = about.name
    scores = [about.said(score) for score in (faithfulness.whole, faithfulness.kept, faithfulness.dropped)]
    whole, kept, dropped = (_MINUS.sub("−", about.reading(score)) for score in scores)
    without, alone = (float(faithfulness.left(score)) for score in (faithfulness.dropped, faithfulness.kept))
    verb = "goes"
    if bool(faithfulness.are_probabilities):
        verb = "falls" if float(faithfulness.dropped) <= float(faithfulness.whole) else "rises"
    change = f"{subject} stays at {whole}" if whole == dropped else f"{subject} {verb} from {whole} to {dropped}"
    gives = "gives" if alone < 1 / 2 else "even gives" if alone >= 1.1 and kept != whole else "still gives"
    if grade == "supported" and without <= 1 - DECISIVE and alone >= DECISIVE:
        return f"The marked {part} decides: {first}, {change}; alone, it {gives} {kept}."
    enough = "is enough on its own, but so is the rest"
    if grade == "supported" and alone > 1 - DECISIVE:
        return f"The marked {part} {enough}: alone, it {gives} {kept}; {first}, {change}."
    if grade in ("supported", "partly supported"):
        role = "matters, but is not all"
        if without <= 1 - DECISIVE < alone:
            role = "matters"
        elif whole == dropped or not faithfulness.dropped < faithfulness.whole:
            role = f"{about.verb} {subject}, but is not needed"
        elif alone > 1 - DECISIVE:
            role = enough
        yet = f" Yet {rivals}" if rivals and grade == "partly supported" else ""
        return f"The marked {part} {role}: {first}, {change}; alone, it gives {kept}.{yet}"
    if grade == "spread":
        return (
            f"The marked {part} does not decide alone: the evidence for {subject} seems spread, this heatmap misses "
            f"some, or the model reacts to the hiding itself "
            f"({whole} {verb} to {dropped} with this {part} {then}; alone, it gives {kept})."
        )
    if grade == "not supported":
        of_whole = "" if whole == dropped else f" (was {whole})"
        if hides_little:
            opening = "This test can neither support nor refute the heatmap: with"
            is_value = not bool(faithfulness.are_probabilities)
            numbers = map(float, (faithfulness.whole, faithfulness.kept, faithfulness.dropped))
            if faithfulness.hidden is not None and is_value and not (about.is_contrast and keeps_lead(*numbers)):
                hidden = _MINUS.sub("−", about.reading(about.said(faithfulness.hidden)))
                return f"{opening} everything {then}, {subject} is still {hidden} (with the whole picture: {whole})."
            if is_value:
                still = f"{subject} is still {dropped}{of_whole}"
                return f"{opening} the marked {part} {then}, {still}; alone, it gives {kept}."
            return (
                f"{opening} the marked {part} {then}, the model still says {subject} at {dropped}{of_whole}, and with "
                f"the rest {then} at {kept}."
            )
        rest = f"the model still says {subject} at {dropped}{of_whole}" if verb == "falls" else change
        if alone > 1 - DECISIVE and without < UNMOVED:
            return (
                f"Do not rely on this heatmap alone: the marked {part} is enough on its own ({kept}), but with it "
                f"{then}, {rest}.{f' Moreover, {rivals}' if rivals else ''}"
            )
        if verb == "goes" and without <= 1 - DECISIVE:
            return (
                f"Do not rely on this heatmap, because the marked {part} does not decide alone: {first}, {change}; "
                f"alone, it gives {kept}."
            )
        by_itself = f"; alone, it gives {kept}" if verb == "goes" else ""
        return f"Do not rely on this heatmap: with the marked {part} {then}, {rest}{by_itself}."
    if grade == "blank":
        return f"The heatmap is blank: it marks nothing that {about.verb} {subject}."
    source = ""
    if bool(faithfulness.are_probabilities):
        source = f", from pictures in which the explained class has at least {LIKELY:.0%}"
    so_far = f" ({count} so far)" if count else ""
    other_fill = "" if faithfulness.fill == "blur" else f" with proof_fill={faithfulness.fill}"
    what = "contrasts by unrelated maps" if about.is_contrast else "unrelated maps"
    reason = f"fewer than {ENOUGH} scores of {what}{other_fill} are known{source}{so_far}"
    if count is None:
        kinds = "values" if bool(faithfulness.are_probabilities) else "probabilities"
        reason = f"scores of unrelated maps are known only for {kinds}"
    if not about.is_compared:
        reason = f"contrasts are graded only for the most probable class, if it has at least {LIKELY:.0%}"
    return f"With the marked {part} {then}, {change}; alone, it gives {kept}. That is not graded: {reason}."


def _part(area: float) -> str:
    """Return a share of the picture in words."""
    return next((name for share, name in _SHARES.items() if isclose(share, area, abs_tol=1e-3)), f"{area:.0%}")
