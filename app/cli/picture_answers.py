"""Output of the commands about pictures: explain, predict, detect, segment, similar, evaluate, calibrate."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from PIL import Image
from pydantic import BaseModel
from tqdm import tqdm

from seewhy.app.answers.documents import detect_document, draw, explain_body, predict_document
from seewhy.app.answers.likeness_documents import similar_body
from seewhy.app.answers.report import report_body
from seewhy.app.answers.segment_documents import segment_body
from seewhy.app.answers.stream import Body
from seewhy.app.cli.files import DASH, Item, printable, read, write
from seewhy.app.cli.interrupt import unbroken
from seewhy.app.cli.output import exit_failed, is_quiet, is_verbose, note, print_failure
from seewhy.app.cli.run import (
    concurrency,
    fault_of,
    for_each,
    in_one_piece,
    load_model,
    open_service,
    ready_service,
    watch,
    write_each,
)
from seewhy.app.cli.sheet import Sheet
from seewhy.app.cli.summary import Summary
from seewhy.app.cli.truth import Box
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.choices import DRAWINGS, ExplainFormat, Format
from seewhy.app.pipeline.likeness import similar
from seewhy.app.pipeline.options import (
    EvaluateOptions,
    ExplainOptions,
    Options,
    PredictOptions,
    SegmentOptions,
    SimilarOptions,
)
from seewhy.app.pipeline.results import DetectResult, ExplainResult, PredictResult
from seewhy.explainers import calibrate, evaluate
from seewhy.explainers.calibrate import LEAST_PICTURES, check_count
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.choices import AREA, LIKELY
from seewhy.explainers.core.percent import percent
from seewhy.explainers.errors import PictureError, counted
from seewhy.explainers.imaging.decode import read_picture
from seewhy.explainers.results.evaluation import Evaluation
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.results.report import warnings
from seewhy.explainers.tasks.classification import ClassPrediction
from seewhy.explainers.tasks.detected import named
from seewhy.explainers.tasks.pose import named_ask
from seewhy.explainers.tasks.values import ValuePrediction
from seewhy.explainers.trust.calibration import check_calibration, is_leading
from seewhy.explainers.trust.proof import Proof, reaches_cut
from seewhy.explainers.trust.trial import Trial

Answered = TypeVar("Answered", bound=PredictResult | DetectResult)


@dataclass(frozen=True)
class _Answer:
    """The answer for one picture. Only its tile is set if the file already existed.

    Attributes:
        body: body for the standard output.
        warnings: name of the map if there are several, code and text; each text is printed once.
        hints: how to get grades that proofs lack, or a method that may do better; each is printed once.
        tile: small copy for the contact sheet.
    """

    line: str = ""
    caption: str = ""
    rows: tuple[dict[str, Any], ...] = ()
    body: bytes = b""
    warnings: tuple[tuple[str, str, str], ...] = ()
    hints: tuple[str, ...] = ()
    tile: Image.Image | None = None


@dataclass
class _Run:
    """A run of `seewhy explain`.

    Attributes:
        calibration: as the user passes it; None for none.
        mask: bytes of the picture that marks the region to explain, in all pictures.
        is_watched: whether a terminal shows the progress of each picture.
    """

    service: Service
    calibration: Calibration | None
    items: list[Item]
    options: ExplainOptions
    mask: bytes | None
    form: ExplainFormat
    skip_existing: bool
    sheet: Path | None
    summary: Path | None
    is_watched: bool

    def start(self) -> None:
        with ExitStack() as files:
            sheet = Sheet(self.sheet, self._title) if self.sheet else None
            summary = Summary(self.summary, self.skip_existing) if self.summary else None
            for file in (sheet, summary):
                if file is not None:
                    files.callback(file.close)

            told: set[str] = set()

            def report(item: Item, answer: _Answer) -> None:
                if sheet and answer.tile:
                    sheet.add(answer.tile, f"{printable(Path(item.picture.name))}{answer.caption}")
                if not answer.line:
                    if summary:
                        summary.add_skipped(str(item.picture), str(item.output))
                    return
                if summary:
                    summary.add(*answer.rows)
                if answer.body:
                    click.echo(answer.body, nl=False)
                lines = [answer.line]
                for name, code, text in answer.warnings:
                    lines.append(f"  {name}{code} (see above)" if text in told else f"  {name}{code}: {text}")
                    told.add(text)
                lines += [hint for hint in answer.hints if hint not in told]
                told.update(answer.hints)
                note("\n".join(lines), err=item.output == DASH)

            def report_failure(item: Item, message: str) -> None:
                if summary:
                    summary.add({"picture": str(item.picture), "error": message})

            if skipped := sum(map(self._skips, self.items)):
                note(f"{skipped} of {len(self.items)} outputs already exist.", err=True)
            if skipped < len(self.items):
                model = load_model(self.service, self.options.model)
                trial = Trial(self.options.proof_area, self.options.proof_fill)
                check_calibration(self.calibration, model, trial)
                if self.options.against is not None:
                    named_ask(model.task, None, self.options.against)  # an error about all pictures, not each
            for_each(self.items, self._answer, report, report_failure, concurrency(self.service.settings.max_batch))

    def _skips(self, item: Item) -> bool:
        return self.skip_existing and item.is_done

    @property
    def _title(self) -> str:
        model = self.options.model or self.service.settings.default_model
        return f"{model}: {', '.join(self.options.method or [self.service.default_method(model)])}"

    def _answer(self, item: Item) -> _Answer:
        start = time.perf_counter()
        if self._skips(item):
            return _Answer(tile=self._old_tile(item))
        upload, settings = read(item.picture), self.service.settings
        drawn = self.form != "npz" or self.sheet is not None
        try:
            ticket = self.service.ask([upload], [self.options], drawn, mask=self.mask)
            if self.is_watched:
                watch(ticket)
            (result,) = self.service.present(ticket)
        except PictureError as error:
            if error.field == "mask":
                raise click.ClickException(f"The mask: {error}") from error
            raise
        if self.form == "report":
            body = report_body(result, self.options, upload, self.mask, settings, item.picture.name)
        else:
            body = in_one_piece(explain_body(result, self.form, self.options.values, settings), self.form)
        to_file = item.output != DASH
        if to_file:
            write(item.output, body)
        milliseconds = round((time.perf_counter() - start) * 1000, 1)
        classes = _classes(result)
        texts = {part.method: part.method_text for part in result.explanations}
        methods = ", ".join(texts.get(method.name, method.name) for method, _ in result.methods)
        by = methods if self.options.model else f"{methods} of {result.model.name}"
        place = f" -> {printable(item.output)}" if to_file else ""
        return _Answer(
            line="\n".join([f"{printable(item.picture)}: {classes} by {by}{place}", *_proofs(result)]),
            warnings=tuple(_grave(result)),
            caption=f": {classes}{_grades(result)}",
            rows=tuple(_rows(item, result, milliseconds)) if self.summary else (),
            body=b"" if to_file else body,
            hints=tuple(filter(None, [_hint(result), self._better(result)])),
            tile=Sheet.tile(draw(result)) if self.sheet else None,
        )

    def _better(self, result: ExplainResult) -> str:
        """Return what may do better where a map is not supported: the other fill, or the recommended method; empty if
        neither may.

        The method may not if it has been tried, or if the layers or options of the others would be passed to it too.
        """
        if self.options.proof_fill == "blur" and any(
            part.proof and part.proof.verdict == "inconclusive" for part in result.explanations
        ):
            return "  The mean colour may hide what a blur leaves visible: try --proof-fill mean."
        recommended = self.service.recommended_method(result.model.name)
        tried = {part.method for part in result.explanations}
        if recommended in tried or self.options.layer or self.options.method_options:
            return ""
        proofs = [part.proof for part in result.explanations if part.proof]
        if all(
            proof.grade not in ("not supported", "spread") or "improbable-target" in proof.warnings for proof in proofs
        ):
            return ""
        return f"  Another method may find what matters: try --method {recommended}."

    def _old_tile(self, item: Item) -> Image.Image | None:
        """Return the tile of an answer that already existed, if it is a picture."""
        if not (self.sheet and self.form in DRAWINGS):
            return None
        with Image.open(item.output) as drawing:
            return Sheet.tile(drawing)


def explain_pictures(
    items: list[Item],
    form: ExplainFormat,
    options: ExplainOptions,
    proof_calibration: Path | None,
    mask: Path | None,
    device: str | None,
    skip_existing: bool,
    sheet: Path | None,
    summary: Path | None,
) -> None:
    """Explain pictures, several at once, so that they share passes of the model; exit with 1 if some failed."""
    marked = None if mask is None else mask.read_bytes()
    is_watched = len(items) == 1 and not (is_quiet() or is_verbose())
    calibration = None if proof_calibration is None else Calibration.load(proof_calibration)
    service = open_service(device, calibration)
    _Run(service, calibration, items, options, marked, form, skip_existing, sheet, summary, is_watched).start()


def predict_pictures(items: list[Item], options: PredictOptions, as_json: bool, device: str | None) -> None:
    """Print the most probable classes of each picture."""
    service = ready_service(device, options.model)

    def rows(result: PredictResult) -> list[str]:
        remark = ""
        if result.model.spec.head == "sigmoid":
            remark = " (sigmoid of one logit)" if len(result.model.labels) == 1 else " (sigmoid)"
        return [f"  {row.text:>6}  {row.index:>5}  {row.label}{remark}" for row in result.predictions]

    _print_each(service, items, lambda upload: service.predict(upload, options), predict_document if as_json else rows)


def segment_pictures(items: list[Item], form: Format, options: SegmentOptions, device: str | None) -> None:
    """Write the class of each pixel of each picture."""
    service = ready_service(device, options.model)

    def answer(item: Item) -> tuple[str, Body]:
        result = service.segment(read(item.picture), options)
        return result.segments.caption, segment_body(result, form, service.settings)

    write_each(items, form, answer)


def detect_in_pictures(items: list[Item], options: Options, as_json: bool, device: str | None) -> None:
    """Print the boxes that a detector shows in each picture."""
    service = ready_service(device, options.model)

    def rows(result: DetectResult) -> list[str]:
        return [
            f"  {percent(box.score):>6}  box:{box.index:<4} {box.label}  {','.join(f'{edge:.0f}' for edge in box.box)}"
            for box in result.boxes
        ] or ["  no box"]

    _print_each(service, items, lambda upload: service.detect(upload, options), detect_document if as_json else rows)


def _print_each(
    service: Service,
    items: list[Item],
    ask: Callable[[bytes], Answered],
    form: Callable[[Answered], list[str] | BaseModel],
) -> None:
    """Print the predictions for each picture: in lines below both names, or as a line of JSON."""

    def text(item: Item) -> str:
        result = ask(read(item.picture))
        answer = form(result)
        if isinstance(answer, BaseModel):
            return json.dumps({"picture": str(item.picture), **answer.model_dump(mode="json", exclude_unset=True)})
        return "\n".join([f"{printable(item.picture)} ({result.model.name}):", *answer])

    for_each(items, text, lambda _, lines: click.echo(lines), threads=concurrency(service.settings.max_batch))


def compare_pictures(
    items: list[Item], reference: Path, form: Format, options: SimilarOptions, device: str | None
) -> None:
    """Write the similarity of a picture and its reference."""
    service = ready_service(device, options.model)
    other = read(reference)

    def answer(item: Item) -> tuple[str, Body]:
        try:
            result = similar(service, read(item.picture), other, options, drawn=form != "npz", collects=False)
        except PictureError as error:
            if error.field == "reference":
                raise click.ClickException(f"{printable(reference)}: {error}") from error
            raise
        lines = [f"cosine similarity {result.likeness.score:z.3f} with {printable(reference)}"]
        if proofs := result.likeness.proof:
            names = [f"{printable(picture)}, " for picture in (item.picture, reference)]
            lines += [_proof_line(name, proof) for name, proof in zip(names, proofs, strict=True)]
            lines += ["  Only the service grades such proofs, with scores from earlier pictures."]
        return "\n".join(lines), similar_body(result, form, service.settings)

    write_each(items, form, answer)


def _classes(result: ExplainResult) -> str:
    targets = ", ".join(f"{named(target)} {target.text}" for target in result.targets)
    against = result.explanations[0].against
    return f"{targets} against {against.label}" if against else targets


def _grades(result: ExplainResult) -> str:
    """Return the grades of all maps for a caption; empty without proofs."""
    grades = [part.proof.verdict for part in result.explanations if part.proof]
    return f" ({', '.join(grades)})" if grades else ""


def _proofs(result: ExplainResult) -> list[str]:
    """Return a line for each proof, which names its map if there are several."""
    return [_proof_line(name, part.proof) for name, part in _maps(result) if part.proof]


def _grave(result: ExplainResult) -> Iterator[tuple[str, str, str]]:
    """Yield the name of the map, the code and the text of each warning to print."""
    for name, part in _maps(result):
        yield from ((name, code, text) for code, text in _warnings(part).items() if part.proof or code in _GRAVE)


def _maps(result: ExplainResult) -> list[tuple[str, Explanation]]:
    """Return the maps, each with its name before a comma; a single map has no name."""
    maps = result.explanations
    return [(f"{part.method} for {named(part.target)}, " if len(maps) > 1 else "", part) for part in maps]


def _hint(result: ExplainResult) -> str:
    """Return how to get the scores that ungraded proofs lack; empty if `calibrate` does not collect them."""
    lacking = [
        (part, part.proof.faithfulness)
        for part in result.explanations
        if part.proof and part.proof.faithfulness and not part.proof.grade and _is_collected(part)
    ]
    if not lacking:
        return ""
    part, tried = lacking[0]
    which = "" if isinstance(part.target, ValuePrediction) else f" in which the class has {LIKELY:.0%} or more"
    area = "" if tried.area == AREA else f"{tried.area:g}"
    options = f" --proof-area {area} -o scores-{area}.json" if area else " -o scores.json"
    command = f"`seewhy calibrate FOLDER --model {result.model.name}{options}`"
    return f"  {command} collects the scores for grades, from at least {LEAST_PICTURES} pictures{which}."


_GRAVE = {"blank-map", "first-frame", "improbable-target", "other-branches", "votes-unavailable"}
"""Warnings that are printed even without a proof: the map is not what it seems, or shows only a part of the file."""


def _warnings(part: Explanation) -> dict[str, str]:
    """Return the warnings about a map as sentences by code.

    Most photographs are cropped, which matters only if the map reaches there.
    """
    told = warnings(part)
    if "crop-hides" in told and not reaches_cut(part.map, part.geometry):
        del told["crop-hides"]
    return told


def _is_collected(part: Explanation) -> bool:
    """Whether `calibrate` collects scores of maps like this one."""
    if part.against:
        return isinstance(part.target, ClassPrediction) and is_leading(part.target, part.predictions[0])
    measured = part.proof.faithfulness if part.proof else None
    return measured is not None and (measured.probability is not None or isinstance(part.target, ValuePrediction))


def _proof_line(name: str, proof: Proof) -> str:
    """Return the line of a proof, which begins with the name of its map."""
    return f"  {name}{proof.verdict}: {proof.sentence}"


def _rows(item: Item, result: ExplainResult, milliseconds: float) -> list[dict[str, Any]]:
    return [
        {
            "picture": str(item.picture),
            "output": str(item.output),
            "model": result.model.name,
            "method": explanation.method,
            "target": explanation.target.name,
            "label": explanation.target.label,
            **{name: vars(explanation.target).get(name) for name in ("probability", "logit", "value")},
            "contrast": explanation.against.label if explanation.against else None,
            "diagnostics": list(_warnings(explanation)),
            "proof": explanation.proof.summary if explanation.proof else None,
            "milliseconds": milliseconds,
        }
        for explanation in result.explanations
    ]


def evaluate_pictures(
    pictures: Sequence[Path],
    output: Path | None,
    options: EvaluateOptions,
    places: Sequence[list[Box] | None] | None,
    truth: Path | None,
    device: str | None,
) -> None:
    """Print the table of methods and metrics, and write it to a file; exit with 1 if some pictures failed."""
    service = open_service(device)
    marked = None if truth is None else service.mask(truth.read_bytes(), service.deadline(), "truth")
    table = evaluate(
        load_model(service, options.model),
        pictures,
        options.method or None,
        options.metrics,
        options.target,
        options.layer or None,
        boxes=places,
        masks=None if marked is None else [marked] * len(pictures),
        controls=options.controls,
        batch_size=service.settings.max_batch,
        progress=sys.stderr.isatty() and not (is_quiet() or is_verbose()),
        on_error="skip",
        **options.method_options,
        **options.metric_options,
    )
    with unbroken():
        _write(table, output)
    if table.failures:
        exit_failed(len(table.failures), len(pictures))


def calibrate_pictures(pictures: Sequence[Path], output: Path, options: ExplainOptions, device: str | None) -> None:
    """Write the scores of maps that do not depend on the picture; exit with 1 if some pictures failed."""
    check_count(len(pictures))
    service = open_service(device)
    model = load_model(service, options.model)
    hidden = True if is_quiet() or is_verbose() else None  # None: hidden unless it is a terminal
    failures: dict[Path, str] = {}

    def readable() -> Iterator[Image.Image]:
        for picture in tqdm(pictures, unit="picture", disable=hidden, dynamic_ncols=True):
            try:
                yield read_picture(picture, service.settings.max_pixels)
            except (OSError, PictureError) as error:
                failures[picture] = fault_of(error) or ""

    result = calibrate(
        model,
        readable(),
        options.method[0] if options.method else service.default_method(options.model),
        options.layer or None,
        target=options.target[0] if options.target else None,
        proof_area=options.proof_area,
        proof_fill=options.proof_fill if "proof_fill" in options.model_fields_set else None,
        batch_size=service.settings.max_batch,
        **options.method_options,
    )
    with _written(output):
        result.save(output)
    count = result.pictures or 0
    for (_, fill), part in result.trials.items():
        alarms = part.false_alarms_at_95
        beat = "" if alarms is None else f"; {alarms:.1%} of unrelated maps beat 95% of the others (5% is ideal)"
        scores = f"{counted(len(part.scores), 'score')} of {counted(part.pictures or 0, 'picture')}"
        note(f"{printable(output)}, {fill}: {scores} for {model.name}{beat}")
    if left_out := len(pictures) - len(failures) - count:
        unlikely = f", or with an explained class below {LIKELY:.0%}" if result.are_probabilities else ""
        note(f"{counted(left_out, 'picture')} left out: repeated or without the target{unlikely}")
    note("To grade proofs, pass the file with --proof-calibration, or name it as `calibration` in the models file.")
    for picture, fault in failures.items():
        print_failure(printable(picture), fault)
    if failures:
        exit_failed(len(failures), len(pictures))


@contextmanager
def _written(output: Path) -> Iterator[None]:
    """Create the folder of an output file, and turn errors of writing it into those of the command."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise click.ClickException(f"cannot write {str(output)!r}: {error.strerror}") from error


def _write(table: Evaluation, output: Path | None) -> None:
    rows = table.table()
    click.echo(rows)
    if table.controls and "*" in rows:
        controls = ", ".join(table.controls)
        note(f"* better than each of the controls ({controls}), picture by picture; controls explain nothing", err=True)
    for text in table.notes:
        note(text, err=True)
    unmeasured: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for cell, reason in table.reasons.items():
        unmeasured[reason].append(cell)
    for reason, cells in unmeasured.items():
        methods, metrics = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
        verb = "has" if len(methods) == 1 else "have"
        click.echo(f"{', '.join(methods)} {verb} no {', '.join(metrics)}: {reason}", err=True)
    for picture, fault in table.failures.items():
        print_failure(printable(Path(picture)), fault)
    if output is not None:
        with _written(output):
            table.save(output)
        note(f"-> {printable(output)}", err=True)
