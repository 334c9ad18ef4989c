"""The commands about pictures: explain, predict."""

from pathlib import Path
from typing import Any

import click

from seewhy.app.cli.files import plan
from seewhy.app.cli.options import (
    fields,
    format_option,
    heatmap_options,
    layer_option,
    method_option,
    output_option,
    picture_options,
)
from seewhy.app.pipeline.choices import FORMATS, Format
from seewhy.app.pipeline.option_texts import EXPLAIN, HEATMAP, PREDICT


@click.command()
@picture_options
@output_option
@method_option(multiple=True, default=["gradcam"], help="A name of `seewhy methods`; repeatable.")
@click.option("--against", help=EXPLAIN["against"])
@click.option("--target", multiple=True, help=EXPLAIN["target"])
@click.option("--top", type=int, help=EXPLAIN["top"])
@layer_option(HEATMAP["layer"])
@format_option(FORMATS)
@heatmap_options
@click.option("--skip-existing", is_flag=True, help="Leave out pictures that have an answer already.")
@click.option("--sheet", type=click.Path(path_type=Path), help="Also draw all answers onto a contact sheet.")
@click.option("--summary", type=click.Path(path_type=Path), help="Also write a row per answer, as .csv or .jsonl.")
def explain(
    pictures: tuple[Path, ...],
    device: str | None,
    output: str | None,
    form: Format | None,
    extra: tuple[str, ...],
    skip_existing: bool,
    sheet: Path | None,
    summary: Path | None,
    **options: Any,
) -> None:
    """Write the heatmap of each PICTURE.

    A PICTURE is a file, a folder (all pictures in it and below), a glob in quotes, or `-` for the standard input.

    \b
    Exit status: 0 all done, 1 some pictures failed, 2 a mistake in the options, 130 interrupted.
    """
    answer_form, tasks = plan(pictures, output, form, FORMATS, sheet)
    request = {**fields(options, extra), "format": answer_form}

    from seewhy.app.cli.explaining import Extras, explain_pictures

    explain_pictures(tasks, answer_form, request, Extras(skip_existing, sheet, summary), device)


@click.command()
@picture_options
@click.option("--top", type=int, default=5, show_default=True, help=PREDICT["top"])
def predict(pictures: tuple[Path, ...], device: str | None, **options: Any) -> None:
    """Print the most probable classes of each PICTURE."""
    _, tasks = plan(pictures, None, None, ("txt",))

    from seewhy.app.cli.explaining import predict_pictures

    predict_pictures(tasks, fields(options), device)
