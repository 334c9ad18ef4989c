"""The commands about pictures: explain, predict."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seewhy.app.cli.files import Task, plan, printable, read
from seewhy.app.cli.options import (
    FORMATS,
    format_option,
    given_options,
    heatmap_options,
    layer_option,
    method_option,
    output_option,
    pair,
    picture_options,
)
from seewhy.app.cli.run import at_once, each, open_service, ready

if TYPE_CHECKING:
    from seewhy.app.pipeline.options import Format


@click.command()
@picture_options
@output_option
@method_option(multiple=True, default=["gradcam"], show_default=True, help="A name of `seewhy methods`; repeatable.")
@click.option("--against", help="Class index or label to contrast the explained class with.")
@click.option("--target", multiple=True, help="Class index or label; repeatable. Default: the most probable.")
@click.option("--top", type=int, help="Explain the N most probable classes.")
@layer_option("Dotted module path or glob; repeatable (fused).")
@format_option(FORMATS)
@heatmap_options
@click.option("--skip-existing", is_flag=True, help="Leave out pictures whose answers are there.")
@click.option("--sheet", type=click.Path(path_type=Path), help="Also draw all answers onto a contact sheet.")
@click.option("--summary", type=click.Path(path_type=Path), help="Also write a row per answer, as .csv or .jsonl.")
def explain(
    pictures: tuple[Path, ...],
    device: str | None,
    output: str | None,
    form: "Format | None",
    extra: tuple[str, ...],
    skip_existing: bool,
    sheet: Path | None,
    summary: Path | None,
    **given: Any,
) -> None:
    """Write the heatmap of each PICTURE.

    A PICTURE is a file, a folder (all pictures in it and below), a glob in quotes, or `-` for the standard input.

    \b
    Exit status: 0 all done, 1 some pictures failed, 2 a mistake in the options, 130 interrupted.
    """
    chosen, tasks = plan(pictures, output, form, FORMATS, sheet)
    settings = {**given_options(given), **dict(pair(one) for one in extra), "format": chosen}

    from seewhy.app.cli.explaining import Explaining, Extras
    from seewhy.app.http.uploads import parse
    from seewhy.app.pipeline.options import ExplainOptions

    options = parse(ExplainOptions, settings)
    extras = Extras(skip_existing, sheet, summary)
    Explaining(open_service(device), tasks, options, chosen, extras).run()


@click.command()
@picture_options
@click.option("--top", type=int, default=5, show_default=True, help="How many classes to print.")
def predict(pictures: tuple[Path, ...], device: str | None, model: str | None, top: int) -> None:
    """Print the most probable classes of each PICTURE."""
    _, tasks = plan(pictures, None, None, ("txt",))

    from seewhy.app.http.uploads import parse
    from seewhy.app.pipeline.options import PredictOptions

    options = parse(PredictOptions, {"model": model, "top": top})
    service = open_service(device)
    ready(service, model)

    def work(task: Task) -> str:
        predicted = service.predict(read(task.picture), options)
        note = " (sigmoid of one logit)" if predicted.model.spec.head == "sigmoid" else ""
        rows = [f"  {one.probability:7.2%}  {one.index:>5}  {one.label}{note}" for one in predicted.predictions]
        return "\n".join([f"{printable(task.picture)}:", *rows])

    each(tasks, work, lambda _, line: click.echo(line), threads=at_once(service.settings.max_batch))
