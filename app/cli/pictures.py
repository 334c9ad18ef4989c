"""The commands about pictures: explain, evaluate, calibrate, predict, detect, segment, similar."""

from pathlib import Path
from typing import Any

import click

from seewhy.app.cli.files import DASH, plan, suffixes_of
from seewhy.app.cli.method_command import EvaluateCommand, MethodCommand
from seewhy.app.cli.options import (
    FileOf,
    calibration_option,
    examples,
    extra_option,
    fields,
    file_argument,
    file_option,
    format_option,
    heatmap_options,
    json_option,
    layer_option,
    method_option,
    model_options,
    option,
    output_option,
    pair_options,
    picture_options,
    proof_options,
    table_options,
    values_option,
)
from seewhy.app.pipeline.choices import DRAWINGS, EXPLAIN_FORMATS, FORMATS, ExplainFormat, Format
from seewhy.app.pipeline.option_table import (
    EVALUATE,
    EXPLAIN,
    HEATMAP,
    MASK,
    METHOD,
    METRICS,
    PREDICT,
    PROOF,
    SEGMENT,
    TRUTH,
    Option,
)
from seewhy.explainers.core.choices import FILLS
from seewhy.explainers.imaging.choices import SEGMENT_VIEWS
from seewhy.explainers.tasks.choices import PARTS

TABLES = (".csv", ".json", ".png", ".pdf", ".svg")
"""Suffixes of the files of a table."""


@click.command(
    cls=MethodCommand,
    epilog=examples(
        "explain cat.jpg -o why.png",
        "explain cat.jpg --target tabby --against 'tiger cat' --method layercam --view side-by-side",
        "explain cat.jpg --method smoothgrad --samples 50 --scale robust",
        "explain photos -o heatmaps --sheet heatmaps/all.jpg --summary heatmaps/all.csv --skip-existing",
        "explain 'photos/*.jpg' --format npz -o maps",
        "explain xray.png --model pneumonia --proof=true --proof-calibration scores.json -o why.png",
        "explain cat.jpg -o - --format json | jq '.explanations[0].target'",
    ),
)
@picture_options
@output_option
@method_option(multiple=True, help=f"A name from `seewhy methods`; repeatable. {METHOD}")
@table_options(EXPLAIN, target={"multiple": True}, region={"type": click.Choice(PARTS)}, top={"type": int})
@proof_options
@calibration_option
@file_option("--mask", MASK)
@layer_option(HEATMAP["layer"])
@format_option(EXPLAIN_FORMATS)
@click.option("--report", is_flag=True, help="Write HTML reports: the same as --format report, or -o FILE.html.")
@values_option("false", "true", "map")
@heatmap_options
@click.option("--skip-existing", is_flag=True, help="Skip pictures whose output already exists.")
@click.option("--sheet", type=FileOf(list(suffixes_of(DRAWINGS))), help="Also draw all results onto a contact sheet.")
@click.option(
    "--summary",
    type=FileOf([".csv", ".jsonl"]),
    help="Also write a summary with one row per result, as .csv or .jsonl.",
)
def explain(
    pictures: tuple[Path, ...],
    device: str | None,
    output: str | None,
    form: ExplainFormat | None,
    report: bool,
    proof_calibration: Path | None,
    mask: Path | None,
    extra: tuple[str, ...],
    skip_existing: bool,
    sheet: Path | None,
    summary: Path | None,
    **options: Any,
) -> None:
    """Write the heatmap of each PICTURE.

    A PICTURE is a file, a folder (all pictures in it and below), a glob in quotes, or `-` for standard input.

    \b
    Exit status: 0 all done, 1 some pictures failed, 2 invalid options, 130 interrupted.
    """
    if report and form not in (None, "report"):
        raise click.UsageError(f"Use either --report or --format {form}, not both.")
    if report and (named := [str(picture) for picture in pictures if picture.suffix.lower() == ".html"]):
        raise click.UsageError(f"--report takes no file; write -o {named[0]}.")
    answer_form, items = plan(pictures, output, "report" if report else form, EXPLAIN_FORMATS, sheet)
    if skip_existing and items[0].output == DASH:
        raise click.UsageError("--skip-existing needs files, not standard output.")

    from seewhy.app.cli.checks import check
    from seewhy.app.pipeline.options import ExplainOptions

    # Pictures whose output exists are not needed, and a summary lists those that fail.
    needed = [] if skip_existing or summary else items
    request = check(ExplainOptions, {**fields(options, extra), "format": answer_form}, needed)
    if proof_calibration and not request.proof:
        raise click.UsageError("--proof-calibration needs --proof.")

    from seewhy.app.cli.picture_answers import explain_pictures

    explain_pictures(items, answer_form, request, proof_calibration, mask, device, skip_existing, sheet, summary)


@click.command(
    epilog=examples(
        "predict cat.jpg --top 3",
        "predict photos --format json > predictions.jsonl",
        "predict cat.jpg --format json | jq -r '.predictions[0].label'",
    )
)
@picture_options
@option("top", PREDICT["top"])
@json_option
def predict(pictures: tuple[Path, ...], device: str | None, form: str, **options: Any) -> None:
    """Print the most probable classes of each PICTURE."""
    _, items = plan(pictures, None, None, ("txt",))

    from seewhy.app.cli.checks import check
    from seewhy.app.pipeline.options import PredictOptions

    request = check(PredictOptions, fields(options), items)

    from seewhy.app.cli.picture_answers import predict_pictures

    predict_pictures(items, request, form == "json", device)


@click.command(
    cls=EvaluateCommand,
    epilog=examples(
        "evaluate photos --methods gradcam,saliency --metrics deletion,sparseness -o table.csv",
        "evaluate photos --methods smoothgrad --samples 10 --metrics road --road.imputation exact",
        "evaluate photos --metrics pointing-game --boxes boxes.csv",
    ),
)
@picture_options
@method_option(
    "method", "--methods", "--method", multiple=True, help=f"Names from `seewhy methods`, separated by commas. {METHOD}"
)
@option("metrics", METRICS, multiple=True)
@option("target", EVALUATE["target"])
@layer_option(HEATMAP["layer"])
@click.option("--controls/--no-controls", default=True, help=EVALUATE["controls"].text)
@file_option(
    "--boxes", "Positions of the targets: a CSV file with the columns picture,left,top,right,bottom, or COCO JSON."
)
@file_option("--truth", TRUTH)
@extra_option
@click.option("-o", "--output", type=FileOf(TABLES), help=f"Also write the table to a file: {', '.join(TABLES)}.")
def evaluate(
    pictures: tuple[Path, ...],
    device: str | None,
    method: tuple[str, ...],
    boxes: Path | None,
    truth: Path | None,
    extra: tuple[str, ...],
    output: Path | None,
    **options: Any,
) -> None:
    """Print metrics of methods over all pictures.

    The table includes controls, which methods should beat. A star marks methods that are better than every control.
    `-o` writes a table with intervals and the value of each picture; `.png` and `.pdf` are plots.
    """
    _, items = plan(pictures, None, None, ("txt",))

    if boxes and truth:
        raise click.UsageError("Use either --boxes or --truth, not both.")
    sources = [item.picture for item in items]

    from seewhy.app.cli.checks import check
    from seewhy.app.cli.truth import read_boxes
    from seewhy.app.pipeline.options import EvaluateOptions

    request = check(EvaluateOptions, fields({**options, "method": method}, extra), items)
    places = None if boxes is None else read_boxes(boxes, sources)

    from seewhy.app.cli.picture_answers import evaluate_pictures

    evaluate_pictures(sources, output, request, places, truth, device)


@click.command(
    cls=MethodCommand,
    epilog=examples(
        "calibrate photos --model pneumonia -o scores.json",
        "calibrate photos --model resnet50 --method layercam -o scores.json",
        "calibrate streets --model deeplabv3_resnet50 --target label:car -o scores.json",
    ),
)
@picture_options
@method_option(help=f"A name from `seewhy methods`. {METHOD}")
@layer_option(HEATMAP["layer"])
@option("target", EVALUATE["target"])
@table_options(
    {
        "proof_area": PROOF["proof_area"],
        "proof_fill": Option(
            "Only for proofs that hide pixels in this way. Default: for both ways, `blur` and `mean`."
        ),
    },
    proof_area={"type": float},
    proof_fill={"type": click.Choice(FILLS)},
)
@extra_option
@click.option("-o", "--output", required=True, type=FileOf([".json"]), help="Output file, .json.")
def calibrate(
    pictures: tuple[Path, ...],
    device: str | None,
    method: str | None,
    extra: tuple[str, ...],
    output: Path,
    **options: Any,
) -> None:
    """Collect the scores that proofs are compared with to get a grade.

    They are scores of maps that do not depend on the picture. The command needs at least 34 pictures that resemble
    those to be explained and whose explained class has at least 30%; they may be the same pictures. Other pictures, and
    pictures without the target, are left out. Scores for the embedded models are included. Pass the file to
    `seewhy explain` or `seewhy batch` with --proof-calibration, and the same --proof-area.

    \b
    Exit status: 0 all done, 1 some pictures failed, 2 invalid options, 130 interrupted.
    """
    _, items = plan(pictures, None, None, ("txt",))

    from seewhy.app.cli.checks import check_series
    from seewhy.app.cli.picture_answers import calibrate_pictures

    request = check_series("calibrate", {**options, "method": method}, extra)
    calibrate_pictures([item.picture for item in items], output, request, device)


@click.command(
    epilog=examples(
        "segment street.jpg --model deeplabv3_resnet50 -o classes.png",
        "segment street.jpg --model deeplabv3_resnet50 --view mask -o mask.png",
    )
)
@picture_options
@output_option
@format_option(FORMATS)
@table_options(SEGMENT, view={"type": click.Choice(SEGMENT_VIEWS)}, alpha={"metavar": "0..1"})
def segment(
    pictures: tuple[Path, ...], device: str | None, output: str | None, form: Format | None, **options: Any
) -> None:
    """Write the class of each pixel of each PICTURE.

    The output is a drawing with a legend, a mask of class indices (`--view mask`, json or npz), or the classes' areas
    (json). The model must be a segmenter.
    """
    answer_form, items = plan(pictures, output, form, FORMATS)

    from seewhy.app.cli.checks import check
    from seewhy.app.pipeline.options import SegmentOptions

    request = check(SegmentOptions, {**fields(options), "format": answer_form}, items)

    from seewhy.app.cli.picture_answers import segment_pictures

    segment_pictures(items, answer_form, request, device)


@click.command(epilog=examples("detect street.jpg --model fasterrcnn_resnet50_fpn --format json"))
@picture_options
@json_option
def detect(pictures: tuple[Path, ...], device: str | None, form: str, **options: Any) -> None:
    """Print the boxes that a detector finds in each PICTURE.

    A line has the score, the number that `seewhy explain --target` takes, the label, and left, top, right and bottom in
    pixels.
    """
    _, items = plan(pictures, None, None, ("txt",))

    from seewhy.app.cli.checks import check
    from seewhy.app.pipeline.options import Options

    request = check(Options, fields(options), items)

    from seewhy.app.cli.picture_answers import detect_in_pictures

    detect_in_pictures(items, request, form == "json", device)


@click.command(
    epilog=examples(
        "similar first.jpg second.jpg -o alike.png",
        "similar first.jpg second.jpg --top 20 -o alike.json",
    )
)
@file_argument("picture")
@file_argument("reference")
@model_options
@output_option
@format_option(FORMATS)
@proof_options
@pair_options
def similar(
    picture: Path, reference: Path, device: str | None, output: str | None, form: Format | None, **options: Any
) -> None:
    """Write how similar a model finds PICTURE and REFERENCE.

    The output is the cosine of their embeddings, a map of each, and the strongest pairs of patches. One of the two may
    be `-` for standard input.
    """
    if picture == reference == DASH:
        raise click.UsageError("Standard input provides one picture; name a file for the other.")
    answer_form, items = plan((picture,), output, form, FORMATS)

    from seewhy.app.cli.checks import check
    from seewhy.app.pipeline.options import SimilarOptions

    request = check(SimilarOptions, fields(options), items)

    from seewhy.app.cli.picture_answers import compare_pictures

    compare_pictures(items, reference, answer_form, request, device)
