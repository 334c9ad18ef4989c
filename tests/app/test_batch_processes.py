"""Several processes of this machine: the same rows as from one, also if processes are killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from seewhy import batch, open_batch, wrap_model
from seewhy.app.batch import parts, processes, shards
from seewhy.app.batch.processes import OnThisMachine
from seewhy.app.batch.sources import Source
from seewhy.app.batch.work import WorkerError
from seewhy.explainers.errors import OptionError
from tests import nets
from tests.app.batches import Deadly, descendants, draw_noise, rows_of
from tests.waiting import until

CODE = """
import sys
from seewhy.app.batch import parts, run
parts._FEWEST, parts._SHARES = 4, 32
run.batch(sys.argv[1], sys.argv[2], workers=2, progress=False)
"""
"""A script without a guard of its main module, which its processes do not run again."""


@pytest.fixture
def model():
    return wrap_model(nets.seeded(nets.Net), ("ant", "bee", "cat"), input_size=32)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Forty pictures, one of them broken."""
    place = tmp_path / "pictures" / "bee"
    place.mkdir(parents=True)
    for number in range(39):
        Image.effect_noise((40, 36), 80).convert("RGB").save(place / f"{number:02}.png")
    (place / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return place.parent


@pytest.mark.parametrize("workers", [0, -1, 2.0, True, "2"])
def test_workers_are_a_number(model, folder, tmp_path, workers):
    with pytest.raises(OptionError, match=r"workers is .*; it must be an integer of at least 1"):
        batch(folder, tmp_path / "out", model, workers=workers, progress=False)
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_copied_is_run_by_this_process_alone(folder, tmp_path, monkeypatch):
    net = nets.seeded(nets.Net)
    net.lock = Lock()
    model = wrap_model(net, ("ant", "bee", "cat"), input_size=32)
    with pytest.raises(OptionError, match=r"cannot be copied to other processes \(.*lock.*\); use workers=1"):
        batch(folder, tmp_path / "out", model, workers=2, progress=False)
    monkeypatch.setattr(processes, "_WORTH", 1)
    monkeypatch.setattr(processes, "processors", lambda: 4)
    assert batch(folder, tmp_path / "out", model, progress=False).manifest.pictures == 39


@pytest.mark.parametrize(
    ("pictures", "passes", "data", "memory", "number"),
    [
        (100_000, 2, None, 64, 7),
        (100_000, 2, None, 6, 3),
        (100_000, 2, None, 1, 1),
        (100, 2, None, 64, 1),
        (100, 12_801, None, 64, 7),
        (10_000, None, None, 64, 7),
        (100_000, 2, ["a picture"], 64, 1),
    ],
)
def test_short_runs_and_data_sets_have_one_process_by_default(monkeypatch, pictures, passes, data, memory, number):
    monkeypatch.setattr(processes, "processors", lambda: 7)
    monkeypatch.setattr(processes, "memory_limit", lambda: memory * 2**30)
    assert OnThisMachine(None, data, passes)._default(pictures) == number


@pytest.mark.parametrize(
    ("pictures", "workers", "passes", "sizes"),
    [
        (100, 2, 2, [32, 32, 32, 4]),
        (1600, 2, 2, [100] * 16),
        (100_000, 2, 2, [1024] * 97 + [672]),
        (5, 2, 12_801, [1] * 5),
        (64, 1, 512, [16] * 4),
    ],
)
def test_parts_have_few_pictures_where_each_takes_many_passes(pictures, workers, passes, sizes):
    listing = [Source(str(number), b"") for number in range(pictures)]
    divided = parts.parts_of(listing, None, workers, passes, 7)
    assert [part.number for part in divided] == list(range(7, 7 + len(sizes)))
    loaded = [parts.load(part.sources, None) for part in divided]
    assert [len(each) for each in loaded] == sizes
    assert [source.path for each in loaded for source in each] == [source.path for source in listing]
    assert divided[0].pictures == f"from 0 to {sizes[0] - 1}"


@pytest.mark.slow
def test_processes_write_the_rows_that_one_process_writes(model, folder, tmp_path):
    results = batch(folder, tmp_path / "several", model, workers=2, pictures=True, progress=False)
    alone = batch(folder, tmp_path / "alone", model, workers=1, pictures=True, progress=False)
    assert (results.manifest.pictures, results.manifest.errors) == (39, 1)
    assert results.manifest.run == alone.manifest.run
    columns = ["path", "error", "truth", "predicted"]
    rows, expected = (each.table.sort_by("path").select(columns).to_pylist() for each in (results, alone))
    assert rows == expected
    maps = {path: each.map for path, each in zip(rows_of(results), results, strict=True)}
    for path, each in zip(rows_of(alone), alone, strict=True):
        assert np.abs(maps[path] - each.map).max() <= 1e-3 * np.abs(each.map).max()
    explained = [file for file in shards.files(tmp_path / "several") if parquet.read_table(file)["error"].null_count]
    assert len(list((tmp_path / "several").glob("pictures-*.tar"))) == len(explained)


@pytest.mark.slow
def test_who_is_killed_loses_no_picture_and_repeats_none(tmp_path):
    place, out = tmp_path / "pictures", tmp_path / "out"
    draw_noise(place, 240)
    command = [sys.executable, "-c", CODE, str(place), str(out)]
    with subprocess.Popen(command) as process:
        for kill_worker in (True, False):
            kept = len(shards.files(out))
            until(lambda kept=kept: len(shards.files(out)) > kept + 1)
            workers = [pid for pid, name in descendants(process.pid).items() if "popen_loky" in name]
            os.kill(workers[0] if kill_worker else process.pid, signal.SIGKILL)
    until(lambda: not any(Path("/proc", str(pid)).exists() for pid in workers))
    assert open_batch(out).manifest.finished is None
    assert 0 < len(open_batch(out)) < 240
    assert batch(place, out, progress=False).manifest.finished is not None
    assert Counter(open_batch(out).table["path"].to_pylist()) == Counter(f"{number}.png" for number in range(240))
    assert {file.name for file in out.iterdir() if file.name.startswith(".")} == {".lock"}


@pytest.mark.slow
def test_a_picture_that_ends_every_process_ends_the_run(model, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "ATTEMPTS", 2)
    with pytest.raises(WorkerError, match=r"A process died 2 times on pictures .*from 0 to 31"):
        batch(Deadly(), tmp_path / "out", model, workers=2, progress=False)
