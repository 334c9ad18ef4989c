"""Reports: one HTML file with the picture, its maps, their proofs and everything that is needed to repeat them."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from seewhy.explainers.core.percent import likelihood
from seewhy.explainers.imaging.png import data_url, encode_png
from seewhy.explainers.imaging.render import fit
from seewhy.explainers.methods.catalogue import METHODS, Method
from seewhy.explainers.results.colours import colour_strip, ends_of
from seewhy.explainers.results.map_drawing import MapDrawing
from seewhy.explainers.results.templates import mathml, template
from seewhy.explainers.trust.proof import Measurement, Proof
from seewhy.explainers.trust.sentences import WARNINGS

PICTURE = "PICTURE"
"""Stands for the file of the picture in the command of a report."""

MASK = "MASK"
"""Likewise for that of the mask."""

SCORES = "SCORES"
"""Likewise for the calibration of proofs."""

_RUNTIMES = {"eager": "PyTorch", "openvino": "OpenVINO", "compile": "torch.compile"}
"""Names of accelerators, for people."""


def report_page(
    record: Mapping[str, Any],
    document: Mapping[str, Any],
    explanations: Sequence[MapDrawing],
    methods: Sequence[Method],
    max_side: int | None,
) -> bytes:
    """Return the report of explanations as UTF-8.

    Args:
        record: see `record_of`.
        document: the JSON of the explanations, with their drawings.
        explanations: explanations of one picture.
        methods: their methods.
        max_side: longest side of the picture in the report, in pixels; None for its own.
    """
    picture = fit(explanations[0].picture, max_side)
    created = datetime.fromisoformat(record["created"])
    texts = {explanation.method: explanation.method_text for explanation in explanations}
    drawn = {explanation.method: METHODS.get(explanation.drawn_by) for explanation in explanations}
    rows = [
        {
            "name": texts.get(asked.name, asked.name),
            "summary": method.summary,
            "papers": method.papers,
            "equation": mathml(method.equation),
        }
        for asked in methods
        for method in (drawn.get(asked.name) or asked,)
    ]
    page = template("seewhy.explainers.results", "report.html").render(
        record=record,
        runtime=_RUNTIMES.get(record["accelerator"], record["accelerator"]),
        placeholders=placeholders(record),
        created=f"{created.day} {created:%B %Y, %H:%M} UTC",
        linked=_linked(record) | {"hasPart": [linked(explanation) for explanation in explanations]},
        picture=data_url(encode_png(picture)),
        parts=list(zip(explanations, document["explanations"], strict=True)),
        figures=figures,
        warnings=warnings,
        strip=lambda signed, colormap: data_url(encode_png(colour_strip(signed, colormap))),
        ends=ends_of,
        predictions=explanations[0].predictions,
        methods=rows,
    )
    return page.encode()


def record_of(
    document: Mapping[str, Any], files: Mapping[str, Any], runtime: tuple[str, str, str], command: str | None
) -> dict[str, Any]:
    """Return the record of a report: a document without drawings and times, and its inputs.

    Args:
        document: the JSON of the explanations.
        files: the members `picture` and, where there is one, `mask`.
        runtime: device, precision and accelerator.
        command: the command that repeats the maps; None if there is none.
    """
    explanations = [
        {name: value for name, value in part.items() if name != "overlay"} for part in document["explanations"]
    ]
    device, precision, accelerator = runtime
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **files,
        **{name: value for name, value in document.items() if name not in ("method", "timings_ms")},
        "explanations": explanations,
        "device": device,
        "precision": precision,
        "accelerator": accelerator,
        **({} if command is None else {"command": command}),
    }


def repeating_command(
    fields: Mapping[str, Any],
    options: Mapping[str, Any],
    device: str,
    precision: str = "float32",
    mask: bool = False,
    environment: Sequence[str] = (),
) -> str:
    """Return the command that repeats explanations, for a shell; see `placeholders`.

    Args:
        fields: options of the command by name.
        options: options of the methods.
        device: its type, such as ``cpu``.
        precision: the setting.
        mask: whether there is a mask.
        environment: further variables, such as ``SEEWHY_MODELS=MODELS``.
    """
    words = ["seewhy", "explain", PICTURE, *_flags(fields), *(["--mask", MASK] if mask else [])]
    words += [f"--option={name}={_word(value)}" for name, value in options.items()]
    if device != "cpu":
        words.append(f"--device={device}")
    variables = [] if precision == "float32" else [f"SEEWHY_PRECISION={precision}"]
    return " ".join([*variables, *environment, shlex.join([*words, "--output=maps.npz"])])


def placeholders(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the words in the command of a report that stand for something, each with what it stands for."""
    meanings = {
        PICTURE: "the file with the digest above" if "sha256" in record["picture"] else "the file of the picture",
        MASK: "that of the mask",
        "MODELS": "the models file",
        "FOLDER": "the folder of the model's code",
        SCORES: "the file of scores that the proof was compared with",
    }
    words = {word.rpartition("=")[2] for word in shlex.split(record.get("command", ""))}
    return [(word, meaning) for word, meaning in meanings.items() if word in words]


def _flags(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of a command; lists are repeated, except the two ends of a scale."""
    for name, value in fields.items():
        values = value if isinstance(value, list) and name != "scale" else [value]
        yield from (f"--{name.replace('_', '-')}={_word(part)}" for part in values)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _linked(record: Mapping[str, Any]) -> dict[str, Any]:
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
            **_linked_file(picture),
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


def _linked_file(picture: Mapping[str, Any]) -> dict[str, str]:
    if "sha256" not in picture:  # it was not a file
        return {}
    return {"sha256": picture["sha256"], "contentSize": f"{picture['bytes']} B"}


class Figure(NamedTuple):
    """A figure of a proof, with what it means; empty if its name says so."""

    name: str
    value: float
    text: str
    meaning: str


def figures(proof: Proof) -> list[Figure]:
    """Return the figures of a proof that are known."""
    rows: list[Figure] = []

    def add(name: str, value: float | None, form: str = ".0%", meaning: str = "") -> None:
        if value is not None:
            text = (likelihood(value) if form == "%" else format(value, form if form == "d" else f"z{form}")).replace(
                "-", "−"
            )  # never −0.00
            rows.append(Figure(name, value, text, meaning))

    if proof.faithfulness:
        for measurement in _measurements(proof.faithfulness):
            add(*measurement)
    if proof.copies:
        add("Rotated and mirrored copies that it beats", proof.copies.beaten, meaning="by a score at least 0.01 higher")
        add("Lead over the best of them", proof.copies.lead, ".3f", "difference of the scores")
    if proof.calibration:
        add("Comparison maps that it beats", proof.calibration.beats, ".1%", "by a higher score")
        add("Number of comparison maps", proof.calibration.of, "d", "maps that cannot depend on the picture")
        alarms = "share of comparison maps that beat 95% of those of other pictures: 5% is ideal"
        add("False alarms at 95%", proof.calibration.false_alarms_at_95, ".1%", alarms)
    if sanity := proof.sanity:
        ignored = "of this method, over several pictures: near 1 if its maps ignore"
        ignored_class, ignored_model = f"{ignored} the class", f"{ignored} what the network has learned"
        add("Correlation with the map for shuffled classes", sanity.same_with_random_head, ".2f", ignored_class)
        random = "Correlation with the map of a network with random weights"
        add(random, sanity.same_with_random_model, ".2f", ignored_model)
        add("Correlation with the map for an unlikely class", sanity.same_for_an_unlikely_class, ".2f", ignored_class)
    shape = proof.shape
    border = "in the outer fourteenth of each side; 27% if the map is even"
    add("Share of the map at the border", shape.border_mass, meaning=border)
    add("Share of the picture that the model does not see", shape.unseen, meaning="cropped away before the model")
    add("Gini coefficient of the map", shape.gini, ".2f", "0 if the map is even, near 1 if few pixels hold all of it")
    add("Difference from the expected sum", proof.completeness_gap, ".1%", "of the map's values; near 0% is right")
    add("Forward passes of the proof", proof.cost.forwards, "d")
    return rows


def warnings(explanation: MapDrawing) -> dict[str, str]:
    """Return the warnings about a heatmap: its diagnostics, and those of its proof, as sentences by code."""
    notes = {note.code: note.message for note in explanation.diagnostics}
    codes = explanation.proof.warnings if explanation.proof else ()
    return notes | {code: WARNINGS[code] for code in codes if code not in notes}


def linked(explanation: MapDrawing) -> dict[str, Any]:
    """Return the figures and warnings of a heatmap as JSON-LD, in the vocabulary of schema.org."""
    proof = explanation.proof
    rows = figures(proof) if proof else []
    values = [{"@type": "PropertyValue", "name": row.name, "value": row.value} for row in rows]
    return {
        "@type": "Dataset",
        "name": explanation.caption,
        **({"abstract": proof.sentence, "variableMeasured": values} if proof else {}),
        "comment": [
            {"@type": "Comment", "name": code, "text": sentence} for code, sentence in warnings(explanation).items()
        ],
    }


def _measurements(measurement: Measurement) -> Iterator[tuple[str, float | None, str, str]]:
    """Yield the name, value, format and meaning of the scores of parts of the picture."""
    what, form = ("Probability", "%") if measurement.probability is not None else ("Value", ".4g")
    whole = measurement.probability if measurement.value is None else measurement.value
    yield "Share of the picture that is marked", measurement.area, ".0%", "where the map is highest"
    yield f"{what} with the whole picture", whole, form, ""
    yield f"{what} with only the marked part", measurement.kept, form, "all else is hidden"
    yield f"{what} without the marked part", measurement.dropped, form, "this part is hidden"
    turned = f"{what} without the same shape, rotated by 180°"
    yield turned, measurement.turned_dropped, form, "hidden elsewhere, for comparison"
    yield f"{what} with everything hidden", measurement.hidden, form, ""
    of = "the probability" if what == "Probability" else "the effect of the whole picture"
    yield "Score", measurement.score, ".2f", f"only the marked part minus without it, as a share of {of}: 1 is good"
