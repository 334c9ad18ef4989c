"""The commands about hooks: trace, capture, intervene."""

import json
from pathlib import Path
from typing import Any

import click

from app.api.hooks import CAPTURE_FORMATS, INTERVENE_FORMATS, TRACE_FORMATS
from app.carriers import parse
from app.cli_io import destination, each, form_of, open_service, pair, picture_options, read
from app.hook_answers import (
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
from app.hook_service import HookService, Intervened, Swept
from app.schemas import CaptureFormat, CaptureOptions, InterveneFormat, InterveneOptions, TraceFormat, TraceOptions
from explainers.render import VIEWS
from explainers.sites import KINDS


@click.command()
@picture_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File, or folder for several pictures.")
@click.option("--target", help="Class index or label. Default: the most probable.")
@click.option("--layer", multiple=True, help="Dotted module path or glob; repeatable. Default: all without submodules.")
@click.option("--format", "form", type=click.Choice(TRACE_FORMATS), help="Default: by the output's suffix, or json.")
def trace(
    pictures: tuple[Path, ...], device: str | None, output: Path | None, form: TraceFormat | None, **given: Any
) -> None:
    """Write the time line of all hook calls for each PICTURE, and print what stands out."""
    form = form or form_of(output, TRACE_FORMATS)
    options = parse(TraceOptions, _given(given))
    hooks = HookService(open_service(device))
    into = destination(pictures, output, form)

    def one(picture: Path) -> str:
        traced = hooks.trace(read(picture), options)
        if form == "json":
            body = trace_document(traced).model_dump_json(indent=2).encode()
        else:
            body = trace_chart(traced, form)
        path = into(picture)
        path.write_bytes(body)
        summary = traced.trace.summary
        dead = sum(len(one.channels) for one in summary.dead_maps)
        said = [f"{len(traced.trace.events)} events", f"{dead} dead feature maps"]
        for name in ("vanishing", "exploding", "without_gradient", "non_finite", "not_run"):
            said += [f"{name.replace('_', ' ')}: {len(paths)}"] if (paths := getattr(summary, name)) else []
        return f"{picture}: {traced.target.label} {traced.target.probability:.1%}, {', '.join(said)} -> {path}"

    each(pictures, one)


@click.command()
@picture_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File, or folder for several pictures.")
@click.option("--layer", multiple=True, required=True, help="Dotted module path or glob; repeatable.")
@click.option("--kind", multiple=True, type=click.Choice(KINDS), help="What to capture; repeatable. Default: output.")
@click.option("--target", help="Class whose gradients. Default: the most probable.")
@click.option("--format", "form", type=click.Choice(CAPTURE_FORMATS), help="Default: by the output's suffix, or json.")
@click.option("--top", type=int, default=16, show_default=True, help="Feature maps on a contact sheet.")
@click.option("--rank", type=click.Choice(["activation", "effect"]), default="activation", show_default=True)
@click.option("--view", type=click.Choice(VIEWS), default="overlay", show_default=True)
@click.option("--colormap", help="A perceptual colour map.")
@click.option("--alpha", type=float, default=0.5, show_default=True, help="Strength of the overlay, 0 to 1.")
@click.option("--scale", default="image", show_default=True, help="`image`, `robust`, or fixed ends `lo,hi`.")
def capture(
    pictures: tuple[Path, ...], device: str | None, output: Path | None, form: CaptureFormat | None, **given: Any
) -> None:
    """Write what passes through layers for each PICTURE: statistics, arrays, or the strongest feature maps."""
    form = form or form_of(output, CAPTURE_FORMATS)
    options = parse(CaptureOptions, _given(given))
    hooks = HookService(open_service(device))
    into = destination(pictures, output, form)
    drawn = form not in ("json", "npz", "safetensors")

    def one(picture: Path) -> str:
        captured = hooks.capture(read(picture), options, sheet=drawn)
        if form == "json":
            body = capture_document(captured).model_dump_json(indent=2).encode()
        elif form == "npz" or form == "safetensors":
            body = captured.capture.encoded(form)
        else:
            by_effect = options.rank == "effect"
            body = encoded(lambda: capture_sheet(captured, options.top, by_effect), form, captured.timings)
        path = into(picture)
        path.write_bytes(body)
        return f"{picture}: {len(captured.capture.tensors)} tensors -> {path}"

    each(pictures, one)


@click.command()
@picture_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File, or folder for several pictures.")
@click.option("--edit", "edits", multiple=True, metavar="JSON", help="An edit as JSON; repeatable, in order.")
@click.option("--edits", "file", type=click.File(), help="A JSON file with a list of edits.")
@click.option("--other", type=click.Path(path_type=Path), help="The picture that the op `swap` takes from.")
@click.option("--each-channel", is_flag=True, help="Rank the channels of a layer by what the only edit does to each.")
@click.option("--method", help="A name of `seewhy methods`. Default: gradcam.")
@click.option("--target", help="Class index or label. Default: the most probable before the edits.")
@click.option("--layer", multiple=True, help="Layer of the heatmaps; repeatable (fused).")
@click.option(
    "--format", "form", type=click.Choice(INTERVENE_FORMATS), help="Default: by the output's suffix, or json."
)
@click.option("--top", type=int, default=16, show_default=True, help="Channels that a drawn sweep shows.")
@click.option("--view", type=click.Choice(VIEWS), default="overlay", show_default=True)
@click.option("--colormap", help="A perceptual colour map.")
@click.option("--alpha", type=float, default=0.5, show_default=True, help="Strength of the overlay, 0 to 1.")
@click.option("--scale", default="image", show_default=True, help="`image`, `robust`, or fixed ends `lo,hi`.")
@click.option("--values", is_flag=True, default=None, help="Include the heatmaps' numbers in a JSON answer.")
@click.option("--option", "extra", multiple=True, metavar="NAME=VALUE", help="An option of the method; repeatable.")
def intervene(
    pictures: tuple[Path, ...],
    device: str | None,
    output: Path | None,
    form: InterveneFormat | None,
    edits: tuple[str, ...],
    file: Any,
    other: Path | None,
    extra: tuple[str, ...],
    **given: Any,
) -> None:
    """Write what edits change for each PICTURE: predictions and heatmaps before and after."""
    form = form or form_of(output, INTERVENE_FORMATS)
    listed = [_json(text, "--edit") for text in edits]
    if file is not None:
        found = _json(file.read(), "--edits")
        listed = [*(found if isinstance(found, list) else [found]), *listed]
    if not listed:
        raise click.UsageError('Say what to edit: --edit \'{"op": "zero", "layer": "features"}\', or --edits FILE.')
    options = parse(InterveneOptions, {**_given(given), **dict(pair(one) for one in extra), "edits": listed})
    service = open_service(device)
    hooks = HookService(service)
    into = destination(pictures, output, form)
    second = None if other is None else read(other)

    def write(found: Intervened) -> bytes:
        if form != "json":
            return encoded(lambda: intervention_drawing(found), form, found.timings)
        answer = intervention_document(found, options.values, service.settings.max_json_values)
        return answer.model_dump_json(indent=2).encode()

    def write_sweep(found: Swept) -> bytes:
        if form != "json":
            return encoded(lambda: sweep_drawing(found, options.top), form, found.timings)
        return sweep_document(found).model_dump_json(indent=2).encode()

    def one(picture: Path) -> str:
        if options.each_channel:
            swept = hooks.sweep(read(picture), second, options)
            body, label = write_sweep(swept), swept.target.label
            first, last = swept.sweep.channels[0], swept.sweep.channels[-1]
            said = (
                f"{len(swept.sweep.channels)} channels, from {first.channel} ({first.logit_change:+.3f}) "
                f"to {last.channel} ({last.logit_change:+.3f})"
            )
        else:
            found = hooks.intervene(read(picture), second, options)
            body, label = write(found), found.intervention.before.target.label
            before, after = found.intervention.before.target, found.intervention.after.target
            said = f"{before.probability:.1%} before, {after.probability:.1%} after"
        path = into(picture)
        path.write_bytes(body)
        return f"{picture}: {label} {said} -> {path}"

    each(pictures, one)


def _given(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, repeatable ones as lists."""
    found = {name: value for name, value in given.items() if value not in (None, ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=option) from error
