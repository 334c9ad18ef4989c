"""The commands about hooks: trace, capture, intervene."""

import io
import json
from pathlib import Path
from typing import Any, Literal

import click

from seewhy.app.cli.files import plan
from seewhy.app.cli.method_command import MethodCommand
from seewhy.app.cli.options import (
    drawing_options,
    examples,
    fields,
    file_option,
    format_option,
    heatmap_options,
    layer_option,
    method_option,
    option,
    output_option,
    picture_options,
    values_option,
)
from seewhy.app.pipeline.choices import (
    CAPTURE_FORMATS,
    INTERVENE_FORMATS,
    TRACE_FORMATS,
    CaptureFormat,
    InterveneFormat,
    TraceFormat,
)
from seewhy.app.pipeline.option_table import CAPTURE, HEATMAP, INTERVENE, METHOD, TRACE
from seewhy.explainers.hooks.kinds import KINDS
from seewhy.explainers.imaging.choices import RANKS

_EXAMPLE = '{"op": "zero", "layer": "bn2"}'
SweepFormat = InterveneFormat | Literal["csv"]
_SWEEP_FORMATS: tuple[SweepFormat, ...] = (*INTERVENE_FORMATS, "csv")


class _Edits(click.File):
    """A file of edits, or the edits themselves, as the HTTP option takes them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
                return io.StringIO(value)
            raise


@click.command(
    epilog=examples(
        "trace cat.jpg --target tabby -o trace.svg",
        "trace cat.jpg --layer '*bn*' -o trace.json",
    )
)
@picture_options
@output_option
@option("target", TRACE["target"])
@layer_option(TRACE["layer"])
@format_option(TRACE_FORMATS)
def trace(
    pictures: tuple[Path, ...], device: str | None, output: str | None, form: TraceFormat | None, **options: Any
) -> None:
    """Write the timeline of hook calls for each PICTURE.

    Also prints a summary of it.
    """
    answer_form, items = plan(pictures, output, form, TRACE_FORMATS)

    from seewhy.app.cli.hook_answers import write_traces

    write_traces(items, answer_form, fields(options), device)


@click.command(
    epilog=examples(
        "capture cat.jpg --layer bn2 -o maps.png",
        "capture cat.jpg --layer bn2 --kind output --kind grad_output --target tabby -o bn2.npz",
    )
)
@picture_options
@output_option
@layer_option(CAPTURE["layer"], required=True)
@option("kind", CAPTURE["kind"], multiple=True, type=click.Choice(KINDS))
@option("target", CAPTURE["target"])
@format_option(CAPTURE_FORMATS)
@option("top", CAPTURE["top"])
@option("rank", CAPTURE["rank"], type=click.Choice(RANKS))
@drawing_options
def capture(
    pictures: tuple[Path, ...], device: str | None, output: str | None, form: CaptureFormat | None, **options: Any
) -> None:
    """Write activations and gradients of layers for each PICTURE.

    The output is statistics, arrays, or the strongest feature maps.
    """
    answer_form, items = plan(pictures, output, form, CAPTURE_FORMATS)

    from seewhy.app.cli.hook_answers import write_captures

    write_captures(items, answer_form, fields(options), device)


@click.command(
    cls=MethodCommand,
    epilog=examples(
        f"intervene cat.jpg --edit '{_EXAMPLE}' -o panel.png",
        f"intervene cat.jpg --edit '{_EXAMPLE}' --each-channel -o channels.csv",
        "intervene cat.jpg --edits edits.json --other dog.jpg --target tabby -o swapped.png",
    ),
)
@picture_options
@output_option
@click.option(
    "--edit",
    "edits",
    multiple=True,
    metavar="JSON",
    help=f"An edit such as '{_EXAMPLE}'; repeatable, applied in order.",
)
@click.option(
    "--edits", "file", type=_Edits(), metavar="FILE", help="A JSON file with a list of edits, or the list itself."
)
@file_option("--other", "Picture whose activations the op `swap` uses.")
@option(
    "each_channel",
    INTERVENE["each_channel"],
    is_flag=True,
    help=f"{INTERVENE['each_channel'].text} It can also be written as csv.",
)
@method_option(help=f"A name from `seewhy methods`. {METHOD}")
@option("target", INTERVENE["target"])
@layer_option(HEATMAP["layer"])
@format_option(_SWEEP_FORMATS)
@option("top", INTERVENE["top"])
@values_option("false", "true")
@heatmap_options
def intervene(
    pictures: tuple[Path, ...],
    device: str | None,
    output: str | None,
    form: SweepFormat | None,
    edits: tuple[str, ...],
    file: Any,
    other: Path | None,
    extra: tuple[str, ...],
    **options: Any,
) -> None:
    """Write the effect of edits for each PICTURE.

    The output is predictions and heatmaps before and after.
    """
    answer_form, items = plan(pictures, output, form, _SWEEP_FORMATS)
    if answer_form == "csv" and not options["each_channel"]:
        raise click.UsageError(
            f"Only a sweep can be written as csv: add --each-channel, or choose {', '.join(INTERVENE_FORMATS)}."
        )
    all_edits = [_json(text, "--edit") for text in edits]
    if file is not None:
        content = _json(file.read(), "--edits")
        all_edits = [*(content if isinstance(content, list) else [content]), *all_edits]
    if not all_edits:
        raise click.UsageError(f"Give an edit: --edit '{_EXAMPLE}', or --edits FILE.")
    request = {**fields(options, extra), "edits": all_edits}

    from seewhy.app.cli.hook_answers import write_interventions

    write_interventions(items, answer_form, request, other, device)


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=option) from error
