"""What the commands about hooks write of each picture."""

from pathlib import Path
from typing import Any, Literal

from seewhy.app.answers.hook_documents import (
    capture_document,
    capture_sheet,
    encoded,
    intervention_document,
    intervention_drawing,
    sweep_document,
    sweep_drawing,
    trace_chart,
    trace_document,
)
from seewhy.app.cli.files import Task, read
from seewhy.app.cli.run import load_model, open_service, write_each
from seewhy.app.http.uploads import parse
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.choices import CaptureFormat, InterveneFormat, TraceFormat
from seewhy.app.pipeline.inspection import HookService
from seewhy.app.pipeline.options import CaptureOptions, InterveneOptions, TraceOptions

_FINDINGS = ("vanishing", "exploding", "without_gradient", "non_finite", "not_run")
"""Lists of layers in a trace's summary; a line tells how many layers each has."""


def write_traces(tasks: list[Task], form: TraceFormat, fields: dict[str, Any], device: str | None) -> None:
    """Write the time line of each picture, and print what stands out in it."""
    options = parse(TraceOptions, fields)
    hooks = HookService(_service(device, options.model))

    def answer(task: Task) -> tuple[str, bytes]:
        traced = hooks.trace(read(task.picture), options)
        if form == "json":
            body = trace_document(traced).model_dump_json(indent=2).encode()
        else:
            body = trace_chart(traced, form)
        summary = traced.trace.summary
        dead = sum(len(layer.channels) for layer in summary.dead_maps)
        facts = [f"{len(traced.trace.events)} events", f"{dead} dead feature maps"]
        for name in _FINDINGS:
            facts += [f"{name.replace('_', ' ')}: {len(paths)}"] if (paths := getattr(summary, name)) else []
        return f"{traced.target.label} {traced.target.probability:.1%}, {', '.join(facts)}", body

    write_each(tasks, form, answer)


def write_captures(tasks: list[Task], form: CaptureFormat, fields: dict[str, Any], device: str | None) -> None:
    """Write what passes through the layers for each picture."""
    options = parse(CaptureOptions, fields)
    hooks = HookService(_service(device, options.model))

    def answer(task: Task) -> tuple[str, bytes]:
        captured = hooks.capture(read(task.picture), options, sheet=form not in ("json", "npz", "safetensors"))
        if form == "json":
            body = capture_document(captured).model_dump_json(indent=2).encode()
        elif form == "npz" or form == "safetensors":
            body = captured.capture.encoded(form)
        else:
            by_effect, picture = options.rank == "effect", captured.shown.picture
            body = encoded(lambda: capture_sheet(captured, options.top, by_effect), form, captured.timings, picture)
        count = len(captured.capture.tensors)
        return f"{count} tensor{'s' if count > 1 else ''}", body

    write_each(tasks, form, answer)


def write_interventions(
    tasks: list[Task], form: InterveneFormat, fields: dict[str, Any], other: Path | None, device: str | None
) -> None:
    """Write predictions and heatmaps of each picture before and after the edits."""
    options = parse(InterveneOptions, fields)
    service = _service(device, options.model)
    hooks = HookService(service)
    other_picture = None if other is None else other.read_bytes()

    def answer(task: Task) -> tuple[str, bytes]:
        intervened = hooks.intervene(read(task.picture), other_picture, options)
        before, after = intervened.intervention.before, intervened.intervention.after
        if form == "json":
            document = intervention_document(intervened, options.values, service.settings.max_json_values)
            body = document.model_dump_json(indent=2).encode()
        else:
            body = encoded(lambda: intervention_drawing(intervened), form, intervened.timings, before.picture)
        change = f"{before.target.probability:.1%} before, {after.target.probability:.1%} after"
        return f"{before.target.label} {change}", body

    write_each(tasks, form, answer)


def write_sweeps(
    tasks: list[Task],
    form: InterveneFormat | Literal["csv"],
    fields: dict[str, Any],
    other: Path | None,
    device: str | None,
) -> None:
    """Write the channels of a layer, ranked by what the edit of each does to the class of each picture."""
    options = parse(InterveneOptions, fields)
    hooks = HookService(_service(device, options.model))
    other_picture = None if other is None else other.read_bytes()

    def answer(task: Task) -> tuple[str, bytes]:
        swept = hooks.sweep(read(task.picture), other_picture, options)
        if form == "csv":
            body = swept.sweep.table()
        elif form == "json":
            body = sweep_document(swept).model_dump_json(indent=2).encode()
        else:
            body = encoded(lambda: sweep_drawing(swept, options.top), form, swept.timings, swept.shown.picture)
        channels = swept.sweep.channels
        ends = [f"{end.channel} ({end.logit_change:+.3f})" for end in (channels[0], channels[-1])]
        return f"{swept.target.label} {len(channels)} channels, from {' to '.join(ends)}", body

    write_each(tasks, form, answer)


def _service(device: str | None, model: str | None) -> Service:
    """Return a service that has this model loaded."""
    service = open_service(device)
    load_model(service, model)
    return service
