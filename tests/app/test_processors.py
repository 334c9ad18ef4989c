"""The resources of the machine that a process uses: processors, threads, heaps."""

import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from PIL import Image

from seewhy.app.cli import main
from seewhy.app.http.routes import pictures
from seewhy.app.system import allocator as heaps
from seewhy.app.system import control_groups
from seewhy.app.system import processors as module
from seewhy.app.system.processors import processors


@pytest.fixture
def eight(monkeypatch):
    """Pretend that this process is bound to eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": "nonsense"}, 8),
        ({"cpu.max": "100000 0"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"service/inner/cpu.max": "300000 100000"}, 3),
        ({"service/cpu.max": "200000 100000", "service/inner/cpu.max": "300000 100000"}, 2),
        ({"other/cpu.max": "100000 100000"}, 8),
    ],
)
def test_processors_are_those_that_the_control_groups_allow(files, expected, eight, monkeypatch, tmp_path):
    own = tmp_path / "own"
    own.write_text("12:memory:/x\n4:cpu,cpuacct:/\n0::/service/inner\n")
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    monkeypatch.setattr(control_groups, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(control_groups, "OWN_GROUPS", own)
    assert processors() == expected
    monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "nowhere")
    assert processors() <= 8


@pytest.mark.parametrize(("workers", "allowed", "expected"), [(1, 8, None), (2, 8, "4"), (1, 2, "2"), (16, 8, "1")])
def test_processes_share_the_processors(workers, allowed, expected, eight, monkeypatch):
    environment = {}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(module, "processors", lambda: allowed)
    module.share_processors(workers)
    assert environment.get("OMP_NUM_THREADS") == expected
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    environment.update(OMP_NUM_THREADS="3", OMP_WAIT_POLICY="ACTIVE")
    module.share_processors(workers)
    assert environment == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE"}


def test_commands_leave_the_processors_to_others_while_they_wait(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert CliRunner().invoke(main, ["settings"]).exit_code == 0
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


class Library:
    """A C library that notes what malloc is told."""

    def __init__(self):
        self.options, self.trimmed = [], []

    def mallopt(self, *option):
        self.options.append(option)

    def malloc_trim(self, pad):
        self.trimmed.append(pad)


@pytest.mark.parametrize("variable", [None, "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_threads_share_two_heaps_unless_the_environment_says_otherwise(variable, monkeypatch):
    library = Library()
    monkeypatch.setattr(heaps.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(os, "environ", {} if variable is None else {variable: "1"})
    heaps.limit_arenas()
    assert library.options == ([(-8, 2)] if variable is None else [])
    monkeypatch.setattr(heaps.ctypes, "CDLL", lambda _: object())  # another C library
    heaps.limit_arenas()


def test_a_large_picture_is_one_piece_of_memory(monkeypatch):
    monkeypatch.setattr(heaps.ctypes, "CDLL", lambda _: object())
    before = Image.core.get_block_size()
    try:
        heaps.limit_arenas()
        Image.core.clear_cache()
        Image.core.reset_stats()
        assert Image.new("RGB", (5000, 5000)).size == (5000, 5000)
        assert Image.core.get_stats()["allocated_blocks"] == 1
    finally:
        Image.core.set_block_size(before)


def test_memory_is_given_back_once_after_work(monkeypatch):
    library, now = Library(), [0.0]
    monkeypatch.setattr(heaps.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(heaps.time, "monotonic", lambda: now[0])
    rest = heaps.Rest()
    never, unseen = -math.inf, 10.1
    looks = [(5, never, 0), (6, 6, 0), (7, 6, 0), (8, 6, 1), (9, 6, 1), (20, unseen, 2), (21, unseen, 2), (22, 22, 2)]
    for second, worked, trims in [*looks, (23, 22, 2), (24, 22, 3), (25, 22, 3)]:
        now[0] = second
        rest.look(worked)
        assert len(library.trimmed) == trims
    monkeypatch.setattr(heaps.ctypes, "CDLL", lambda _: object())  # another C library
    now[0] = 30
    rest.look(26)


def test_no_more_drawings_at_once_than_processors(post, cat, service, monkeypatch):
    at_once, most, real = set(), [], pictures.explain_body
    monkeypatch.setattr(service, "processors", threading.BoundedSemaphore(1))

    def slow(*args):
        at_once.add(threading.get_ident())
        most.append(len(at_once))
        time.sleep(0.05)  # what must not happen has no event: a moment in which others could draw too
        at_once.discard(threading.get_ident())
        return real(*args)

    monkeypatch.setattr(pictures, "explain_body", slow)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda target: post(cat, target=str(target)), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert most == [1] * 4
