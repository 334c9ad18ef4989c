"""The X-SeeWhy headers: what an answer is about, for whoever does not look into it."""

from collections.abc import Sequence
from urllib.parse import quote

from seewhy.app.pipeline.timings import Timings
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.classification import Prediction
from seewhy.models import LoadedModel


def facts(
    model: LoadedModel,
    targets: Sequence[Prediction],
    timings: Timings,
    layers: Sequence[str] = (),
    method: str = "",
    explanations: Sequence[Explanation] = (),
) -> dict[str, str]:
    """Return the headers that tell what an answer is about; those with nothing to tell are left out.

    Args:
        model: which model answered.
        targets: the classes that it is about.
        timings: of the stages.
        layers: those that the maps are of.
        method: what made the maps.
        explanations: whose diagnostics count.
    """
    codes = {found.code for explanation in explanations for found in explanation.diagnostics}
    against = dict.fromkeys(found.against.label for found in explanations if found.against)
    found = {
        "X-SeeWhy-Against": ", ".join(map(_text, against)),
        "X-SeeWhy-Diagnostics": ", ".join(sorted(codes)),
        "X-SeeWhy-Model": _text(model.name),
        "X-SeeWhy-Method": method,
        "X-SeeWhy-Layers": ", ".join(map(_text, layers)),
        "X-SeeWhy-Target": ", ".join(str(target.index) for target in targets),
        "X-SeeWhy-Label": ", ".join(_text(target.label) for target in targets),
        "X-SeeWhy-Probability": ", ".join(f"{target.probability:.6f}" for target in targets),
        "Server-Timing": timings.header,
    }
    return {name: value for name, value in found.items() if value}


def _text(text: str) -> str:
    """Percent-encode what a header cannot hold, and the comma that separates labels."""
    return quote(text, safe=" !#$&'()*+/:;=?@[]^`{|}~\"<>\\")
