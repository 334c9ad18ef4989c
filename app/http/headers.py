"""Headers of answers about a picture, each declared once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from seewhy.app.pipeline.record import Timings
from seewhy.explainers.core.task import Prediction
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.results.likeness import Likeness
from seewhy.models import LoadedModel

COST = "X-SeeWhy-Cost"
REQUEST_ID = "X-Request-ID"


@dataclass(frozen=True)
class Facts:
    """The facts that the headers of an answer report.

    Attributes:
        likeness: likeness of two pictures; its score and its diagnostics are listed.
    """

    model: LoadedModel
    targets: Sequence[Prediction]
    timings: Timings
    layers: Sequence[str] = ()
    method: str = ""
    explanations: Sequence[Explanation] = ()
    likeness: Likeness | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers with these facts; headers without a value are left out."""
        values = {header.name: header.value(self) for header in HEADERS if header.value is not None}
        return {name: value for name, value in values.items() if value}


class Header(NamedTuple):
    """A header of an answer.

    Attributes:
        value: returns its text; None if another part of the service sets it.
    """

    name: str
    description: str
    value: Callable[[Facts], str] | None = None


def _text(text: str) -> str:
    """Percent-encode characters that a header cannot contain, and the comma, which separates labels."""
    return quote(text, safe=" !#$&'()*+/:;=?@[]^`{|}~\"<>\\")


def _against(facts: Facts) -> str:
    labels = dict.fromkeys(explanation.against.label for explanation in facts.explanations if explanation.against)
    return ", ".join(map(_text, labels))


def _proofs(facts: Facts) -> str:
    proofs = [explanation.proof for explanation in facts.explanations]
    if facts.likeness and facts.likeness.proof:
        proofs += facts.likeness.proof
    return ", ".join(proof.summary for proof in proofs if proof)


def _diagnostics(facts: Facts) -> str:
    results: list[Explanation | Likeness] = [*facts.explanations, *([facts.likeness] if facts.likeness else [])]
    return ", ".join(sorted({notice.code for result in results for notice in result.diagnostics}))


HEADERS = (
    Header("X-SeeWhy-Model", "Name of the model.", lambda facts: _text(facts.model.name)),
    Header("X-SeeWhy-Method", "Name of the method.", lambda facts: facts.method),
    Header(
        "X-SeeWhy-Layers",
        "Comma-separated paths of the layers used.",
        lambda facts: ", ".join(map(_text, facts.layers)),
    ),
    Header(
        "X-SeeWhy-Target",
        "Comma-separated indices of the explained classes, `output:INDEX` for values, or `box:N` for boxes.",
        lambda facts: ", ".join(_text(str(target.name)) for target in facts.targets),
    ),
    Header("X-SeeWhy-Against", "Label of the class that the explained classes are contrasted with.", _against),
    Header(
        "X-SeeWhy-Label",
        "Labels of the explained classes, percent-encoded where necessary.",
        lambda facts: ", ".join(_text(target.label) for target in facts.targets),
    ),
    Header(
        "X-SeeWhy-Probability",
        "Probabilities of the explained classes; absent for regression.",
        lambda facts: ", ".join(
            f"{target.probability:.6f}" for target in facts.targets if target.probability is not None
        ),
    ),
    Header(
        "X-SeeWhy-Score",
        "Cosine of the embeddings of two pictures.",
        lambda facts: f"{facts.likeness.score:.6f}" if facts.likeness else "",
    ),
    Header(
        "X-SeeWhy-Diagnostics",
        "Comma-separated codes of diagnostics.",
        _diagnostics,
    ),
    Header(
        "X-SeeWhy-Proof",
        "For each map with a proof, its grade (or `ungraded`), its score, and the share of chance maps that it beats: "
        "`supported; score=0.50; beats=0.99`.",
        _proofs,
    ),
    Header(
        COST,
        "Cost of the request for rate limits: 1 for Grad-CAM with a model input of 224×224 pixels, more for methods "
        "with many passes.",
    ),
    Header(
        "Server-Timing",
        "Milliseconds per stage: decode, queue, explain (or another), render, encode.",
        lambda facts: facts.timings.header,
    ),
    Header(REQUEST_ID, "Id of the request, from the client or generated; the log has it too."),
)

ETAG = Header("ETag", "Digest of everything that the response depends on.")

EXPOSED = [*(header.name for header in HEADERS), ETAG.name, "RateLimit", "RateLimit-Policy", "Retry-After"]
"""Headers that pages of other origins may read."""
