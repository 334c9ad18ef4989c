"""Output of the command evaluate."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from seewhy.app.cli.files import printable
from seewhy.app.cli.interrupt import unbroken
from seewhy.app.cli.output import exit_failed, print_failure
from seewhy.app.cli.run import load_model, open_service
from seewhy.app.cli.truth import Box
from seewhy.app.pipeline.options import EvaluateOptions
from seewhy.explainers import evaluate
from seewhy.explainers.results.evaluation import Evaluation


def evaluate_pictures(
    pictures: Sequence[Path],
    output: Path | None,
    options: EvaluateOptions,
    places: Sequence[list[Box] | None] | None,
    device: str | None,
) -> None:
    """Print the table of methods and metrics, and write it to a file; exit with 1 if some pictures failed.

    Raises:
        click.ClickException: the output cannot be written.
    """
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
    with unbroken():
        _write(table, output)
    if table.failures:
        exit_failed(len(table.failures), len(pictures))


def _write(table: Evaluation, output: Path | None) -> None:
    click.echo(table.table())
    for (method, metric), reason in table.reasons.items():
        click.echo(f"{metric} cannot measure {method}: {reason}", err=True)
    for picture, fault in table.failures.items():
        print_failure(printable(Path(picture)), fault)
    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            table.save(output)
        except OSError as error:
            raise click.ClickException(f"cannot write {str(output)!r}: {error.strerror}") from error
        click.echo(f"-> {printable(output)}", err=True)
