"""/metrics reports what has happened."""

import errno
import gc
import io
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from prometheus_client import values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from seewhy.app import create_app
from seewhy.app.errors import KINDS, ClientGoneError
from seewhy.app.observability import processes as workers_module
from seewhy.app.observability.heatmap_statistics import spread
from seewhy.app.observability.listeners import Operations
from seewhy.app.observability.processes import FOLDER, SPACE, share_figures
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.observer import Observer
from seewhy.app.settings import Settings
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.models import ModelError
from tests.app.conftest import encoded
from tests.app.serving import application
from tests.app.test_engine import engine_of, hold, in_threads, job, loaded, module, outcomes  # noqa: F401
from tests.waiting import GUARD, until

LITE0 = "efficientnet_lite0"


@pytest.fixture(scope="module")
def own_app(sharing):
    # No method is refused, however slow the machine.
    with application(metrics_classes=1, deadline=GUARD) as app, sharing():
        yield app


@pytest.fixture
def client(own_app):
    return own_app.test_client()


def samples(text):
    """All samples: name and labels, as frozen pairs, to values."""
    families = text_string_to_metric_families(text)
    return {(row.name, frozenset(row.labels.items())): row.value for family in families for row in family.samples}


@pytest.fixture
def metric(client):
    """Return a function from a name and labels to a value, 0 where there is none."""

    def value(name, **labels):
        lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
        return samples("\n".join([*lines, ""])).get((name, frozenset(labels.items())), 0.0)

    return value


@pytest.fixture
def gained(metric):
    """Return a function that says by how much a value has changed since it was asked first."""
    before = {}

    def change(name, **labels):
        now = metric(name, **labels)
        return now - before.setdefault((name, *sorted(labels.items())), now)

    return change


@pytest.fixture
def operations():
    return Operations(Settings())


def reading(operations, name, **labels):
    body, _ = operations.metrics.exposition("")
    return samples(body.decode()).get((name, frozenset(labels.items())))


def test_requests_are_counted_by_what_they_asked(post, gained):
    labels = {"route": "/explain", "model": LITE0, "method": "layercam", "status": "200"}
    timed = {**labels, "status": "2xx"}
    stages = ("decode", "queue", "explain", "render", "encode")
    names = ("seewhy_requests_total", "seewhy_request_duration_seconds_count")

    def state():
        counted = [gained(name, **(labels if name.endswith("total") else timed)) for name in names]
        return counted + [gained("seewhy_stage_duration_seconds_count", stage=stage, model=LITE0) for stage in stages]

    state()
    picture = (np.random.default_rng(1).random((60, 60, 3)) * 255).astype(np.uint8)
    assert post(encoded(Image.fromarray(picture)), method="layercam").status_code == 200
    assert state() == [1] * 7


def test_what_a_client_makes_up_becomes_no_label(client, post, cat, gained):
    gained("seewhy_requests_total", route="other", model="", method="", status="404")
    assert client.get("/made-up/4711").status_code == 404
    assert post(cat, model="made-up-4711").status_code == 422
    assert post(cat, method="made-up-4711").status_code == 422
    assert client.get("/models/made-up-4711").status_code == 404
    assert post(cat, **{"made-up-4711": "1"}).status_code == 422
    assert client.open("/explain", method="MADEUP-4711").status_code == 405
    text = client.get("/metrics").text.lower()
    assert "made-up" not in text
    assert "madeup" not in text
    assert gained("seewhy_requests_total", route="other", model="", method="", status="404") == 1
    assert "/models/<path:name>" in client.get("/metrics").text


def test_several_methods_are_one_label(post, cat, gained):
    labels = {"route": "/explain", "model": LITE0, "method": "several", "status": "200"}
    gained("seewhy_requests_total", **labels)
    assert post(cat, method="gradcam,layercam").status_code == 200
    assert gained("seewhy_requests_total", **labels) == 1


@pytest.mark.parametrize("error", [*KINDS, ClientGoneError], ids=lambda error: error.__name__)
def test_rejections_are_counted_by_reason(own_app, post, cat, gained, monkeypatch, error):
    def refuse(*_, **__):
        refusal = error.__new__(error, "no")
        refusal.faults, refusal.field, refusal.fault, refusal.retry_after = [("target", "bad")], "target", "bad", 5
        raise refusal

    monkeypatch.setattr(own_app.extensions["seewhy"], "explain", refuse)
    reason = "client-gone" if error is ClientGoneError else KINDS[error].code
    gained("seewhy_rejections_total", reason=reason)
    post(cat)
    assert gained("seewhy_rejections_total", reason=reason) == 1


def test_every_reason_is_there_before_anything_is_refused():
    exposition = create_app(Settings()).test_client().get("/metrics").get_data(as_text=True)
    for reason in {kind.code for kind in KINDS.values()} | {"client-gone", "rate-limited", "internal"}:
        assert f'seewhy_rejections_total{{reason="{reason}"}} 0.0' in exposition


def test_a_body_too_large_is_a_reason(client, gained):
    gained("seewhy_rejections_total", reason="upload-too-large")
    client.post("/explain", data=b"\0" * (33 * 2**20), content_type="image/png")
    assert gained("seewhy_rejections_total", reason="upload-too-large") == 1


def test_a_stream_is_over_when_it_is_closed(post, cat, gained, metric):
    labels = {"route": "/explain", "model": LITE0, "method": "rise", "status": "200"}
    gained("seewhy_requests_total", **labels), gained("seewhy_rejections_total", reason="client-gone")
    gc.collect()  # a stream that an earlier test left is over now, and not meanwhile
    open_before = metric("seewhy_requests_in_progress")
    response = post(cat, method="rise", samples="400", headers={"Accept": "text/event-stream"})
    assert response.mimetype == "text/event-stream"
    next(response.response)
    assert gained("seewhy_requests_total", **labels) == 0
    assert metric("seewhy_requests_in_progress") == open_before + 1
    response.close()
    assert gained("seewhy_requests_total", **labels) == 1
    assert gained("seewhy_rejections_total", reason="client-gone") == 1
    assert metric("seewhy_requests_in_progress") == open_before
    until(lambda: not metric("seewhy_jobs_running", model=LITE0))  # the pass that runs ends by itself


def test_answers_that_the_client_has_are_counted(post, coffee, gained):
    gained("seewhy_cache_total", result="unchanged")
    tag = post(coffee, method="gradcam").headers["ETag"]
    assert gained("seewhy_cache_total", result="unchanged") == 0
    assert post(coffee, method="gradcam", headers={"If-None-Match": tag}).status_code == 304
    assert gained("seewhy_cache_total", result="unchanged") == 1


def test_heatmaps_are_counted_by_method_and_by_class_up_to_a_limit(post, cat, gained, client):
    names = ("heatmap_entropy", "heatmap_centre_x", "heatmap_centre_y", "explained_probability")

    def state():
        of_method = [gained(f"seewhy_{name}_count", model=LITE0, method="hirescam") for name in names]
        label = {"class": "other", "label": "other", "model": LITE0}
        return of_method + [gained(f"seewhy_class_{name}_count", **label) for name in names]

    post(cat)  # the one class that has a name, if none has yet
    state()
    document = post(cat, method="hirescam", top="3", format="json").get_json()
    assert len(document["explanations"]) == 3
    changed = state()
    assert changed[:4] == [3] * 4
    assert changed[4:] == [2 if 'class="282"' in client.get("/metrics").text else 3] * 4


def test_diagnostics_are_counted_by_their_codes(post, cat, gained):
    label = {"model": LITE0, "code": "improbable-target"}
    gained("seewhy_diagnostics_total", **label)
    document = post(cat, method="hirescam", target="3", format="json").get_json()
    assert [diagnostic["code"] for diagnostic in document["explanations"][0]["diagnostics"]] == ["improbable-target"]
    assert gained("seewhy_diagnostics_total", **label) == 1


def test_proofs_are_counted_by_their_grades(post, cat, gained):
    grades = ["supported", "partly supported", "spread", "not supported", "ungraded"]
    labels = [{"model": LITE0, "method": "hirescam", "grade": grade} for grade in grades]
    for label in labels:
        gained("seewhy_proofs_total", **label)
    post(cat, method="hirescam")
    proof = post(cat, method="hirescam", proof="true", format="json").get_json()["explanations"][0]["proof"]
    counts = [gained("seewhy_proofs_total", **label) for label in labels]
    assert counts == [float(grade == (proof["grade"] or "ungraded")) for grade in grades]


def test_what_a_map_means_is_what_it_says(post, cat, gained):
    label = {"model": LITE0, "method": "xgradcam"}
    names = ("seewhy_explained_probability_sum", "seewhy_heatmap_centre_x_sum", "seewhy_heatmap_entropy_sum")
    for name in names:
        gained(name, **label)
    response = post(cat, method="xgradcam", target="tabby", format="npz")
    with np.load(io.BytesIO(response.data)) as arrays:
        (values,), logits = arrays["maps"], arrays["logits"]
    shares = values.astype(float) / values.sum()
    probability = np.exp(logits[281] - logits.max()) / np.exp(logits - logits.max()).sum()
    assert gained(names[0], **label) == pytest.approx(probability, rel=1e-4)
    # The centre crop of 451 by 300, shorter side to 256 and 224 of it, is a square in the middle.
    crop = 300 * 224 / 256
    expected = 0.5 + (shares.sum(0) @ (np.arange(7) + 0.5) / 7 - 0.5) * crop / 451
    assert gained(names[1], **label) == pytest.approx(expected, abs=0.01)
    assert gained(names[2], **label) == pytest.approx(-(shares * np.log(shares + 1e-30)).sum() / math.log(49), abs=1e-4)


def test_without_classes_there_are_no_series_by_class(app_of, cat):
    client = app_of(metrics_classes=0).test_client()
    client.post("/explain", data={"image": (io.BytesIO(cat), "cat")})
    text = client.get("/metrics").text
    assert "seewhy_heatmap_entropy_count" in text
    assert "class=" not in text


SQUARE = Geometry(100, 100, (0.0, 0.0, 100.0, 100.0))


PART = Geometry(200, 100, (100.0, 0.0, 200.0, 50.0))


@pytest.mark.parametrize(
    ("values", "geometry", "expected"),
    [
        pytest.param(5 * np.eye(1, 16, 7).reshape(4, 4), SQUARE, (0, 0.875, 0.375), id="a point"),
        pytest.param(np.ones((5, 7)), PART, (1, 0.75, 0.25), id="even, of a part of the picture"),
        pytest.param(np.tile([1, 1, 0, 0], (4, 1)), SQUARE, (math.log(8) / math.log(16), 0.25, 0.5), id="half"),
        pytest.param(np.array([[1.0, -1.0]]), SQUARE, (1, 0.5, 0.5), id="evidence against counts like evidence for"),
        pytest.param(np.ones((1, 1)), SQUARE, (0, 0.5, 0.5), id="one cell"),
    ],
)
def test_a_map_has_an_entropy_and_a_centre(values, geometry, expected):
    assert spread(values.astype(np.float32), geometry) == pytest.approx(expected)


def test_a_fine_map_is_averaged_over_cells():
    values = np.zeros((224, 320), np.float32)
    values[:112] = np.random.default_rng(0).random((112, 320))
    entropy, x, y = spread(values, SQUARE)
    assert entropy == pytest.approx(math.log(128) / math.log(256), abs=0.01)
    assert (x, y) == pytest.approx((0.5, 0.25), abs=0.01)


def test_a_blank_map_lies_nowhere():
    assert spread(np.zeros((7, 7), np.float32), SQUARE) is None


def test_queue_and_batches(operations, engine_of, module):  # noqa: F811
    engine = engine_of(lambda name: loaded(module, name), observer=operations)
    waiting = [job() for _ in range(3)]
    with hold(engine, module):
        engine.submit("slow", waiting)
        assert reading(operations, "seewhy_jobs_waiting", model="slow") == 3
        assert reading(operations, "seewhy_jobs_running", model="slow") == 1
    assert all(task.result() for task in waiting)
    in_threads(lambda: outcomes(engine, "slow", [job(value=float("nan"))]))
    until(lambda: not reading(operations, "seewhy_jobs_running", model="slow"))
    assert reading(operations, "seewhy_jobs_waiting", model="slow") == 0
    assert reading(operations, "seewhy_batch_size_sum", model="slow") == 5
    assert reading(operations, "seewhy_batch_size_bucket", model="slow", le="2.0") == 2
    assert reading(operations, "seewhy_batch_size_count", model="slow") == 3


def test_only_batches_that_succeed_have_a_duration(operations):
    for succeeded in (True, False):
        operations.batch_finished("slow", [job()], 0.0, 2.5, succeeded=succeeded)
    assert reading(operations, "seewhy_batch_duration_seconds_count", model="slow", size="1") == 1
    assert reading(operations, "seewhy_batch_duration_seconds_sum", model="slow", size="1") == 2.5
    with pytest.raises(TypeError):
        Observer().batch_finished("slow", [job()], 0.0, 2.5, True)


def test_hooks_that_stay_on_a_resting_model_are_counted(operations, engine_of, module):  # noqa: F811
    engine = engine_of(lambda name: loaded(module, name), observer=operations)

    def counted(expected):
        outcomes(engine, "slow", [job()])
        return until(lambda: reading(operations, "seewhy_hooks", model="slow") == expected)

    assert counted(0)
    handle = module.register_forward_hook(lambda *_: None)
    assert counted(1)
    handle.remove()
    assert counted(0)


def test_models_come_and_go(operations, engine_of, module):  # noqa: F811
    def load(name):
        if name == "broken":
            raise ModelError("its weights are damaged")
        return loaded(module, name)

    engine = engine_of(load, observer=operations)
    result = engine.model("first", Deadline.after(GUARD))
    labels = {"model": "first", "fingerprint": result.fingerprint, "device": "cpu"}
    assert reading(operations, "seewhy_model_info", **labels) == 1
    assert reading(operations, "seewhy_model_load_duration_seconds_count", model="first") == 1
    with pytest.raises(ModelError):
        engine.model("broken", Deadline.after(GUARD))
    assert reading(operations, "seewhy_model_load_failures_total", model="broken") == 1
    engine.model("second", Deadline.after(GUARD))
    until(lambda: reading(operations, "seewhy_model_info", **labels) == 0)


@pytest.mark.fault("metrics or traces raise an exception", "nothing")
def test_what_cannot_be_recorded_ends_no_request_and_no_model(own_app, post, cat, monkeypatch, caplog):
    def fail(*_, **__):
        raise OSError("no space left")

    metrics = own_app.extensions["seewhy-operations"].metrics
    for name in (
        "request_started",
        "request_finished",
        "queue_changed",
        "batch_started",
        "batch_finished",
        "pictures_explained",
    ):
        monkeypatch.setattr(metrics, name, fail)
    assert post(cat, method="gradcam++").status_code == 200
    assert "could not be recorded" in caplog.text
    monkeypatch.undo()
    assert post(cat, method="layercam", format="json").status_code == 200


def test_the_processes_themselves(metric, monkeypatch):
    pid = str(os.getpid())
    assert 2**25 < metric("process_resident_memory_bytes", pid=pid) < 2**36
    assert metric("process_threads", pid=pid) >= 2
    assert 3 < metric("process_open_fds", pid=pid) <= metric("process_max_fds", pid=pid)
    assert 0 < time.time() - metric("process_start_time_seconds", pid=pid) < 86_400
    assert metric("process_cpu_seconds_total", pid=pid) > 0.1
    assert metric("seewhy_queue_limit") == 64


def test_a_system_that_tells_nothing_of_processes_has_no_such_metrics(client, monkeypatch, tmp_path):
    monkeypatch.setattr("seewhy.app.observability.metrics.PROC", tmp_path)
    figures = samples(client.get("/metrics").text)
    assert not [name for name, _ in figures if name.startswith("process_")]
    assert "seewhy_build_info" in {name for name, _ in figures}


@pytest.mark.parametrize(
    ("accept", "expected"), [("", "text/plain"), ("application/openmetrics-text", "application/openmetrics-text")]
)
def test_the_formats_of_prometheus(client, accept, expected):
    response = client.get("/metrics", headers={"Accept": accept})
    assert response.mimetype == expected
    assert response.text.endswith("# EOF\n") is (expected != "text/plain")


@pytest.fixture
def shared(monkeypatch, tmp_path):
    """Figures shared under a temporary folder; its folder of figures, or None where there was no space."""

    def share(workers=2):
        monkeypatch.setattr(workers_module, "PARENTS", ("/no/such/folder", str(tmp_path)))
        monkeypatch.setattr(workers_module.atexit, "register", lambda *_: None)
        monkeypatch.setenv(FOLDER, "anything")
        workers_module.share_figures(workers)
        return Path(os.environ[FOLDER]) if FOLDER in os.environ else None

    yield share
    os.environ.pop(FOLDER, None)


def test_space_for_figures_is_taken_before_they_are_written(shared):
    assert shared(workers=1) is None
    folder = shared()
    for kind, size in SPACE.items():
        assert (folder / f"{kind}_{os.getpid()}.db").stat().st_blocks * 512 >= size


@pytest.mark.fault("no space for the metrics of several processes", "`/metrics` shows those of one process")
def test_without_space_each_process_keeps_its_figures_to_itself(shared, monkeypatch, tmp_path, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = shared()
    monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue())
    monkeypatch.setattr(Path, "write_bytes", full)
    workers_module.join_figures()
    assert values.ValueClass is values.MutexValue
    assert list(folder.iterdir()) == []
    assert "/metrics does not include them" in caplog.text
    folder.rmdir()
    assert shared() is None
    assert list(tmp_path.iterdir()) == []
    assert "of the process that responds" in caplog.text


def test_what_a_dead_process_counted_takes_little_space(shared):
    folder = shared()
    pid = os.getpid()
    counter = values.MultiProcessValue()("counter", "seewhy_x", "seewhy_x_total", (), (), "X?")
    counter.inc(3)
    values._multi_process_cleanups.pop()()
    workers_module.forget_figures(pid)
    assert not (folder / f"gauge_livesum_{pid}.db").exists()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1000
    assert [family.samples[0].value for family in MultiProcessCollector(None, folder).collect()] == [3]


def test_folders_of_services_that_were_killed_are_removed_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr("seewhy.app.observability.processes.PARENTS", (str(tmp_path),))
    monkeypatch.setenv(FOLDER, "")
    code = """
import os, sys, seewhy.app.observability.processes as workers
workers.PARENTS = (sys.argv[1],)
workers.share_figures(2)
if os.fork() == 0:
    sys.stdin.read()  # a worker lives on
    os._exit(0)
print(os.environ[workers.FOLDER], flush=True)
os._exit(9)  # as if it were killed: nothing is removed
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as killed:
        folder = Path(killed.stdout.readline().strip())
        assert killed.wait(60) == 9
        remove = share_figures(2)
        current = Path(os.environ[FOLDER])
        assert set(tmp_path.iterdir()) == {folder, current}
        killed.stdin.close()  # now the worker ends
        killed.stdout.read()
    foreign = tmp_path / "seewhy-other"
    foreign.mkdir()
    share_figures(1)
    assert set(tmp_path.iterdir()) == {current, foreign}
    remove()
    assert set(tmp_path.iterdir()) == {foreign}
