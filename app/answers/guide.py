"""The guide: a page about heatmaps, proofs, hooks and methods, which the web page links to."""

from functools import cache

from seewhy.explainers.methods.catalogue import METHODS, list_methods
from seewhy.explainers.results.templates import mathml, template
from seewhy.explainers.trust.proof import PARTLY, SUPPORTED, Grade
from seewhy.explainers.trust.sentences import WARNINGS

_SUPPORTED, _PARTLY = (f"{100 * share:g} %" for share in (SUPPORTED, PARTLY))

GRADES: dict[Grade, str] = {
    "supported": f"The map does better than {_SUPPORTED} of the maps that cannot depend on the picture, and the marked "
    "part matters.",
    "partly supported": f"The map does better than {_PARTLY} of these maps, or than {_SUPPORTED} with a warning about "
    "the method or the class; or the marked part decides, but too many of these maps do as well.",
    "spread": "The probability falls to half or less without the marked part, which alone keeps at most two thirds.",
    "not supported": "The map does no better than these maps, the marked part hardly matters, or the class is "
    "improbable.",
    "blank": "The map has the same value everywhere.",
}
"""What each grade of a proof means."""


@cache
def guide(trace: str, capture: str, intervene: str) -> bytes:
    """Return the guide as UTF-8. It is open to everybody, so it leaves out an operator's own methods.

    Args:
        trace: where the page `/docs` describes `POST /hooks/trace`.
        capture: likewise `POST /hooks/capture`.
        intervene: likewise `POST /hooks/intervene`.
    """
    links = {"trace": trace, "capture": capture, "intervene": intervene}
    methods = [METHODS[name] for name in list_methods() if METHODS[name].explainer.__module__.startswith("seewhy.")]
    page = template("seewhy.app.answers", "guide.html").render(
        methods=methods, grades=GRADES, warnings=WARNINGS.values(), equation=mathml, links=links
    )
    return page.encode()
