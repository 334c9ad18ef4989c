"""Output of the commands about hooks."""

from pathlib import Path
from typing import Any, Literal

from seewhy.app.answers.hook_documents import capture_body, intervention_body, sweep_body, trace_body
from seewhy.app.answers.stream import Body
from seewhy.app.cli.files import Item, read
from seewhy.app.cli.run import ready_service, write_each
from seewhy.app.pipeline import inspection
from seewhy.app.pipeline.choices import DRAWINGS, CaptureFormat, InterveneFormat, TraceFormat
from seewhy.app.pipeline.edit_options import InterveneOptions
from seewhy.app.pipeline.options import CaptureOptions, TraceOptions
from seewhy.app.pipeline.parse import parse
from seewhy.explainers.errors import counted

_FINDINGS = ("vanishing", "exploding", "without_gradient", "non_finite", "not_run")
"""Lists of layers in a trace's summary; the printed line has their lengths."""


def write_traces(items: list[Item], form: TraceFormat, fields: dict[str, Any], device: str | None) -> None:
    """Write the timeline of each picture, and print its summary."""
    options = parse(TraceOptions, fields)
    service = ready_service(device, options.model)

    def answer(item: Item) -> tuple[str, Body]:
        result = inspection.trace(service, read(item.picture), options)
        summary = result.trace.summary
        dead = sum(len(layer.channels) for layer in summary.dead_maps)
        facts = [counted(len(result.trace.events), "event"), counted(dead, "dead feature map")]
        for name in _FINDINGS:
            facts += [f"{name.replace('_', ' ')}: {len(paths)}"] if (paths := getattr(summary, name)) else []
        target = f"{result.target.label} {result.target.text}"
        return f"{target}, {', '.join(facts)}", trace_body(result, form)

    write_each(items, form, answer)


def write_captures(items: list[Item], form: CaptureFormat, fields: dict[str, Any], device: str | None) -> None:
    """Write activations and gradients of layers for each picture."""
    options = parse(CaptureOptions, fields)
    service = ready_service(device, options.model)

    def answer(item: Item) -> tuple[str, Body]:
        result = inspection.capture(service, read(item.picture), options, sheet=form in DRAWINGS)
        return counted(len(result.capture.tensors), "tensor"), capture_body(result, form, options)

    write_each(items, form, answer)


def write_interventions(
    items: list[Item],
    form: InterveneFormat | Literal["csv"],
    fields: dict[str, Any],
    other: Path | None,
    device: str | None,
) -> None:
    """Write predictions and heatmaps of each picture before and after the edits; or a sweep, which can be csv."""
    options = parse(InterveneOptions, fields)
    service = ready_service(device, options.model)
    other_picture = None if other is None else other.read_bytes()

    def answer(item: Item) -> tuple[str, Body]:
        if form == "csv" or options.each_channel:
            sweep = inspection.sweep(service, read(item.picture), other_picture, options)
            channels = sweep.sweep.channels
            ends = [f"channel {end.channel} ({end.score_change:+z.3f})" for end in (channels[0], channels[-1])]
            line = f"{sweep.target.label}: {counted(len(channels), 'channel')}; {' to '.join(dict.fromkeys(ends))}"
            return line, sweep.sweep.table() if form == "csv" else sweep_body(sweep, form, options)
        result = inspection.intervene(service, read(item.picture), other_picture, options)
        before, after = result.intervention.before.target, result.intervention.after.target
        change = result.intervention.score_change
        line = f"{before.label} {before.text} before, {after.text} after; the score changes by {change:+.3g}"
        return line, intervention_body(result, form, options.values, service.settings.max_json_values)

    write_each(items, form, answer)
