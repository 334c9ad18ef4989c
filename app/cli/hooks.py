"""The commands about hooks: trace, capture, intervene."""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from seewhy.app.cli.files import Task, plan, read
from seewhy.app.cli.options import (
    CAPTURE_FORMATS,
    INTERVENE_FORMATS,
    KINDS,
    TRACE_FORMATS,
    drawing_options,
    format_option,
    given_options,
    heatmap_options,
    layer_option,
    method_option,
    output_option,
    pair,
    picture_options,
)
from seewhy.app.cli.run import each_alone, open_service, ready

if TYPE_CHECKING:
    from seewhy.app.pipeline.inspection import Intervened, Swept
    from seewhy.app.pipeline.options import CaptureFormat, InterveneFormat, TraceFormat

_EXAMPLE = '{"op": "zero", "layer": "bn2"}'
_SWEEP_FORMATS: "tuple[InterveneFormat | Literal['csv'], ...]" = (*INTERVENE_FORMATS, "csv")


class _Edits(click.File):
    """A file of edits, or the edits themselves, which a reader of the HTTP pages writes here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
                return io.StringIO(value)
            raise


@click.command()
@picture_options
@output_option
@click.option("--target", help="Class index or label. Default: the most probable.")
@layer_option("Dotted module path or glob; repeatable. Default: all without submodules.")
@format_option(TRACE_FORMATS)
def trace(
    pictures: tuple[Path, ...], device: str | None, output: str | None, form: "TraceFormat | None", **given: Any
) -> None:
    """Write the time line of hook calls for each PICTURE.

    Prints what stands out in it.
    """
    chosen, tasks = plan(pictures, output, form, TRACE_FORMATS)

    from seewhy.app.answers.hook_documents import trace_chart, trace_document
    from seewhy.app.http.uploads import parse
    from seewhy.app.pipeline.inspection import HookService
    from seewhy.app.pipeline.options import TraceOptions

    options = parse(TraceOptions, given_options(given))
    service = open_service(device)
    ready(service, options.model)
    hooks = HookService(service)

    def work(task: Task) -> tuple[str, bytes]:
        traced = hooks.trace(read(task.picture), options)
        if chosen == "json":
            body = trace_document(traced).model_dump_json(indent=2).encode()
        else:
            body = trace_chart(traced, chosen)
        summary = traced.trace.summary
        dead = sum(len(one.channels) for one in summary.dead_maps)
        said = [f"{len(traced.trace.events)} events", f"{dead} dead feature maps"]
        for name in ("vanishing", "exploding", "without_gradient", "non_finite", "not_run"):
            said += [f"{name.replace('_', ' ')}: {len(paths)}"] if (paths := getattr(summary, name)) else []
        return f"{traced.target.label} {traced.target.probability:.1%}, {', '.join(said)}", body

    each_alone(tasks, chosen, work)


@click.command()
@picture_options
@output_option
@layer_option("Dotted module path or glob; repeatable.", required=True)
@click.option("--kind", multiple=True, type=click.Choice(KINDS), help="What to capture; repeatable. Default: output.")
@click.option("--target", help="Class whose gradients. Default: the most probable.")
@format_option(CAPTURE_FORMATS)
@click.option("--top", type=int, default=16, show_default=True, help="Feature maps on a contact sheet.")
@click.option("--rank", type=click.Choice(["activation", "effect"]), default="activation", show_default=True)
@drawing_options
def capture(
    pictures: tuple[Path, ...], device: str | None, output: str | None, form: "CaptureFormat | None", **given: Any
) -> None:
    """Write what passes through layers for each PICTURE.

    That is statistics, arrays, or the strongest feature maps.
    """
    chosen, tasks = plan(pictures, output, form, CAPTURE_FORMATS)

    from seewhy.app.answers.hook_documents import capture_document, capture_sheet, encoded
    from seewhy.app.http.uploads import parse
    from seewhy.app.pipeline.inspection import HookService
    from seewhy.app.pipeline.options import CaptureOptions

    options = parse(CaptureOptions, given_options(given))
    service = open_service(device)
    ready(service, options.model)
    hooks = HookService(service)
    drawn = chosen not in ("json", "npz", "safetensors")

    def work(task: Task) -> tuple[str, bytes]:
        captured = hooks.capture(read(task.picture), options, sheet=drawn)
        if chosen == "json":
            body = capture_document(captured).model_dump_json(indent=2).encode()
        elif chosen == "npz" or chosen == "safetensors":
            body = captured.capture.encoded(chosen)
        else:
            by_effect, shown = options.rank == "effect", captured.shown.picture
            body = encoded(lambda: capture_sheet(captured, options.top, by_effect), chosen, captured.timings, shown)
        count = len(captured.capture.tensors)
        return f"{count} tensor{'s' if count > 1 else ''}", body

    each_alone(tasks, chosen, work)


@click.command()
@picture_options
@output_option
@click.option("--edit", "edits", multiple=True, metavar="JSON", help=f"Such as '{_EXAMPLE}'; repeatable, in order.")
@click.option("--edits", "file", type=_Edits(), metavar="FILE", help="A JSON file with a list of edits, or the list.")
@click.option(
    "--other",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The picture that the op `swap` takes from.",
)
@click.option(
    "--each-channel",
    is_flag=True,
    help="Rank a layer's channels by what the only edit does to each; writes csv too.",
)
@method_option(help="A name of `seewhy methods`. Default: gradcam.")
@click.option("--target", help="Class index or label. Default: the most probable before the edits.")
@layer_option("Layer of the heatmaps; repeatable (fused).")
@format_option(_SWEEP_FORMATS)
@click.option("--top", type=int, default=16, show_default=True, help="Channels that a drawn sweep shows.")
@heatmap_options
def intervene(
    pictures: tuple[Path, ...],
    device: str | None,
    output: str | None,
    form: "InterveneFormat | Literal['csv'] | None",
    edits: tuple[str, ...],
    file: Any,
    other: Path | None,
    extra: tuple[str, ...],
    **given: Any,
) -> None:
    """Write what edits change for each PICTURE.

    That is predictions and heatmaps before and after.
    """
    chosen, tasks = plan(pictures, output, form, _SWEEP_FORMATS)
    if chosen == "csv" and not given["each_channel"]:
        raise click.UsageError(
            f"Only a sweep can be written as csv: add --each-channel, or choose {', '.join(INTERVENE_FORMATS)}."
        )
    listed = [_json(text, "--edit") for text in edits]
    if file is not None:
        found = _json(file.read(), "--edits")
        listed = [*(found if isinstance(found, list) else [found]), *listed]
    if not listed:
        raise click.UsageError(f"Say what to edit: --edit '{_EXAMPLE}', or --edits FILE.")
    settings = {**given_options(given), **dict(pair(one) for one in extra), "edits": listed}

    from seewhy.app.answers.hook_documents import (
        encoded,
        intervention_document,
        intervention_drawing,
        sweep_document,
        sweep_drawing,
    )
    from seewhy.app.http.uploads import parse
    from seewhy.app.pipeline.inspection import HookService
    from seewhy.app.pipeline.options import InterveneOptions

    options = parse(InterveneOptions, settings)
    service = open_service(device)
    ready(service, options.model)
    hooks = HookService(service)
    second = None if other is None else other.read_bytes()

    def drawn(found: "Intervened", form: "InterveneFormat") -> bytes:
        if form != "json":
            return encoded(lambda: intervention_drawing(found), form, found.timings, found.intervention.before.picture)
        answer = intervention_document(found, options.values, service.settings.max_json_values)
        return answer.model_dump_json(indent=2).encode()

    def drawn_sweep(found: "Swept") -> bytes:
        if chosen == "csv":
            return found.sweep.table()
        if chosen != "json":
            return encoded(lambda: sweep_drawing(found, options.top), chosen, found.timings, found.shown.picture)
        return sweep_document(found).model_dump_json(indent=2).encode()

    def work(task: Task) -> tuple[str, bytes]:
        if options.each_channel or chosen == "csv":
            swept = hooks.sweep(read(task.picture), second, options)
            body, label = drawn_sweep(swept), swept.target.label
            first, last = swept.sweep.channels[0], swept.sweep.channels[-1]
            said = (
                f"{len(swept.sweep.channels)} channels, from {first.channel} ({first.logit_change:+.3f}) "
                f"to {last.channel} ({last.logit_change:+.3f})"
            )
        else:
            found = hooks.intervene(read(task.picture), second, options)
            body, label = drawn(found, chosen), found.intervention.before.target.label
            before, after = found.intervention.before.target, found.intervention.after.target
            said = f"{before.probability:.1%} before, {after.probability:.1%} after"
        return f"{label} {said}", body

    each_alone(tasks, chosen, work)


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=option) from error
