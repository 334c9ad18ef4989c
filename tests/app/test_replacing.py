"""Workers that replace others: which begin, which end, and what users see meanwhile."""

import ctypes
import os
import signal
import time
from itertools import count
from unittest.mock import Mock

import pytest
import requests
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from werkzeug.test import Client

from seewhy.app.server.application import RETRY_SECONDS, Application
from seewhy.app.server.configuration import _end_process
from seewhy.app.server.processes import Processes
from seewhy.app.server.readiness import Readiness, State, await_turn, begin
from seewhy.models.errors import BadWeightsError, ModelsFileError, WeightsUnavailableError
from tests.app.serving import Small
from tests.waiting import GUARD, until


class Process:
    """A worker as the first process sees it."""

    def __init__(self, age, answers=False, leaves=False):
        self.age = self.pid = age
        self.state = State()
        self.state.answers = self.state.answered = answers
        self.state.leaves = leaves


@pytest.fixture
def watched(monkeypatch):
    """Let a first process see workers, and return it with the ages of those that it ends."""

    def watch(workers, number, outdated_age=0):
        processes, exits = object.__new__(Processes), []
        ages = count(len(workers) + 1)

        def spawn():
            worker = Process(next(ages))
            processes.introduce(worker)
            processes.WORKERS[worker.pid] = worker
            processes.worker_age = worker.age

        processes.__dict__.update(WORKERS={worker.pid: worker for worker in workers}, num_workers=number)
        processes.__dict__.update(worker_age=len(workers), reexec_pid=0, master_pid=0)
        processes.__dict__.update(outdated_age=outdated_age, losses=0, next_start=0.0, has_answered=False)
        monkeypatch.setattr(processes, "spawn_worker", spawn)
        monkeypatch.setattr(processes, "kill_worker", lambda pid, number: exits.append(pid))
        return processes, exits

    monkeypatch.setattr(Processes, "num_workers", None)  # a property that tells gunicorn's settings of each change
    return watch


@pytest.mark.parametrize(
    ("answers", "number", "exits", "waiting"),
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
def test_of_workers_that_are_too_many_those_stay_that_answer(answers, number, exits, waiting, watched):
    workers = [Process(age, answer) for age, answer in enumerate(answers, 1)]
    processes, ages = watched(workers, number)
    processes.manage_workers()
    assert sorted(ages) == exits
    assert sorted(processes.WORKERS) == [worker.pid for worker in workers]
    assert [worker.pid for worker in workers if worker.state.others_answer and not worker.state.answers] == waiting


def test_workers_loaded_anew_end_those_before_them_once_all_answer(watched):
    processes, exits = watched([Process(1, True), Process(2, True)], 2)
    processes.reload()
    assert sorted(processes.WORKERS) == [1, 2, 3, 4]
    processes.WORKERS[3].state.answers = True
    processes.manage_workers()
    assert exits == []
    assert processes.WORKERS[4].state.others_answer
    processes.WORKERS[4].state.answers = True
    processes.manage_workers()
    assert exits == [1, 2]


def test_what_is_lost_while_it_loads_is_started_again_and_no_worker_from_before_stays(watched):
    processes, exits = watched([Process(1, True), Process(2, True)], 2)
    processes.reload()
    del processes.WORKERS[4]  # killed
    processes.num_workers = 3  # SIGTTIN
    processes.manage_workers()
    assert sorted(processes.WORKERS) == [1, 2, 3, 5, 6]
    assert exits == []
    for age in (3, 5, 6):
        processes.WORKERS[age].state.answers = True
    processes.manage_workers()
    assert exits == [1, 2]


def test_a_second_reload_ends_what_the_first_began(watched):
    processes, exits = watched([Process(1, True)], 1)
    processes.reload()
    processes.reload()
    assert exits == [2]
    assert sorted(processes.WORKERS) == [1, 2, 3]


def test_who_leaves_does_not_count(watched):
    processes, exits = watched([Process(1, True, leaves=True)], 1)
    processes.manage_workers()
    assert sorted(processes.WORKERS) == [1, 2]
    assert not processes.WORKERS[2].state.others_answer
    assert exits == []


def test_workers_that_end_before_they_answer_are_waited_for_longer_and_longer(watched, monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    processes, _ = watched([Process(1, True)], 1)
    processes.reload()
    waits = []
    for age in range(2, 10):
        assert max(processes.WORKERS) == age
        waits.append(processes.WORKERS[age].state.delay)
        processes.forget(processes.WORKERS.pop(age))
        processes.manage_workers()
    assert waits == [0, 0, 1, 2, 4, 8, 10, 10]
    processes.WORKERS[10].state.answers = processes.WORKERS[10].state.answered = True
    monkeypatch.setattr("time.monotonic", lambda: 1010.0)
    for age, leaves in ((10, False), (11, True), (12, False)):  # one was killed that had answered, one is to leave
        processes.WORKERS[age].state.leaves = leaves
        processes.forget(processes.WORKERS.pop(age))
        processes.manage_workers()
        assert processes.WORKERS[age + 1].state.delay == 0


@pytest.mark.parametrize("fault", [1, 2])
def test_a_service_whose_default_model_can_never_be_loaded_ends_unless_it_has_answered(fault, watched):
    processes, _ = watched([Process(1), Process(2)], 2)
    processes.WORKERS[2].state.fault = fault
    with pytest.raises(HaltServer) as caught:
        processes.manage_workers()
    assert caught.value.exit_status == fault
    processes.WORKERS[1].state.answered = True
    processes.forget(processes.WORKERS.pop(1))
    processes.manage_workers()  # a new worker is tried
    assert sorted(processes.WORKERS) == [2, 3]


def failed(error, cause=None):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("failure", "fault"),
    [
        (None, 0),
        (ModelsFileError("no module"), 2),
        (failed(ModelsFileError("the factory failed"), ValueError()), 2),
        (failed(ModelsFileError("the factory failed"), ConnectionError()), 0),
        (failed(ModelsFileError("the model failed"), RuntimeError("CUDA out of memory")), 0),
        (failed(BadWeightsError("mine: damaged"), failed(BadWeightsError("damaged"), EOFError())), 1),
        (failed(BadWeightsError("mine: unreadable"), failed(BadWeightsError("unreadable"), PermissionError())), 0),
        (WeightsUnavailableError("missing"), 0),
        (RuntimeError("a bug"), 0),
    ],
)
def test_failures_to_load_a_model_that_no_wait_mends(failure, fault):
    state = State()
    models = Mock(default_failure=failure)
    models.engine.worked = 0.0
    Readiness(Mock(models=models), state).look()
    assert state.fault == fault


def test_a_worker_that_has_answered_and_ends_by_itself_was_not_lost(watched, monkeypatch):
    monkeypatch.setattr("seewhy.app.server.configuration.end_process", lambda _: None)
    processes, _ = watched([Process(1, True)], 1)
    processes.losses = 5
    worker = processes.WORKERS.pop(1)
    worker.pid = os.getpid()
    _end_process(processes, worker)
    assert not worker.state.answers
    processes.forget(worker)
    assert (processes.losses, processes.next_start) == (0, 0.0)


@pytest.mark.parametrize(
    ("reexec_pid", "master_pid", "all_end"),
    [(0, 0, True), (7, 0, False), (0, 7, False)],
    ids=["alone", "the old", "the new"],
)
def test_one_of_two_first_processes_leaves_requests_to_the_other(reexec_pid, master_pid, all_end, watched, monkeypatch):
    flag = ctypes.c_bool()
    monkeypatch.setattr("seewhy.app.server.processes.stopping", flag)
    monkeypatch.setattr(Arbiter, "stop", lambda self, graceful: None)
    processes, _ = watched([Process(1, True), Process(2)], 2)
    processes.reexec_pid, processes.master_pid = reexec_pid, master_pid
    processes.stop()
    assert flag.value is all_end
    assert all(worker.state.leaves for worker in processes.WORKERS.values())


def test_a_process_that_has_nothing_to_serve_says_so_and_tries_again(caplog, monkeypatch):
    service, now = Mock(), 1000.0
    monkeypatch.setattr("seewhy.app.server.application.time", Mock(monotonic=lambda: now))
    application = Application(Mock(side_effect=[ValueError("broken"), Mock(extensions={"seewhy": service})]))
    application.load()
    client = Client(application)
    refused = client.post("/explain", data=b"picture")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.get_json()["type"].endswith(":not-ready")
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").get_json() == {"status": "alive"}
    assert "broken" in caplog.text
    now += RETRY_SECONDS - 1
    application.load()
    assert application.models is None
    now += 1
    application.load()
    assert application.models is service.models
    service.models.require_ready.assert_called_once_with()
    application.load()
    service.models.require_ready.assert_called_once_with()


def test_nothing_that_a_model_raises_ends_a_process(caplog):
    service = Mock()
    service.models.require_ready.side_effect = OSError("no descriptor is left")
    Application(lambda: Mock(extensions={"seewhy": service})).load()
    assert "no descriptor is left" in caplog.text


def worker(**state):
    worker = Mock(spec_set=("alive", "ppid", "state", "wsgi", "notify"), alive=True, ppid=os.getppid(), state=State())
    worker.wsgi.models.has_default = False
    for name, value in state.items():
        setattr(worker.state, name, value)
    return worker


def test_a_process_that_is_told_to_leave_before_it_begins_ends():
    with pytest.raises(SystemExit):
        begin(worker(leaves=True, delay=60))
    orphan = worker(delay=60)
    orphan.ppid = -1
    with pytest.raises(SystemExit):
        begin(orphan)


def test_a_process_takes_requests_at_once_where_no_other_answers(monkeypatch):
    monkeypatch.setattr("seewhy.app.server.readiness.Readiness", Mock())
    alone = worker()
    await_turn(alone)
    assert alone.alive
    alone.notify.assert_not_called()


@pytest.mark.parametrize(("change", "alive"), [("answers", True), ("others_answer", True), ("leaves", False)])
def test_a_process_waits_for_its_model_while_others_answer(change, alive, monkeypatch):
    monkeypatch.setattr("seewhy.app.server.readiness.Readiness", Mock())
    waiting = worker(others_answer=True)
    signs = count()

    def notify():
        if next(signs) == 2:
            setattr(waiting.state, change, change != "others_answer")

    waiting.notify.side_effect = notify
    monkeypatch.setattr("time.sleep", lambda _: None)
    await_turn(waiting)
    assert next(signs) >= 3
    assert waiting.alive is alive


def test_a_process_says_whether_it_answers_and_gives_memory_back(monkeypatch):
    rest = Mock()
    monkeypatch.setattr("seewhy.app.server.readiness.Rest", lambda: rest)
    application, state = Mock(), State()
    readiness = Readiness(application, state)
    for has_default in (True, False):
        application.models.has_default = has_default
        readiness.look()
        assert state.answers is has_default
        assert state.answered
    rest.look.assert_called_with(application.models.engine.worked)
    application.models = None
    state.answers = True
    readiness.look()
    assert not state.answers


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, 0), (SystemExit(), 0), (SystemExit(3), 3), (SystemExit("why"), 1), (RuntimeError("a bug"), 1)],
)
def test_a_process_ends_with_its_main_loop(error, status, monkeypatch):
    exit_ = Mock()
    monkeypatch.setattr("seewhy.app.server.configuration.logging.shutdown", Mock())
    monkeypatch.setattr("os._exit", exit_)
    worker = Mock(pid=os.getpid(), state=State())
    worker.state.answers = True
    try:
        raise error or SystemExit(0)
    except BaseException:
        _end_process(None, worker)
    exit_.assert_called_once_with(status)
    worker.wsgi.close.assert_called_once_with()
    assert (worker.state.answers, worker.state.leaves) == (False, False)  # where it failed, another one waits longer
    worker.pid += 1
    _end_process(None, worker)  # the first process forgets one that has gone
    exit_.assert_called_once_with(status)


@pytest.fixture
def service(tmp_path):
    return Small(tmp_path)


@pytest.fixture(scope="module")
def lone(tmp_path_factory):
    """A service of one process."""
    service = Small(tmp_path_factory.mktemp("lone"))
    with service.run():
        yield service


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A service of two processes."""
    service = Small(tmp_path_factory.mktemp("pair"))
    with service.run(2):
        yield service


def renewed(service, count):
    """Let a service load its first weights again, in so many processes, and return these."""
    before = service.workers()
    service.write(0)
    service.process.send_signal(signal.SIGHUP)
    until(lambda: len(service.workers()) == count and not service.workers() & before)
    service.settle()
    return service.workers()


@pytest.mark.fault(
    "a process is killed after the file of API keys or the models file became invalid",
    "503 `keys-unavailable`; for the models file, other processes continue, or 503; a new process starts once the "
    "file is fixed",
)
@pytest.mark.slow
def test_a_worker_that_cannot_start_ends_no_other(service):
    keys = service.folder / "keys.toml"
    keys.write_text(f'me = "sha256:{"0" * 64}"\n')
    with service.run(2, API_KEYS=keys):
        service.headers["Authorization"] = "Bearer whoever"
        assert service.predict() == 401
        keys.unlink()
        before = service.workers()
        os.kill(min(before), signal.SIGKILL)
        until(lambda: len(service.workers() - before) == 1)
        assert service.answered_for(3) == {503, 200}  # /readyz needs no key
        os.kill(max(before), signal.SIGKILL)
        until(lambda: not service.workers() & before)
        until(lambda: service.predict() == 503)


@pytest.mark.slow
def test_a_worker_without_a_valid_models_file_ends_no_other(pair):
    before, content = renewed(pair, 2), pair.models.read_text()
    pair.models.write_text("[broken")
    os.kill(min(before), signal.SIGKILL)
    assert pair.answered_for(3) == {0, 200}
    os.kill(max(before), signal.SIGKILL)
    until(lambda: pair.predict() == 503)
    assert pair.answered_for(2) == {503}
    pair.models.write_text(content)
    pair.process.send_signal(signal.SIGHUP)
    until(lambda: len(pair.workers()) == 2 and not pair.workers() & before)


@pytest.mark.fault(
    "a reload (`SIGHUP`) finds damaged files", "nothing: the old processes continue until the files are fixed"
)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "workers", "wrong"), [("lone", 1, "weights"), ("pair", 2, "models")])
def test_good_workers_are_not_replaced_by_broken_ones(request, name, workers, wrong):
    service = request.getfixturevalue(name)
    before, file = renewed(service, workers), getattr(service, wrong)
    content = file.read_bytes()
    file.write_bytes(b"[garbage")
    service.process.send_signal(signal.SIGHUP)
    assert service.answered_for(3) == {0, 200}
    assert before <= service.workers()
    file.write_bytes(content)
    service.write(2)
    until(lambda: len(service.workers()) == workers and not service.workers() & before)
    assert service.answered_for(1) == {2, 200}


@pytest.mark.fault(
    "a model that crashes the process that loads it",
    "nothing: the old processes continue; new ones try again at increasing intervals",
)
@pytest.mark.slow
def test_a_model_that_ends_its_process_is_not_tried_without_end(service):
    (service.folder / "ends.py").write_text(
        "import os, pathlib\nfrom tests import nets\n"
        "class Net(nets.Net):\n    def __init__(self):\n        super().__init__()\n"
        "        status = pathlib.Path(__file__).with_name('status')\n"
        "        if status.exists():\n            os._exit(int(status.read_text()))\n"
    )
    service.models.write_text(service.models.read_text().replace("tests.nets:Net", "ends:Net"))
    with service.run():
        service.settle()
        for status in (9, 3, 4):  # gunicorn takes the last two for its own, and would end everything
            (service.folder / "status").write_text(str(status))
            before, started = service.workers(), set()
            service.process.send_signal(signal.SIGHUP)

            def goes_on(before=before, started=started):
                started.update(service.workers() - before)
                assert service.predict() == 0
                return len(started) > 1

            until(goes_on)
        (service.folder / "status").unlink()
        service.write(1)
        until(lambda: service.predict() == 1)


@pytest.mark.fault(
    "a process is killed while weights are missing",
    "the others continue; the new process works once the weights are back",
)
@pytest.mark.slow
def test_a_worker_without_weights_begins_once_they_are_there(pair):
    before = renewed(pair, 2)
    pair.weights.unlink()
    os.kill(min(before), signal.SIGKILL)
    assert pair.answered_for(3) == {0, 200}
    pair.write(1)
    until(lambda: pair.predict() == 1)


@pytest.mark.fault(
    "a process that replaces another (`SIGHUP`) is killed", "nothing: another one starts, and no old process remains"
)
@pytest.mark.slow
def test_a_new_worker_that_is_lost_leaves_no_old_one(lone):
    before = renewed(lone, 1)
    lone.write(1)
    lone.process.send_signal(signal.SIGHUP)
    until(lambda: lone.workers() - before)
    os.kill(max(lone.workers() - before), signal.SIGKILL)
    until(lambda: len(lone.workers()) == 1 and not lone.workers() & before)
    assert lone.answered_for(1) == {1, 200}


@pytest.mark.slow
def test_a_worker_that_drains_is_not_waited_for(lone):
    before = renewed(lone, 1)

    def pieces():
        yield lone.picture[:10]
        lone.write(2)
        lone.process.send_signal(signal.SIGHUP)
        until(lambda: lone.answered_for(1.5) == {2, 200})
        (new,) = lone.workers() - before
        os.kill(new, signal.SIGKILL)
        until(lambda: lone.predict() == 2)
        assert before < lone.workers()  # it still reads this request
        yield lone.picture[10:]

    answer = requests.Session().post(f"{lone.url}/predict", data=pieces(), headers=lone.headers, timeout=GUARD)
    assert answer.status_code == 200


@pytest.mark.slow
def test_no_worker_is_too_young_to_be_stopped(service):
    with service.run():
        service.process.send_signal(signal.SIGHUP)
        time.sleep(0.03)  # it has begun another one
        service.process.terminate()
        service.process.wait(15)
