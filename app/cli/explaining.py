"""What `seewhy explain` does: pictures through the service, and all that is made of each answer."""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from PIL import Image

from seewhy.app.answers.documents import arrays, document, draw, encode
from seewhy.app.cli.files import DASH, Task, printable, read, write
from seewhy.app.cli.options import DRAWINGS
from seewhy.app.cli.run import at_once, each, print_bytes, ready
from seewhy.app.cli.sheet import Sheet
from seewhy.app.cli.summary import Summary
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.options import ExplainOptions, Format
from seewhy.app.pipeline.plan import Explained


@dataclass(frozen=True)
class Extras:
    """What is made beside the answers.

    Attributes:
        skip_existing: leave out pictures whose answers are there.
        sheet: file of the contact sheet.
        summary: file of the summary.
    """

    skip_existing: bool
    sheet: Path | None
    summary: Path | None


@dataclass(frozen=True)
class _Result:
    """What came of one picture. All but its tile is empty where its answer was there already.

    Attributes:
        line: to print.
        caption: of the tile.
        rows: of the summary.
        body: for the standard output.
        tile: for the sheet.
    """

    line: str = ""
    caption: str = ""
    rows: tuple[dict[str, Any], ...] = ()
    body: bytes = b""
    tile: Image.Image | None = None


@dataclass
class Explaining:
    """A run of the command.

    Attributes:
        service: explains.
        tasks: the pictures, one or more.
        options: of the explanations.
        form: of the answers.
        extras: what else is made.
    """

    service: Service
    tasks: list[Task]
    options: ExplainOptions
    form: Format
    extras: Extras

    def run(self) -> None:
        """Explain the pictures, several at once, which share passes of the model; exit with 1 where some failed.

        Raises:
            click.UsageError: what was asked for beside the answers cannot be had.
        """
        self._check()
        with ExitStack() as closing:
            sheet = Sheet(self.extras.sheet, self._title, encode) if self.extras.sheet else None
            summary = Summary(self.extras.summary, self.extras.skip_existing) if self.extras.summary else None
            for one in (sheet, summary):
                if one is not None:
                    closing.callback(one.close)

            def told(task: Task, result: _Result) -> None:
                if sheet and result.tile:
                    sheet.add(result.tile, f"{printable(Path(task.picture.name))}{result.caption}")
                if not result.line:
                    if summary:
                        summary.add_skipped(str(task.picture), str(task.output))
                    return
                if summary:
                    summary.add(*result.rows)
                if result.body:
                    print_bytes(result.body)
                click.echo(result.line, err=task.output == DASH)

            def failed(task: Task, message: str) -> None:
                if summary:
                    summary.add({"picture": str(task.picture), "error": message})

            if skipped := sum(map(self._skips, self.tasks)):
                click.echo(f"{skipped} of {len(self.tasks)} answers are there already.", err=True)
            if skipped < len(self.tasks):
                ready(self.service, self.options.model)
            each(self.tasks, self._work, told, failed, at_once(self.service.settings.max_batch))

    def _skips(self, task: Task) -> bool:
        return self.extras.skip_existing and task.is_done

    def _check(self) -> None:
        if self.tasks[0].output == DASH:
            if self.extras.skip_existing:
                raise click.UsageError("--skip-existing needs files, and the standard output is none.")
            if sys.stdout.isatty() and self.form != "json":
                raise click.UsageError("The standard output is a terminal, and the answer is no text: name a file.")

    @property
    def _is_drawing(self) -> bool:
        return self.form in DRAWINGS

    @property
    def _title(self) -> str:
        model = self.options.model or self.service.settings.default_model
        return f"{model}: {', '.join(self.options.method)}"

    def _work(self, task: Task) -> _Result:
        started = time.perf_counter()
        if self._skips(task):
            return _Result(tile=self._old_tile(task))
        drawn = self._is_drawing or self.extras.sheet is not None
        explained = self.service.explain(read(task.picture), self.options, drawn=drawn or self.form == "json")
        drawing = draw(explained) if drawn else None
        body = self._encoded(explained, drawing)
        to_files = task.output != DASH
        if to_files:
            write(task.output, body)
        milliseconds = round((time.perf_counter() - started) * 1000, 1)
        said = _said(explained)
        methods = ", ".join(method.name for method, _ in explained.methods)
        place = f" -> {printable(task.output)}" if to_files else ""
        return _Result(
            line=f"{printable(task.picture)}: {said} by {methods}{place}",
            caption=f": {said}",
            rows=tuple(_rows(task, explained, milliseconds)) if self.extras.summary else (),
            body=b"" if to_files else body,
            tile=Sheet.tile(drawing) if drawing and self.extras.sheet else None,
        )

    def _encoded(self, explained: Explained, drawing: Image.Image | None) -> bytes:
        if self.form == "json":
            answer = document(explained, self.options.values, self.service.settings.max_json_values)
            return answer.model_dump_json(exclude_unset=True, indent=2).encode()
        if self.form == "npz":
            return b"".join(arrays(explained, self.service.settings.max_values).pieces())
        return encode(drawing or draw(explained), self.form)

    def _old_tile(self, task: Task) -> Image.Image | None:
        """Return the tile of an answer that was there before, where it is a picture."""
        if not (self.extras.sheet and self._is_drawing):
            return None
        with Image.open(task.output) as drawing:
            return Sheet.tile(drawing)


def _said(explained: Explained) -> str:
    named = ", ".join(f"{target.label} {target.probability:.1%}" for target in explained.targets)
    against = explained.explanations[0].against
    return f"{named} against {against.label}" if against else named


def _rows(task: Task, explained: Explained, milliseconds: float) -> list[dict[str, Any]]:
    return [
        {
            "picture": str(task.picture),
            "output": str(task.output),
            "model": explained.model.name,
            "method": one.method,
            "target": one.target.index,
            "label": one.target.label,
            "probability": one.target.probability,
            "logit": one.target.logit,
            "contrast": one.against.label if one.against else None,
            "diagnostics": [found.code for found in one.diagnostics],
            "milliseconds": milliseconds,
        }
        for one in explained.explanations
    ]
