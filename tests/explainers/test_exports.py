"""What was exported is found by forked processes, and nothing else is."""

import errno
import fcntl
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from seewhy.explainers.execution import accelerators, exports
from seewhy.explainers.execution.accelerated import Accelerated, Parts
from seewhy.explainers.execution.accelerators import exported_before, onnxruntime, share_exports
from seewhy.explainers.execution.cut import cut_before
from seewhy.explainers.execution.exports import Exports, fingerprint
from tests import nets

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory that forked processes share")

A, B, C = (bytes([number]) * 32 for number in range(3))


class Hidden(nn.Module):
    """Has a number that it does not print."""

    def __init__(self, factor: float = 1.0, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=stride), nn.BatchNorm2d(4)
        self.last, self.head = nn.Conv2d(4, 4, 3), nn.Linear(4, 5)
        self.opaque = Scaled(factor)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.opaque(self.norm(self.conv(images)).relu())).mean((2, 3)))


class Scaled(nn.Module):
    """Cannot be traced, and stays whole."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor if values.sum() > -1e9 else values


def part(module: nn.Module, image: Tensor) -> torch.fx.GraphModule:
    return cut_before(module.eval(), ["last"], image).prefix


@pytest.fixture
def image() -> Tensor:
    return torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def shared(monkeypatch):
    monkeypatch.setattr(accelerators, "_exports", None)
    share_exports()
    return accelerators._exports


@pytest.fixture
def exported(monkeypatch) -> list[bytes]:
    """What is exported from now on."""
    found: list[bytes] = []

    def counted(*given, export=accelerators._exported):
        found.append(export(*given))
        return found[-1]

    monkeypatch.setattr(accelerators, "_exported", counted)
    return found


def test_values_come_back_by_their_keys():
    kept = Exports()
    assert kept.get(A) is None
    kept.put(A, b"one")
    kept.put(B, b"")
    kept.put(C, b"three" * 1000)
    kept.put(A, b"other")
    assert [kept.get(key) for key in (A, B, C, b"d" * 32)] == [b"one", b"", b"three" * 1000, None]


def test_what_does_not_fit_takes_the_place_of_all(caplog):
    kept = Exports(space=200)
    kept.put(A, bytes(50))
    kept.put(B, bytes(50))
    assert [kept.get(key) for key in (A, B, C)] == [bytes(50), bytes(50), None]
    kept.put(C, bytes(20))
    assert [kept.get(key) for key in (A, B, C)] == [None, None, bytes(20)]
    assert os.fstat(kept._file).st_size <= 200
    with caplog.at_level("INFO"):
        kept.put(A, bytes(200))
    assert [kept.get(key) for key in (A, B, C)] == [None, None, bytes(20)]
    assert "not kept" in caplog.text


def test_threads_write_one_after_another():
    kept, keys = Exports(space=2**20), [bytes([number]) * 32 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: (kept.put(key, key * 30), kept.put(C, b"one")), keys))
    assert all(kept.get(key) == key * 30 for key in keys if key != C)
    assert len(list(kept._entries())) == len(keys)


def test_a_file_that_fails_keeps_nothing_and_costs_nothing(monkeypatch, shared, image):
    monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    module = nets.seeded(Hidden).eval().requires_grad_(False)
    run = onnxruntime(part(module, image), image)
    assert nets.relative_error(run(image)[0], part(module, image)(image)[0]) < 1e-5
    assert exported_before(part(module, image), image) is None


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "no space"), None])
def test_what_was_not_written_whole_is_not_found(failure, monkeypatch):
    kept, write = Exports(), os.pwrite
    kept.put(A, b"whole")

    def half(file: int, data: bytes, place: int) -> int:
        if place == 0:
            return write(file, data, place)
        done = write(file, data[: len(data) // 2], place)
        if failure:
            raise failure
        return done

    monkeypatch.setattr(os, "pwrite", half)
    if isinstance(failure, KeyboardInterrupt):  # stands for the end of the process
        with pytest.raises(KeyboardInterrupt):
            kept.put(B, b"broken off" * 9)
    else:
        kept.put(B, b"broken off" * 9)
    monkeypatch.undo()
    assert kept.get(B) is None
    kept.put(C, b"after")
    kept.put(B, b"again")
    assert [kept.get(key) for key in (A, B, C)] == [b"whole", b"again", b"after"]


def test_files_are_closed_with_the_exports():
    before = len(os.listdir("/proc/self/fd"))
    kept = Exports()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del kept
    assert len(os.listdir("/proc/self/fd")) == before


def forked(script: str) -> str:
    """What a program prints that forks, of which this process, with its threads, had better not be the parent."""
    given = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_write_one_after_another():
    assert (
        forked("""
        import os
        from seewhy.explainers.execution.exports import Exports
        kept, start = Exports(), os.pipe()
        for child in range(8):
            if not os.fork():
                os.read(start[0], 1)
                for number in range(100):
                    kept.put(bytes([child]) * 31 + bytes([number]), bytes([child]) * (number + 1))
                    kept.put(bytes([99]) * 31 + bytes([number]), bytes(7))
                os._exit(0)
        os.write(start[1], bytes(8))
        assert all(os.wait()[1] == 0 for _ in range(8))
        for child in range(8):
            for number in range(100):
                assert kept.get(bytes([child]) * 31 + bytes([number])) == bytes([child]) * (number + 1)
        print(len(list(kept._entries())))
    """)
        == "900\n"
    )


def test_a_new_process_finds_what_another_exported():
    assert (
        forked("""
        import os, sys, torch
        from torch import nn
        from explainers import accelerators
        from seewhy.explainers.execution.accelerated import Accelerated, Parts

        def child():
            torch.manual_seed(0)
            module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 5))
            model = Accelerated(module.eval().requires_grad_(False), (3, 8, 8), ("2",), "onnxruntime")
            images = torch.rand(2, 3, 8, 8)
            model.warm()
            assert (model.whole(images)(images) - module(images)).abs().max() < 1e-5

        accelerators.share_exports()
        export = accelerators._exported
        accelerators._exported = lambda *given: (print("exported", flush=True), export(*given))[1]
        for _ in range(2):
            if not os.fork():
                child()
                os._exit(0)
            assert os.wait()[1] == 0
    """)
        == "exported\n"
    )


def compile_(module: nn.Module, image: Tensor) -> Parts:
    """Compile and compare, as a model that is loaded does."""
    model = Accelerated(module.eval().requires_grad_(False), tuple(image.shape[1:]), ("last",), "onnxruntime")
    model.warm()
    found = model.whole(image)
    assert isinstance(found, Parts)
    assert nets.relative_error(found(image), module(image)) < 1e-5
    return found


def test_a_part_is_exported_once(shared, exported, image):
    for _ in range(2):
        compile_(nets.seeded(Hidden), image)
    assert len(exported) == 1


def test_without_sharing_nothing_is_kept(monkeypatch, exported, image):
    monkeypatch.setattr(accelerators, "_exports", None)
    for _ in range(2):
        compile_(nets.seeded(Hidden), image)
    assert len(exported) == 2


@pytest.mark.parametrize("change", ["weights", "buffers", "stride", "size"])
def test_other_parts_are_exported_anew(change, shared, exported, image):
    compile_(nets.seeded(Hidden), image)
    module = nets.seeded(Hidden, 1.0, 2) if change == "stride" else nets.seeded(Hidden)
    with torch.no_grad():
        if change == "weights":
            module.conv.weight[0, 0, 0, 0] += 1e-6
        if change == "buffers":
            module.norm.running_mean[0] += 1e-6
    other = torch.rand(1, 3, 18, 18) if change == "size" else image
    compile_(module, other)
    assert len(exported) == 2


def test_how_weights_lie_in_memory_changes_nothing(image):
    module = nets.seeded(Hidden)
    before = fingerprint(part(module, image), image)
    assert fingerprint(part(module.to(memory_format=torch.channels_last), image), image) == before


def test_shapes_of_parameters_are_told_apart(image):
    class Shaped(nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.factor, self.last = nn.Parameter(torch.ones(shape)), nn.Conv2d(3, 4, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.last(images * self.factor.mean())

    one, other = (part(nets.seeded(Shaped, *shape), image) for shape in ((2, 8), (4, 4)))
    assert str(one) == str(other)
    assert fingerprint(one, image) != fingerprint(other, image)


def test_a_part_that_only_seems_the_same_is_exported_too(shared, exported, image):
    for factor in (1.0, 1.5, 1.0):
        run = compile_(nets.seeded(Hidden, factor), image).prefix
        assert run.__qualname__.startswith("_session.")  # and not on PyTorch
    assert len(exported) == 2


@pytest.mark.parametrize("missing", [OSError("no such memory"), AttributeError("memfd_create")])
def test_each_process_exports_for_itself_where_nothing_can_be_shared(missing, monkeypatch, exported, image):
    def refuse(*_):
        raise missing

    monkeypatch.setattr(exports.os, "memfd_create", refuse)
    monkeypatch.setattr(accelerators, "_exports", None)
    share_exports()
    compile_(nets.seeded(Hidden), image)
    assert len(exported) == 1
