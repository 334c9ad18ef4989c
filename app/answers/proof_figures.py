"""The figures and warnings of a heatmap for its reader, as rows of a table and as JSON-LD."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.trust.proof import Measurement, Proof
from seewhy.explainers.trust.sentences import WARNINGS


class Figure(NamedTuple):
    """A figure of a proof."""

    name: str
    value: float
    text: str


def figures(proof: Proof) -> list[Figure]:
    """Return the figures of a proof that are known."""
    rows: list[Figure] = []

    def add(name: str, value: float | None, form: str = ".0%") -> None:
        if value is not None:
            rows.append(Figure(name, value, format(value, form)))

    if proof.faithfulness:
        for name, value, form in _measured(proof.faithfulness):
            add(name, value, form)
    if proof.copies:
        add("Rotated and mirrored copies that it beats", proof.copies.beaten)
        add("Lead over the best of them", proof.copies.lead, ".3f")
    if proof.calibration:
        add("Maps that cannot depend on the picture, beaten", proof.calibration.beats, ".1%")
        add("Number of these maps", proof.calibration.of, "d")
        add("False alarms at 95 %", proof.calibration.false_alarms_at_95, ".1%")
    if proof.sanity:
        add("Likeness to the map with a shuffled head", proof.sanity.same_with_random_head, ".2f")
        add("Likeness to the map of a network with shuffled weights", proof.sanity.same_with_random_model, ".2f")
        add("Likeness to the map for an unlikely class", proof.sanity.same_for_an_unlikely_class, ".2f")
    add("Share of the map at the border", proof.shape.border_mass)
    add("Share of the picture that the model does not see", proof.shape.unseen)
    add("Inequality of the map (Gini)", proof.shape.gini, ".2f")
    add("Difference from the sum that the method promises", proof.completeness_gap, ".1%")
    add("Forward passes of the proof", proof.cost.forwards, "d")
    return rows


def warnings(explanation: Explanation) -> dict[str, str]:
    """Return the warnings about a heatmap: its diagnostics, and those of its proof, as sentences by code."""
    notes = {note.code: note.message for note in explanation.diagnostics}
    codes = explanation.proof.warnings if explanation.proof else ()
    return notes | {code: WARNINGS[code] for code in codes if code not in notes}


def linked(explanation: Explanation) -> dict[str, Any]:
    """Return the figures and warnings of a heatmap as JSON-LD, in the vocabulary of schema.org."""
    proof = explanation.proof
    rows = figures(proof) if proof else []
    return {
        "@type": "Dataset",
        "name": explanation.caption,
        **({"abstract": proof.sentence, "variableMeasured": [_property(row) for row in rows]} if proof else {}),
        "comment": [
            {"@type": "Comment", "name": code, "text": sentence} for code, sentence in warnings(explanation).items()
        ],
    }


def _property(row: Figure) -> dict[str, Any]:
    return {"@type": "PropertyValue", "name": row.name, "value": row.value}


def _measured(measured: Measurement) -> Iterator[tuple[str, float | None, str]]:
    """Yield name, value and format of what the model says of parts of the picture."""
    what, form = ("Probability", ".2%") if measured.probability is not None else ("Value", ".4g")
    yield "Share of the picture that is marked", measured.area, ".0%"
    yield f"{what} of the whole picture", measured.probability if measured.value is None else measured.value, form
    yield f"{what} of the marked part alone", measured.kept, form
    yield f"{what} without the marked part", measured.dropped, form
    yield f"{what} without the same shape, rotated by 180°", measured.turned_dropped, form
    yield f"{what} with everything hidden", measured.hidden, form
    yield "Score", measured.score, ".2f"
