"""The command about data sets: batch."""

from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seewhy.app.batch.choices import ENGINES, MAP_TYPES, Engine
from seewhy.app.cli.files import printable
from seewhy.app.cli.method_command import MethodCommand
from seewhy.app.cli.options import (
    calibration_option,
    examples,
    extra_option,
    layer_option,
    method_option,
    model_options,
    option,
    proof_options,
)
from seewhy.app.cli.output import exit_failed, is_quiet, note, print_failure
from seewhy.app.pipeline.option_table import EXPLAIN, HEATMAP, METHOD

_SHOWN = 10
"""Maximum number of failures that are printed; all are in the table."""

if TYPE_CHECKING:  # it imports PyTorch
    from seewhy.app.batch.run import Forecast


@click.command(
    cls=MethodCommand,
    epilog=examples(
        "batch photographs -o run --proof",
        "batch 's3://bucket/photographs' -o run --method smoothgrad --samples 10",
        "batch photographs -o run --dry-run",
        "batch 'shards/*.tar' -o run --engine ray --address auto --pictures",
    ),
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of shards.")
@model_options
@method_option(help=f"A name from `seewhy methods`. {METHOD}")
@click.option("--target", help="Class index or label, for all pictures; by default the most probable class of each.")
@option("against", EXPLAIN["against"])
@layer_option(HEATMAP["layer"])
@proof_options
@calibration_option
@extra_option
@click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True, help="Engine of the batch.")
@click.option("--address", help="The Ray cluster to join, such as auto; by default processes of this machine.")
@click.option(
    "--workers", type=click.IntRange(1), help="Number of processes; by default, as many as the machine can keep busy."
)
@click.option("--batch-size", type=click.IntRange(1), help="Pictures in a pass; by default 8, or 32 on a GPU.")
@click.option("--map-type", type=click.Choice(MAP_TYPES), default="float16", show_default=True, help="Dtype of maps.")
@click.option("--pictures", is_flag=True, help="Also write overlays, as WebDataset shards.")
@click.option("--logits", is_flag=True, help="Also write all logits or values, except for detectors and segmenters.")
@click.option("--max-errors", type=click.IntRange(0), help="Stop after more than N failures; by default, never.")
@click.option("--dry-run", is_flag=True, help="Only say what the run would cost, after explaining a few pictures.")
def batch(
    sources: tuple[str, ...],
    out: Path,
    model: str | None,
    device: str | None,
    method: str | None,
    target: str | None,
    proof_calibration: Path | None,
    extra: tuple[str, ...],
    engine: Engine,
    address: str | None,
    workers: int | None,
    batch_size: int | None,
    map_type: str,
    pictures: bool,
    logits: bool,
    max_errors: int | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Explain a data set, and write Parquet files.

    The files are written to a folder. A SOURCE is a folder, a glob in quotes, a picture, a Parquet file, a WebDataset
    shard, or an address such as s3://bucket/folder. A stopped run resumes where it stopped. A picture that cannot be
    explained has a row with the error; the next run tries it again.

    \b
    Exit status: 0 all done, 1 some pictures failed, 2 invalid options, 130 interrupted.
    """
    from seewhy.app.cli.checks import check_series

    request = check_series("batch", {**options, "model": model, "method": method, "target": target}, extra)
    if proof_calibration and not request.proof:
        raise click.UsageError("--proof-calibration needs --proof.")
    if not (find_spec("pyarrow") and find_spec("loky")):
        raise click.ClickException("batch needs more packages: pip install 'seewhy[batch]'.")
    from seewhy.app.batch.run import batch as run
    from seewhy.app.batch.run import forecast
    from seewhy.app.cli.run import load_model, open_service
    from seewhy.explainers.core.calibration import Calibration

    service = open_service(device)
    asked: dict[str, Any] = {
        "model": load_model(service, request.model),
        "method": request.method[0] if request.method else service.default_method(request.model),
        "target": request.target[0] if request.target else None,
        "against": request.against,
        "layer": request.layer or None,
        "proof": request.proof,
        "proof_area": request.proof_area,
        "proof_fill": request.proof_fill,
        "proof_calibration": Calibration.load(proof_calibration) if proof_calibration else None,
        "batch_size": batch_size,
        "map_type": map_type,
        "pictures": pictures,
        "logits": logits,
        **request.method_options,
    }
    source = sources[0] if len(sources) == 1 else list(sources)
    if dry_run:
        _print(forecast(source, out, **asked))
        return
    where: dict[str, Any] = {"engine": engine, "address": address, "workers": workers}
    results = run(source, out, **where, max_errors=max_errors, progress=not is_quiet(), **asked)
    done = results.manifest
    total = done.pictures + done.errors
    note(f"{out}: {total:,} picture{'' if total == 1 else 's'} by {done.method} of {done.model}")
    if request.proof and results.table["proof"].null_count == total:
        note("No proof is graded: `seewhy calibrate` collects the scores, and --proof-calibration takes them.")
    if done.errors:
        failed = results.table.filter(results.table["error"].is_valid()).slice(0, _SHOWN)
        for path, error in zip(failed["path"].to_pylist(), failed["error"].to_pylist(), strict=True):
            print_failure(printable(Path(path)), error)
        exit_failed(done.errors, total)


def _print(cost: "Forecast") -> None:
    """Print the estimated cost of a run."""
    passes = "an unknown number of" if cost.passes is None else f"up to {cost.passes:,}"
    click.echo(f"pictures: {cost.pictures:,}, of which {cost.remaining:,} remain")
    click.echo(f"passes of the model for a picture: {passes}")
    click.echo(f"time in one process: about {timedelta(seconds=round(cost.seconds))}, plus start-up")
    click.echo(f"size: at most {cost.bytes / 1e6:,.1f} MB")
