"""Reports: one HTML file with the picture, its maps, their proofs and everything that is needed to repeat them."""

import hashlib
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from seewhy.app.answers.documents import data_url, encode, json_documents
from seewhy.app.answers.templates import mathml, template
from seewhy.app.pipeline.options import ExplainOptions
from seewhy.app.pipeline.results import ExplainResult
from seewhy.app.settings import Settings
from seewhy.explainers.imaging.render import fit
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.trust.proof import Measurement, Proof
from seewhy.explainers.trust.sentences import WARNINGS

PICTURE = "PICTURE"
"""Stands for the file of the upload in the command of a report."""

MASK = "MASK"
"""Likewise for that of the mask."""

CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""A report loads nothing and runs nothing."""

_UNREPEATED = {"format", "model", "method", "top", "values"}
"""Options that the command spells otherwise, or that a report does not depend on."""


def report_body(
    result: ExplainResult, options: ExplainOptions, upload: bytes, mask: bytes | None, settings: Settings
) -> bytes:
    """Return the report of explanations as UTF-8."""
    (document,) = json_documents([result], values=False, max_values=settings.max_json_values)
    record = _record(result, options, document, upload, mask, settings)
    picture = fit(result.explanations[0].picture, result.style.max_side)
    methods = [
        {"name": method.name, "summary": method.summary, "paper": method.paper, "equation": mathml(method.equation)}
        for method, _ in result.methods
    ]
    page = template("report.html").render(
        record=record,
        linked=_linked(record) | {"hasPart": [linked(explanation) for explanation in result.explanations]},
        picture=data_url(encode(picture, "png")),
        parts=list(zip(result.explanations, document["explanations"], strict=True)),
        figures=figures,
        warnings=warnings,
        predictions=result.explanations[0].predictions,
        methods=methods,
    )
    return page.encode()


def command(result: ExplainResult, options: ExplainOptions, has_mask: bool, settings: Settings) -> str:
    """Return the command that repeats explanations, for a shell; `PICTURE` and `MASK` stand for the files.

    What the request left to defaults that may change, the model, the methods and the targets, is spelled out.
    """
    fields: dict[str, Any] = {"model": result.model.name, "method": [method.name for method, _ in result.methods]}
    if not (options.target or options.region or has_mask):
        fields["target"] = [target.name for target in result.targets]
    fields |= {
        name: value
        for name, value in options.model_dump(mode="json", exclude_unset=True).items()
        if name not in _UNREPEATED and name not in options.method_options and value not in (None, [])
    }
    words = ["seewhy", "explain", PICTURE, *_flags(fields), *(["--mask", MASK] if has_mask else [])]
    for name, value in options.method_options.items():
        words.append(f"--option={name}={_word(value)}")
    if result.model.device.type != "cpu":
        words.append(f"--device={result.model.device.type}")
    environment = [] if settings.precision == "float32" else [f"SEEWHY_PRECISION={settings.precision}"]
    return " ".join([*environment, shlex.join([*words, "--output=maps.npz"])])


def _flags(fields: dict[str, Any]) -> Iterator[str]:
    """Yield the options of a command; lists are repeated, except the two ends of a scale."""
    for name, value in fields.items():
        values = value if isinstance(value, list) and name != "scale" else [value]
        yield from (f"--{name.replace('_', '-')}={_word(part)}" for part in values)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _record(
    result: ExplainResult,
    options: ExplainOptions,
    document: dict[str, Any],
    upload: bytes,
    mask: bytes | None,
    settings: Settings,
) -> dict[str, Any]:
    """Return the record of a report: the JSON response without drawings and times, and its inputs."""
    geometry = result.explanations[0].geometry
    explanations = [
        {name: value for name, value in part.items() if name != "overlay"} for part in document["explanations"]
    ]
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "picture": {**_identity(upload), "width": geometry.width, "height": geometry.height},
        **({} if mask is None else {"mask": _identity(mask)}),
        **{name: value for name, value in document.items() if name not in ("method", "timings_ms")},
        "explanations": explanations,
        "device": str(result.model.device),
        "precision": result.model.precision if settings.precision == "bfloat16" else settings.precision,
        "accelerator": result.model.accelerator,
        "command": command(result, options, mask is not None, settings),
    }


def _identity(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _linked(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON-LD, in the vocabulary of schema.org; `record` itself is a JSON literal."""
    picture, model, versions = record["picture"], record["model"], record["versions"]
    return {
        "@context": {
            "@version": 1.1,
            "@vocab": "https://schema.org/",
            "record": {"@id": "urn:seewhy:record", "@type": "@json"},
        },
        "@type": "Report",
        "name": f"Explanation of {model['name']}",
        "dateCreated": record["created"],
        "about": {
            "@type": "ImageObject",
            "sha256": picture["sha256"],
            "contentSize": f"{picture['bytes']} B",
            "width": picture["width"],
            "height": picture["height"],
        },
        "isBasedOn": {"@type": "CreativeWork", "name": model["name"], "identifier": f"sha256:{model['sha256']}"},
        "creator": {
            "@type": "SoftwareApplication",
            "name": "SeeWhy",
            "softwareVersion": versions["seewhy"],
            "softwareRequirements": [f"{name} {version}" for name, version in versions.items() if name != "seewhy"],
        },
        "record": record,
    }


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
