"""Output of the command evaluate."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from seewhy.app.cli.files import printable
from seewhy.app.cli.output import FAILED
from seewhy.app.cli.run import load_model, open_service
from seewhy.app.cli.truth import read_boxes
from seewhy.app.pipeline.options import EvaluateOptions
from seewhy.app.pipeline.parse import parse
from seewhy.explainers import evaluate


def evaluate_pictures(
    pictures: Sequence[Path], output: Path | None, fields: dict[str, Any], boxes: Path | None, device: str | None
) -> None:
    """Print the table of methods and metrics, and write it to a file; exit with 1 if some pictures failed.

    Args:
        pictures: paths.
        output: of the file; None for none.
        fields: options of `EvaluateOptions`.
        boxes: file that says where targets lie; see `read_boxes`.
        device: see `open_service`.

    Raises:
        click.BadParameter: the file of boxes is none.
        click.ClickException: the output cannot be written.
    """
    options = parse(EvaluateOptions, fields)
    places = None if boxes is None else read_boxes(boxes, pictures)
    service = open_service(device)
    table = evaluate(
        load_model(service, options.model),
        pictures,
        options.method or None,
        options.metrics,
        options.target,
        options.layer or None,
        boxes=places,
        controls=options.controls,
        batch_size=service.settings.max_batch,
        progress=len(pictures) > 1 and sys.stderr.isatty(),
        on_error="skip",
        **options.method_options,
        **options.metric_options,
    )
    click.echo(table.table())
    for (method, metric), reason in table.reasons.items():
        click.echo(f"{metric} cannot measure {method}: {reason}", err=True)
    for picture, fault in table.failures.items():
        click.echo(f"{click.style('Error:', fg='red')} {printable(Path(picture))}: {fault}", err=True)
    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            table.save(output)
        except OSError as error:
            raise click.ClickException(f"cannot write {str(output)!r}: {error.strerror}") from error
        click.echo(f"-> {printable(output)}", err=True)
    if table.failures:
        click.echo(f"{len(table.failures)} of {len(pictures)} pictures failed.", err=True)
        sys.exit(FAILED)
