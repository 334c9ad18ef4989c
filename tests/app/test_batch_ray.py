"""The engine ray: the same rows as in one process, also if processes are killed."""

import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

from seewhy import batch, open_batch, wrap_model
from seewhy.app.batch import run, shards
from seewhy.app.batch.work import TooManyErrorsError, WorkerError
from seewhy.explainers.errors import OptionError
from tests import nets
from tests.app.batches import Deadly, Noise, descendants, draw_noise, rows_of
from tests.waiting import until

CODE = """
import sys
from seewhy.app.batch import parts, run
parts._FEWEST, parts._SHARES = 4, 32
run.batch(sys.argv[1], sys.argv[2], engine="ray", address=sys.argv[3], progress=False)
"""


@pytest.fixture
def model():
    return wrap_model(nets.seeded(nets.Net), ("ant", "bee", "cat"), input_size=32)


def test_an_address_is_for_ray_alone(model, tmp_path):
    with pytest.raises(OptionError, match="use the engine ray"):
        batch(Noise(), tmp_path / "out", model, address="auto", progress=False)
    assert not (tmp_path / "out").exists()


def test_an_engine_that_is_not_installed_names_its_extra(model, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'seewhy\[ray\]'"):
        batch(Noise(), tmp_path / "out", model, engine="ray", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, as a run starts it, for several runs."""
    import ray  # takes seconds, and the other tests do not need it

    from seewhy.app.batch.cluster import connected

    with connected(None):
        yield ray.get_runtime_context().gcs_address


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "resources", "pool"),
    [
        ("cuda", {"CPU": 16.0, "GPU": 2.0}, (2, 4, 1)),
        ("cuda", {"CPU": 4.0, "GPU": 2.0}, (2, 2, 1)),
        ("cpu", {"CPU": 16.0, "GPU": 2.0}, (16, 1, 0)),
    ],
)
def test_a_worker_has_a_gpu_with_processors_to_decode_or_a_processor(device, resources, pool, monkeypatch):
    import ray

    from seewhy.app.batch import cluster

    monkeypatch.setattr(ray, "cluster_resources", lambda: resources)
    assert cluster._pool(torch.device(device)) == pool


@pytest.mark.slow
def test_a_cluster_without_a_gpu_runs_no_model_that_is_on_one(monkeypatch):
    import ray

    from seewhy.app.batch import cluster

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    with pytest.raises(OptionError, match="use the device cpu"):
        cluster._pool(torch.device("cuda"))


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_writes_the_rows_that_one_process_writes(model, tmp_path):
    with pytest.raises(TooManyErrorsError, match="0: RuntimeError: the disk is gone"):
        batch(Noise(), tmp_path / "ray", model, engine="ray", max_errors=0, pictures=True, progress=False)
    kept = len(open_batch(tmp_path / "ray"))
    assert kept >= 1
    results = batch(Noise(), tmp_path / "ray", model, engine="ray", pictures=True, progress=False)
    alone = batch(Noise(), tmp_path / "alone", model, pictures=True, progress=False)
    assert (results.manifest.pictures, results.manifest.errors) == (39, 1)
    assert results.manifest.run == alone.manifest.run
    rows, expected = (table.table.sort_by("path").to_pylist() for table in (results, alone))
    for row, other in zip(rows, expected, strict=True):
        assert {name: row[name] for name in ("path", "error", "truth", "predicted")} == {
            name: other[name] for name in ("path", "error", "truth", "predicted")
        }
    maps = {path: each.map for path, each in zip(rows_of(results), results, strict=True)}
    for path, each in zip(rows_of(alone), alone, strict=True):
        assert np.abs(maps[path] - each.map).max() <= 1e-3 * np.abs(each.map).max()
    explained = [file for file in shards.files(tmp_path / "ray") if parquet.read_table(file)["error"].null_count]
    assert len(list((tmp_path / "ray").glob("pictures-*.tar"))) == len(explained)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_who_is_killed_loses_no_picture_and_repeats_none(cluster, tmp_path):
    place, out = tmp_path / "pictures", tmp_path / "out"
    draw_noise(place, 240)
    (place / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    command = [sys.executable, "-c", CODE, str(place), str(out), cluster]
    with subprocess.Popen(command) as process:
        for kill_worker in (True, False):
            kept = len(shards.files(out))
            until(lambda kept=kept: len(shards.files(out)) > kept + 1)
            workers = [pid for pid, name in descendants(os.getpid()).items() if name.startswith("ray::MapWorker")]
            os.kill(workers[0] if kill_worker else process.pid, signal.SIGKILL)
    assert open_batch(out).manifest.finished is None
    assert 0 < len(open_batch(out)) < 241
    assert batch(place, out, engine="ray", progress=False).manifest.finished is not None
    expected = Counter([*(f"{number}.png" for number in range(240)), "broken.png"])
    assert Counter(open_batch(out).table["path"].to_pylist()) == expected
    assert {file.name for file in out.iterdir() if file.name.startswith(".")} == {".lock", ".attempts"}
    assert not list((out / ".attempts").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")
def test_a_picture_that_ends_every_worker_ends_the_run(model, tmp_path, monkeypatch):
    monkeypatch.setattr("seewhy.app.batch.cluster.ATTEMPTS", 2)
    with pytest.raises(WorkerError, match="2 workers died on pictures from 0 to "):
        batch(Deadly(), tmp_path / "out", model, engine="ray", progress=False)
