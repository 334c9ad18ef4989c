"""Workers that take the place of others: which begin, which end, and what users see meanwhile."""

import io
import math
import os
import signal
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests
import torch
from gunicorn.arbiter import Arbiter
from PIL import Image

from app.patience import answering
from app.worker import PatientWorker, Watcher
from tests import nets
from tests.app.serving import children, free_port, start


class Told:
    """A worker as the first process sees it."""

    def __init__(self, age, answers=False, leaves=False):
        self.age = self.pid = age
        self.answers, self.leaves, self.others_answer = answers, leaves, None


@pytest.fixture
def watched(monkeypatch):
    """Let a first process see workers, and return it with the ages of those that it starts and ends."""

    def watch(workers, number, outdated=0):
        watcher, ended = object.__new__(Watcher), []
        ages = count(len(workers) + 1)

        def spawn():
            born = Told(next(ages))
            watcher.WORKERS[born.pid] = born
            watcher.worker_age = born.age

        watcher.__dict__.update(WORKERS={one.pid: one for one in workers}, _num_workers=number, _outdated=outdated)
        watcher.__dict__.update(worker_age=len(workers), _lost=0, _next_start=0.0, reexec_pid=0, master_pid=0)
        monkeypatch.setattr(watcher, "spawn_worker", spawn)
        monkeypatch.setattr(watcher, "kill_worker", lambda pid, number: ended.append(pid))
        return watcher, ended

    return watch


@pytest.mark.parametrize(
    ("answers", "number", "ended", "waiting"),
    [
        ([True, True], 2, [], []),
        ([True, False], 2, [], [2]),
        ([False, False], 2, [], []),
        ([True, False], 1, [2], [2]),
        ([False, True], 1, [1], [1]),
        ([True, True], 1, [1], []),
        ([True, True, True, False], 2, [1, 4], [4]),
        ([True, True, True, True], 2, [1, 2], []),
        ([False, False, False], 1, [1, 2], []),
    ],
)
def test_of_workers_that_are_too_many_those_stay_that_answer(answers, number, ended, waiting, watched):
    workers = [Told(age, one) for age, one in enumerate(answers, 1)]
    watcher, found = watched(workers, number)
    watcher.manage_workers()
    assert sorted(found) == ended
    assert sorted(watcher.WORKERS) == [one.pid for one in workers]
    assert [one.pid for one in workers if one.others_answer and not one.answers] == waiting


def test_workers_loaded_anew_end_those_before_them_once_all_answer(watched):
    watcher, ended = watched([Told(1, True), Told(2, True)], 2)
    watcher.reload()
    assert sorted(watcher.WORKERS) == [1, 2, 3, 4]
    watcher.WORKERS[3].answers = True
    watcher.manage_workers()
    assert ended == []
    assert watcher.WORKERS[4].others_answer
    watcher.WORKERS[4].answers = True
    watcher.manage_workers()
    assert ended == [1, 2]


def test_what_is_lost_while_it_loads_is_started_again_and_no_worker_from_before_stays(watched):
    watcher, ended = watched([Told(1, True), Told(2, True)], 2)
    watcher.reload()
    del watcher.WORKERS[4]  # killed
    watcher._num_workers = 3  # SIGTTIN
    watcher.manage_workers()
    assert sorted(watcher.WORKERS) == [1, 2, 3, 5, 6]
    assert ended == []
    for age in (3, 5, 6):
        watcher.WORKERS[age].answers = True
    watcher.manage_workers()
    assert ended == [1, 2]


def test_a_second_reload_ends_what_the_first_began(watched):
    watcher, ended = watched([Told(1, True)], 1)
    watcher.reload()
    watcher.reload()
    assert ended == [2]
    assert sorted(watcher.WORKERS) == [1, 2, 3]


def test_who_leaves_does_not_count(watched):
    watcher, ended = watched([Told(1, True, leaves=True)], 1)
    watcher.manage_workers()
    assert sorted(watcher.WORKERS) == [1, 2]
    assert not watcher.WORKERS[2].others_answer
    assert ended == []


def ends(watcher, monkeypatch, *pids):
    """Let workers end."""
    monkeypatch.setattr(Arbiter, "reap_workers", lambda self: [self.WORKERS.pop(pid) for pid in pids])
    watcher.reap_workers()


def test_workers_that_end_before_they_answer_are_waited_for_longer_and_longer(watched, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    watcher, _ = watched([Told(1, True)], 1)
    watcher.reload()
    waits = []
    for age in range(2, 9):
        assert max(watcher.WORKERS) == age
        ends(watcher, monkeypatch, age)
        begun = now
        watcher.manage_workers()
        while max(watcher.WORKERS) == 1:
            now += 0.5
            watcher.manage_workers()
        waits.append(now - begun)
    assert waits == [0, 1, 2, 4, 8, 10, 10]
    watcher._lost = 5000
    ends(watcher, monkeypatch, max(watcher.WORKERS))
    now += 10
    watcher.manage_workers()
    watcher.WORKERS[10].answers = True
    watcher.manage_workers()
    ends(watcher, monkeypatch, 10)  # one that has answered, and was killed
    watcher.manage_workers()
    assert max(watcher.WORKERS) == 11
    ends(watcher, monkeypatch, 11)
    watcher.manage_workers()
    assert max(watcher.WORKERS) == 12


@pytest.mark.parametrize(
    ("reexec_pid", "master_pid", "all_end"), [(0, 0, 1), (7, 0, 0), (0, 7, 0)], ids=["alone", "the old", "the new"]
)
def test_one_of_two_first_processes_leaves_requests_to_the_other(reexec_pid, master_pid, all_end, watched, monkeypatch):
    told = bytearray(1)
    monkeypatch.setattr("app.worker.all_stop", told)
    monkeypatch.setattr(Arbiter, "stop", lambda self, graceful: None)
    watcher, _ = watched([Told(1, True), Told(2)], 2)
    watcher.reexec_pid, watcher.master_pid = reexec_pid, master_pid
    watcher.stop()
    assert told[0] == all_end
    assert all(one.leaves for one in watcher.WORKERS.values())


def worker(load=None, service=None):
    found = object.__new__(PatientWorker)
    found.__dict__.update(alive=True, ppid=os.getppid(), app=Mock(wsgi=load), log=Mock(), pid=0, _next_try=0.0)
    found.wsgi = service and Mock(extensions={"seewhy": service})
    found.shared = bytearray(3)
    found._exit = Mock(side_effect=SystemExit)
    return found


def test_a_worker_that_has_nothing_to_serve_says_so_and_tries_again():
    service = Mock()
    found = worker(Mock(side_effect=[ValueError("broken"), Mock(extensions={"seewhy": service})]))
    found.load_wsgi()
    client = found.wsgi.test_client()
    refused = client.post("/explain", data=b"picture")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.get_json()["type"].endswith(":not-ready")
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").get_json() == {"status": "alive"}
    assert "broken" in str(found.log.error.call_args)
    asked = Mock()
    answering.request = asked
    client.post("/explain", data=b"picture")
    answering.request = None
    asked.force_close.assert_called_once_with()
    found._prepare()
    assert found._service is None
    assert time.monotonic() + 9 < found._next_try < time.monotonic() + 11
    found._next_try = 0.0
    found._prepare()
    service.require_ready.assert_called_once_with()
    assert found._next_try > time.monotonic() + 9


def test_a_worker_without_a_first_process_keeps_no_connection():
    found = worker()
    assert found.is_parent_alive()
    assert found.alive
    found.ppid = -1
    assert not found.is_parent_alive()
    assert not found.alive


def test_a_worker_that_is_told_to_leave_before_it_begins_ends():
    found = worker()
    found.leaves = True
    with pytest.raises(SystemExit):
        found.load_wsgi()
    found._exit.assert_called_once_with(0)


def test_nothing_that_a_model_raises_ends_a_worker():
    service = Mock()
    service.require_ready.side_effect = OSError("no descriptor is left")
    found = worker(service=service)
    found._prepare()
    assert "no descriptor is left" in str(found.log.error.call_args)


@pytest.mark.parametrize(("raised", "status"), [(None, 0), (SystemExit(3), 3), (RuntimeError("a bug"), 1)])
def test_a_worker_ends_with_its_main_loop(raised, status, monkeypatch):
    found = worker(service=Mock())
    found.answers = True
    monkeypatch.setattr("gunicorn.workers.gthread.ThreadWorker.run", Mock(side_effect=raised))
    with pytest.raises(SystemExit):
        found.run()
    assert (found.answers, found.leaves) == (False, False)  # where it failed, another one waits longer and longer
    found._exit.assert_called_once_with(status)


def test_what_a_worker_looks_after_costs_no_time_with_each_event(monkeypatch):
    found, looked, told, rest = worker(service=Mock()), Mock(), Mock(), Mock()
    found.__dict__.update(_next_look=0.0, _next_notify=0.0, pending_conns=[], _lingering=[], _next_try=math.inf)
    found.__dict__.update(set_accept_enabled=Mock(), tmp=told, _rest=rest, nr_conns=0, worker_connections=1)
    monkeypatch.setattr("app.worker.patience", looked)
    moments = [number / 100 for number in range(101)]
    for now in moments:
        monkeypatch.setattr("time.monotonic", lambda now=now: 1000 + now)
        found.notify()
        found.murder_pending()
    assert len(looked.shut_late.mock_calls) == len(found.set_accept_enabled.mock_calls) == 5
    assert len(rest.look.mock_calls) == 5
    assert len(told.notify.mock_calls) == 2


class Service:
    """A service whose model is small, and one's own."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.write(0)
        lines = ["[models.mine]", 'architecture = "tests.nets:Net"', 'weights = "w.pth"', 'labels = ["a", "b", "c"]']
        self.models.write_text("\n".join([*lines, "input_size = 32"]))
        drawn = io.BytesIO()
        Image.new("RGB", (32, 32), "red").save(drawn, "PNG")
        self.picture = drawn.getvalue()
        self.sent = {"Content-Type": "image/png", "Connection": "close"}

    @property
    def models(self):
        return self.folder / "models.toml"

    @property
    def weights(self):
        return self.folder / "w.pth"

    def write(self, best):
        """Write weights with which the model finds this class in any picture."""
        net = nets.seeded(nets.Net)
        with torch.no_grad():
            net.head.bias.copy_(100 * torch.eye(3)[best])
        torch.save(net.state_dict(), self.weights)

    @contextmanager
    def run(self, workers, **settings):
        variables = {"SEEWHY_MODELS": self.models, "SEEWHY_DEFAULT_MODEL": "mine", **settings}
        self.process = start(
            self.port,
            SEEWHY_WORKERS=str(workers),
            SEEWHY_LOG_LEVEL="error",
            SEEWHY_ACCELERATOR="eager",
            **{name: str(value) for name, value in variables.items()},
        )
        try:
            yield
        finally:
            self.process.terminate()
            assert self.process.wait(60) == 0

    def predict(self):
        """Return the index of the best class, or the status of an answer that has none."""
        url = f"http://127.0.0.1:{self.port}/predict"
        answer = requests.post(url, data=self.picture, headers=self.sent, timeout=30)
        return answer.json()["predictions"][0]["index"] if answer.ok else answer.status_code

    def becomes(self, wanted, seconds=30.0):
        """Wait until that is so; return how long it took."""
        begun = time.monotonic()
        while not wanted():
            assert time.monotonic() < begun + seconds
            time.sleep(0.05)
        return time.monotonic() - begun

    def answered_for(self, seconds):
        """Return all that is answered in so many seconds."""
        until, found = time.monotonic() + seconds, set()
        while time.monotonic() < until:
            found.add(self.predict())
            found.add(requests.get(f"http://127.0.0.1:{self.port}/readyz", timeout=30).status_code)
        return found

    def workers(self):
        return set(children(self.process.pid))


@pytest.fixture
def service(tmp_path):
    return Service(tmp_path)


@pytest.mark.fault(
    "a process of the service is killed after the file of keys or that of models was broken",
    "503 `keys-unavailable`; without models the other processes answer, or 503; a new one starts once it is mended",
)
@pytest.mark.slow
def test_a_worker_that_cannot_start_ends_no_other(service):
    keys = service.folder / "keys.toml"
    keys.write_text(f'me = "sha256:{"0" * 64}"\n')
    with service.run(2, SEEWHY_API_KEYS=keys):
        service.sent["Authorization"] = "Bearer whoever"
        assert service.predict() == 401
        keys.unlink()
        before = service.workers()
        os.kill(min(before), signal.SIGKILL)
        service.becomes(lambda: len(service.workers() - before) == 1)
        assert service.answered_for(5) == {503, 200}  # /readyz needs no key
        os.kill(max(before), signal.SIGKILL)
        service.becomes(lambda: not service.workers() & before)
        service.becomes(lambda: service.predict() == 503)
    service.port = free_port()
    with service.run(2):
        kept = service.models.read_text()
        service.models.write_text("[broken")
        before = service.workers()
        os.kill(min(before), signal.SIGKILL)
        assert service.answered_for(5) == {0, 200}
        os.kill(max(before), signal.SIGKILL)
        service.becomes(lambda: service.predict() == 503)
        assert service.answered_for(2) == {503}
        service.models.write_text(kept)
        service.process.send_signal(signal.SIGHUP)
        service.becomes(lambda: len(service.workers()) == 2 and not service.workers() & before)


@pytest.mark.fault(
    "what is loaded anew (`SIGHUP`) is damaged",
    "nothing: the processes before answer until it is mended",
)
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_good_workers_are_not_replaced_by_broken_ones(service, workers):
    with service.run(workers):
        before = service.workers()
        for wrong in ("weights", "models"):
            file = getattr(service, wrong)
            kept = file.read_bytes()
            file.write_bytes(b"[garbage")
            service.process.send_signal(signal.SIGHUP)
            assert service.answered_for(4) == {0, 200}
            assert before <= service.workers()
            file.write_bytes(kept)
        service.write(2)
        service.becomes(lambda: len(service.workers()) == workers and not service.workers() & before)
        assert service.answered_for(1) == {2, 200}


@pytest.mark.fault(
    "a model that ends the process which loads it",
    "nothing: the processes before answer; it is tried again, after longer and longer times",
)
@pytest.mark.slow
@pytest.mark.parametrize("status", [9, 3, 4])  # gunicorn takes the last two for its own, and would end everything
def test_a_model_that_ends_its_process_is_not_tried_without_end(status, service):
    (service.folder / "ends.py").write_text(
        "import os, pathlib\nfrom tests import nets\n"
        "class Net(nets.Net):\n    def __init__(self):\n        super().__init__()\n"
        f"        if pathlib.Path(__file__).with_name('now').exists():\n            os._exit({status})\n"
    )
    service.models.write_text(service.models.read_text().replace("tests.nets:Net", "ends:Net"))
    with service.run(1, PYTHONPATH=f"{service.folder}:{Path(__file__).parents[2]}"):
        before = service.workers()
        (service.folder / "now").touch()
        service.process.send_signal(signal.SIGHUP)
        started = set()

        def goes_on():
            started.update(service.workers() - before)
            assert service.predict() == 0
            return time.monotonic() - begun > 6 and len(started) > 1

        begun = time.monotonic()
        service.becomes(goes_on)
        assert len(started) <= 5
        (service.folder / "now").unlink()
        service.write(1)
        service.becomes(lambda: service.predict() == 1)


@pytest.mark.fault(
    "a process of the service is killed while weights are not there",
    "the others answer; the new process does too, once they are back",
)
@pytest.mark.slow
def test_a_worker_without_weights_begins_once_they_are_there(service):
    with service.run(2):
        before = service.workers()
        kept = service.weights.read_bytes()
        service.weights.unlink()
        os.kill(min(before), signal.SIGKILL)
        assert service.answered_for(4) == {0, 200}
        service.weights.write_bytes(kept)
        service.write(1)
        service.becomes(lambda: service.predict() == 1)


@pytest.mark.fault(
    "a process that is loaded anew (`SIGHUP`) is killed",
    "nothing: another one is loaded, and none from before stays",
)
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_new_worker_that_is_lost_leaves_no_old_one(service, workers):
    with service.run(workers):
        before = service.workers()
        service.write(1)
        service.process.send_signal(signal.SIGHUP)
        service.becomes(lambda: service.workers() - before)
        os.kill(max(service.workers() - before), signal.SIGKILL)
        service.becomes(lambda: len(service.workers()) == workers and not service.workers() & before)
        assert service.answered_for(1) == {1, 200}


@pytest.mark.slow
def test_a_worker_that_drains_is_not_waited_for(service):
    with service.run(1, SEEWHY_UPLOAD_SECONDS=120):
        before = service.workers()
        slow = requests.Session()

        def pieces():
            yield service.picture[:10]
            service.write(2)
            service.process.send_signal(signal.SIGHUP)
            service.becomes(lambda: service.answered_for(1.5) == {2, 200})
            (new,) = service.workers() - before
            os.kill(new, signal.SIGKILL)
            service.becomes(lambda: service.predict() == 2)
            assert before < service.workers()  # it still reads this request
            yield service.picture[10:]

        answer = slow.post(f"http://127.0.0.1:{service.port}/predict", data=pieces(), headers=service.sent, timeout=60)
        assert answer.status_code == 200


@pytest.mark.slow
def test_no_worker_is_too_young_to_be_stopped(service):
    for pause in (0.0, 0.01, 0.03):
        with service.run(1):
            service.process.send_signal(signal.SIGHUP)
            time.sleep(pause)
            service.process.terminate()
            service.process.wait(15)
