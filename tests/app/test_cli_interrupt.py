"""Ctrl-C on the command line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seewhy.app.cli.files import Item
from seewhy.app.cli.interrupt import INTERRUPTED, graceful, unbroken
from seewhy.app.cli.run import for_each

ITEMS = [Item(Path(f"{number}.png"), Path(f"{number}.out")) for number in range(5)]


@pytest.fixture(autouse=True)
def handler():
    """Python's own handler, before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_result_that_is_being_written_is_written_whole(capfd):
    lines = []

    def report(item, result):
        press()
        lines.append(f"{item.picture} {result}")

    with pytest.raises(SystemExit) as end, graceful():
        for_each(ITEMS, lambda item: "done", report)
    assert end.value.code == INTERRUPTED
    assert lines == ["0.png done"]
    error = capfd.readouterr().err
    assert "Press Ctrl-C again to stop at once." in error
    assert "Interrupted: 1 of 5 pictures done." in error


def test_what_fails_while_it_is_put_off_fails():
    def fail():
        with graceful(), unbroken():
            press()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_second_one_ends_the_process_even_in_an_unbroken_block(monkeypatch):
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)

    def write():
        with graceful(), unbroken():
            press()
            assert statuses == []
            press()
            assert statuses == [INTERRUPTED]

    with pytest.raises(KeyboardInterrupt):
        write()
    press()  # during Python's own exit
    assert statuses == [INTERRUPTED] * 2


def test_the_handler_of_others_stays(monkeypatch):
    calls = []
    for other in (signal.SIG_IGN, lambda number, frame: calls.append(number)):
        signal.signal(signal.SIGINT, other)
        with graceful(), unbroken():
            press()
        assert signal.getsignal(signal.SIGINT) is other
    assert calls == [signal.SIGINT]


def test_without_one_the_handler_is_as_before():
    with graceful(), unbroken():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


HANGING = """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import click
from seewhy.app.cli import main

@main.command()
def hang():
    try:
        print("begun", flush=True)
        threading.Event().wait()
    finally:
        print("ending", flush=True)
        if STAYS:
            threading.Event().wait()

main(["hang"])
"""


@pytest.mark.parametrize("stays", [False, True])
def test_no_command_ends_with_a_traceback_and_none_stays_after_two(stays):
    command = [sys.executable, "-c", HANGING.replace("STAYS", str(stays))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ending\n"
        if stays:
            process.send_signal(signal.SIGINT)
        error = process.stderr.read()
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in error
    assert ("Interrupted." in error) is not stays
