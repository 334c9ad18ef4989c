"""The headers of answers about a picture: each is declared here, once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from seewhy.app.pipeline.timings import Timings
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import Prediction
from seewhy.models import LoadedModel

COST = "X-SeeWhy-Cost"
REQUEST_ID = "X-Request-ID"


@dataclass(frozen=True)
class Facts:
    """The facts that headers of an answer give.

    Attributes:
        model: which model answered.
        targets: the classes that it is about.
        timings: of the stages.
        layers: those that the maps are of.
        method: what made the maps.
        explanations: whose diagnostics count.
    """

    model: LoadedModel
    targets: Sequence[Prediction]
    timings: Timings
    layers: Sequence[str] = ()
    method: str = ""
    explanations: Sequence[Explanation] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers with these facts; a header without a value is left out."""
        values = {header.name: header.value(self) for header in HEADERS if header.value is not None}
        return {name: value for name, value in values.items() if value}


class Header(NamedTuple):
    """A header of an answer.

    Attributes:
        name: of the header.
        description: what it says.
        value: its text; None where another part of the service sets it.
    """

    name: str
    description: str
    value: Callable[[Facts], str] | None = None


def _text(text: str) -> str:
    """Percent-encode what a header cannot hold, and the comma that separates labels."""
    return quote(text, safe=" !#$&'()*+/:;=?@[]^`{|}~\"<>\\")


def _against(facts: Facts) -> str:
    labels = dict.fromkeys(explanation.against.label for explanation in facts.explanations if explanation.against)
    return ", ".join(map(_text, labels))


def _diagnostics(facts: Facts) -> str:
    return ", ".join(sorted({notice.code for explanation in facts.explanations for notice in explanation.diagnostics}))


HEADERS = (
    Header("X-SeeWhy-Model", "Name of the model.", lambda facts: _text(facts.model.name)),
    Header("X-SeeWhy-Method", "Name of the method.", lambda facts: facts.method),
    Header(
        "X-SeeWhy-Layers",
        "Paths of the layers used, separated by commas.",
        lambda facts: ", ".join(map(_text, facts.layers)),
    ),
    Header(
        "X-SeeWhy-Target",
        "Indices of the explained classes, separated by commas.",
        lambda facts: ", ".join(str(target.index) for target in facts.targets),
    ),
    Header("X-SeeWhy-Against", "Label of the class that they are contrasted with.", _against),
    Header(
        "X-SeeWhy-Label",
        "Their labels, percent-encoded where a header could not hold them.",
        lambda facts: ", ".join(_text(target.label) for target in facts.targets),
    ),
    Header(
        "X-SeeWhy-Probability",
        "Their probabilities.",
        lambda facts: ", ".join(f"{target.probability:.6f}" for target in facts.targets),
    ),
    Header(
        "X-SeeWhy-Diagnostics",
        "Codes of what a reader of the map should know, separated by commas.",
        _diagnostics,
    ),
    Header(
        COST,
        "What the request counts in rate limits: 1 for a Grad-CAM by a model of 224×224 pixels, more for "
        "methods of many passes.",
    ),
    Header(
        "Server-Timing",
        "Milliseconds of each stage: decode, queue, explain (or another), render, encode.",
        lambda facts: facts.timings.header,
    ),
    Header(REQUEST_ID, "The id that the client gave the request, or one made for it; the log has it too."),
)

ETAG = Header("ETag", "Digest of everything that the answer depends on.")

EXPOSED = [*(header.name for header in HEADERS), ETAG.name, "RateLimit", "RateLimit-Policy", "Retry-After"]
"""What pages of other origins may read."""
