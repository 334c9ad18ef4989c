"""The memory budget: its counting, refusals and queue; and each request gives back the memory that it took."""

import base64
import gzip
import io
import json
import math
import threading

import numpy as np
import pytest
from PIL import Image
from werkzeug.test import EnvironBuilder, run_wsgi_app

from seewhy.app.errors import BodyTooLargeError, OutOfMemoryError, lacks_memory
from seewhy.app.http.accounting import Accounting
from seewhy.app.http.bodies import MOST_OPTIONS
from seewhy.app.memory import account
from seewhy.app.memory.account import Account
from seewhy.app.memory.budget import ANSWER, BODY, CAPTURE, PIXELS, MemoryBudget
from seewhy.app.memory.limit import LEAST_BYTES, memory_limit, own_memory, pass_memory, request_memory
from seewhy.app.pipeline.ask import Service
from seewhy.app.settings import Settings
from seewhy.explainers.errors import CaptureTooLargeError, PictureTooLargeError
from seewhy.explainers.execution import chunks
from tests.app.conftest import encoded
from tests.app.serving import application
from tests.app.test_errors import problem

MODEL = "efficientnet_lite0"


def test_accounts_share_a_budget_and_give_back_what_they_took():
    records = []
    budget = MemoryBudget(100, lambda *figures: records.append(figures))
    first, second = Account(budget), Account(budget)
    first.take(60, BODY)
    second.take(40, BODY)
    with pytest.raises(OutOfMemoryError, match="try again in a few seconds"):
        second.take(1, BODY)
    first.give(10)
    with second.holding(10, ANSWER):
        assert budget.occupancy == 100
    second.keep(5, ANSWER)
    assert (first.holdings, second.holdings, budget.occupancy) == (50, 5, 55)
    second.keep(20, ANSWER)
    first.close()
    first.close()
    first.take(1000, BODY)  # of what is over nothing is counted
    assert budget.occupancy == 20
    second.close()
    assert budget.occupancy == 0
    assert records[0] == (60, 100)
    assert records[-1] == (0, 100)


def test_free_memory_is_trimmed_only_where_the_budget_would_not_hold_it_beside_what_is_taken():
    trims = []
    picture = 2**25
    budget = MemoryBudget(10 * picture, trim=lambda: trims.append(budget.occupancy))
    answers = Account(budget)
    answers.take(2 * picture, ANSWER)
    for _ in range(7):
        with answers.holding(picture, ANSWER):
            pass
    assert not trims  # two in use and six that may be held, beside the next
    answers.take(1000, BODY)  # small things fit anywhere
    assert not trims
    for _ in range(2):
        with answers.holding(picture, ANSWER):
            pass
    assert trims == [2 * picture + 1000]


@pytest.mark.parametrize(
    ("purpose", "error", "message"),
    [
        (BODY, BodyTooLargeError, "The body would take 101 bytes"),
        (PIXELS, PictureTooLargeError, "The picture"),
        (CAPTURE, CaptureTooLargeError, "name fewer layers"),
    ],
)
def test_what_could_never_fit_is_told_so(purpose, error, message):
    request = Account(MemoryBudget(100))
    request.take(50, BODY)
    with pytest.raises(error, match=message) as raised:
        request.take(51, purpose)
    assert "SEEWHY_MEMORY_BYTES" in str(raised.value)
    with pytest.raises(error):
        request.wait(51, purpose, lambda: None, 1)


def test_a_request_without_a_budget_is_not_bounded():
    free = account.Account(account.UNLIMITED)
    free.take(10**18, BODY)
    free.wait(10**18, PIXELS, lambda: None, 1)
    free.close()
    assert free.holdings == 0


def test_models_leave_less_to_requests():
    budget = MemoryBudget(100, least=20)
    request = Account(budget)
    request.take(30, BODY)
    budget.set_aside(50)
    assert budget.size == 50
    for size in (21, 31):  # beside what is in use, and what is left to requests in any case
        with pytest.raises(OutOfMemoryError, match="another model"):
            budget.set_aside(size)
    request.close()
    with pytest.raises(OutOfMemoryError):
        budget.set_aside(31)
    budget.set_aside(90, lasts=True)
    assert budget.size == budget.most == 20
    budget.take_back(90, lasts=True)
    budget.take_back(50)
    assert budget.size == 100


def test_idle_models_make_room_before_anything_is_refused():
    budget, idle = MemoryBudget(100, least=20), [30, 30]

    def spare():
        if idle:
            budget.take_back(idle.pop())
            return True
        return False

    budget.set_aside(20, lasts=True)
    for size in idle:
        budget.set_aside(size)
    budget.spare = spare
    request = Account(budget)
    request.take(30, BODY)
    assert idle == [30]
    with pytest.raises(OutOfMemoryError):  # in vain: it would not fit without models either
        Account(budget).take(60, BODY)
    with pytest.raises(PictureTooLargeError, match="more than the 80 allowed for all requests together"):
        Account(budget).take(81, PIXELS)
    assert idle == [30]
    request.wait(40, PIXELS, pytest.fail, 1)
    assert idle == []
    with pytest.raises(OutOfMemoryError):
        budget.set_aside(11)
    request.close()


def test_a_picture_is_not_too_large_because_of_models_that_work():
    budget = MemoryBudget(100)
    budget.set_aside(70)
    for use in (lambda: Account(budget).take(50, PIXELS), lambda: Account(budget).wait(50, PIXELS, pytest.fail, 1)):
        with pytest.raises(OutOfMemoryError, match="try again"):
            use()


def test_a_pass_takes_its_share_of_the_limit(monkeypatch):
    monkeypatch.setattr("seewhy.app.memory.limit.memory_limit", lambda: 10 * 2**30)
    assert pass_memory(2, 4) == 2**28
    assert pass_memory(1, 1) == 2**30
    assert pass_memory(8, 8) == 2**27
    monkeypatch.setattr("seewhy.explainers.execution.chunks.MEMORY", 0)  # what it is now comes back
    Service(Settings(device="cpu", workers=2, max_models=4))
    assert chunks.MEMORY == 2**28


class Waiting:
    """Requests that wait for pixels, each in a thread of its own."""

    def __init__(self, budget):
        self.budget, self.done, self.threads = budget, [], []
        self.arrived = threading.Semaphore(0)
        self.processors = threading.Semaphore(0)

    def begin(self, size, body=0):
        request = Account(self.budget)
        request.take(body, BODY)

        def wait():
            try:
                request.wait(size, PIXELS, self.arrived.release, 2, self.processors)
                self.done.append(size)
            except OutOfMemoryError:
                self.done.append("refused")
                request.close()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self.threads.append(thread)
        assert self.arrived.acquire(timeout=10)  # it looks whether anybody waits for it: it is in the queue
        return request

    def join(self):
        for thread in self.threads:
            self.processors.release()
            thread.join(10)
            assert not thread.is_alive()


def test_pixels_are_waited_for_in_order_and_small_ones_pass():
    budget = MemoryBudget(160)
    first, small = Account(budget), Account(budget)
    first.wait(100, PIXELS, pytest.fail, 2)
    waiting = Waiting(budget)
    large = waiting.begin(150)
    assert waiting.processors.acquire(timeout=10)  # who waits leaves its processor to others
    waiting.processors.release()
    waiting.begin(50)  # it would fit, but comes later
    small.wait(10, PIXELS, pytest.fail, 2)  # an eighth, shared by two
    small.leave(10)
    assert waiting.done == []
    first.leave(100)
    waiting.threads[0].join(10)
    assert waiting.done == [150]
    large.leave(150)
    waiting.join()
    assert waiting.done == [150, 50]


def test_nobody_waits_for_what_is_held_for_long():
    budget = MemoryBudget(100)
    answer, request = Account(budget), Account(budget)
    answer.take(40, ANSWER)
    with pytest.raises(OutOfMemoryError):
        request.wait(61, PIXELS, pytest.fail, 1)
    decoded = Account(budget)
    decoded.wait(50, PIXELS, pytest.fail, 1)
    waiting = Waiting(budget)
    waiting.begin(60)
    answer.take(1, ANSWER)
    decoded.leave(50)
    waiting.join()
    assert waiting.done == ["refused"]


def test_who_gives_up_leaves_the_queue():
    class LateError(Exception):
        pass

    def late():
        raise LateError

    budget = MemoryBudget(100)
    first, second = Account(budget), Account(budget)
    first.wait(100, PIXELS, pytest.fail, 1)
    with pytest.raises(LateError):
        second.wait(50, PIXELS, late, 1)
    first.leave(100)
    second.wait(50, PIXELS, pytest.fail, 1)
    assert budget.occupancy == 50


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, math.inf),
        ({"memory.max": "max\n"}, math.inf),
        ({"memory.max": "1000000\n"}, 1_000_000),
        ({"memory.max": "nonsense"}, math.inf),
        ({"service/memory.max": "2000", "service/inner/memory.max": "3000"}, 2000),
        ({"memory/x/memory.limit_in_bytes": "4000\n"}, 4000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, math.inf),
        ({"other/memory.max": "1000"}, math.inf),
    ],
)
def test_the_limit_is_the_containers_or_the_machines(files, expected, monkeypatch, tmp_path):
    own = tmp_path / "own"
    monkeypatch.setattr("seewhy.app.system.control_groups.OWN_GROUPS", own)
    monkeypatch.setattr("seewhy.app.system.control_groups.CONTROL_GROUPS", tmp_path / "groups")
    physical = memory_limit()  # neither is there yet
    own.write_text("12:memory:/x\n4:cpu,cpuacct:/\n0::/service/inner\n")
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    assert memory_limit() == min(expected, physical)
    assert physical > 2**28


def test_requests_may_take_what_the_process_leaves(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("VmRSS:\t  900 kB\nRssAnon:\t  300 kB\nRssFile:\t  500 kB\nRssShmem:\t  100 kB\n")
    monkeypatch.setattr("seewhy.app.memory.limit.STATUS", status)
    assert own_memory() == 400 * 1024
    monkeypatch.setattr("seewhy.app.memory.limit.STATUS", tmp_path / "nowhere")
    assert own_memory() == 0
    monkeypatch.setattr("seewhy.app.memory.limit.memory_limit", lambda: 2 * 2**30)
    monkeypatch.setattr("seewhy.app.memory.limit.own_memory", lambda: 400 * 2**20)
    assert request_memory(1) == int(0.8 * 2**31) - 400 * 2**20
    assert request_memory(2) == int(0.8 * 2**30) - 400 * 2**20
    assert request_memory(8) == LEAST_BYTES


@pytest.fixture(scope="module")
def narrow(sharing):
    """A service whose requests have 40 MB."""
    with application(memory_bytes=40 * 10**6, max_pixels=2_000_000) as app, sharing():
        yield app


@pytest.fixture
def budget(narrow):
    """Its budget, of which each test gives everything back."""
    result = narrow.extensions["seewhy"].models.memory
    assert result.size == 40 * 10**6
    yield result
    assert result.occupancy == 0


SMALL = encoded(Image.new("RGB", (60, 40), (200, 30, 30)))


def send(app, body, path="/explain", kind="image/png", **headers):
    return app.test_client().post(path, data=body, content_type=kind, headers=headers)


def refused(response):
    assert response.headers["Retry-After"] == "5"
    return problem(response, 503)["type"] == "urn:seewhy:problem:out-of-memory"


def test_a_request_gives_everything_back(narrow, budget):
    image = base64.b64encode(SMALL).decode()
    for fields in ({}, {"format": "npz"}, {"format": "json", "values": True}, {"layer": "nowhere"}):
        response = send(narrow, json.dumps({"image": image, **fields}), kind="application/json")
        assert response.status_code == (422 if "layer" in fields else 200)
        assert response.data
        assert budget.occupancy == 0, fields
    response = narrow.test_client().post("/explain", data={"image": (io.BytesIO(SMALL), "x"), "method": "saliency"})
    assert response.status_code == 200
    assert 0 < budget.occupancy < 50_000  # an answer that nobody has read to its end
    response.close()


def test_an_answer_is_held_until_it_is_read(narrow, budget):
    large = encoded(Image.new("RGB", (1500, 1000)), "JPEG")
    first = send(narrow, large, "/explain?format=npz&top=3", "image/jpeg")
    assert first.status_code == 200
    assert budget.occupancy >= 3 * 1500 * 1000 * 4
    assert refused(send(narrow, large, "/explain?format=npz&top=3", "image/jpeg"))
    with np.load(io.BytesIO(first.data)) as arrays:
        assert arrays["heatmaps"].shape == (3, 1000, 1500)
    assert len(first.data) == int(first.headers["Content-Length"])
    assert budget.occupancy == 0
    document = problem(send(narrow, large, "/explain?format=npz&top=8", "image/jpeg"), 413)
    assert document["type"] == "urn:seewhy:problem:answer-too-large"
    assert "SEEWHY_MEMORY_BYTES" in document["detail"]


def test_pixels_that_never_fit_are_refused_before_they_are_decoded(app_of):
    app = app_of(memory_bytes=20 * 10**6)
    document = problem(send(app, encoded(Image.new("1", (2000, 1000)))), 413)
    assert document["type"] == "urn:seewhy:problem:picture-too-large"
    assert document["errors"][0]["field"] == "image"
    assert "would take 32,000," in document["detail"]
    assert app.extensions["seewhy"].models.memory.occupancy == 0


def test_what_is_captured_is_counted_before_it_is_recorded(narrow, budget):
    request = Account(budget)
    request.take(38 * 10**6, BODY)
    assert refused(send(narrow, SMALL, "/hooks/capture?layer=conv_stem&layer=bn2&format=npz"))
    request.close()
    response = send(narrow, SMALL, "/hooks/capture?layer=conv_stem&layer=bn2&format=npz")
    with np.load(io.BytesIO(response.data)) as arrays:
        assert len(arrays.files) == 2
    assert len(response.data) == int(response.headers["Content-Length"])
    document = problem(send(narrow, SMALL, "/hooks/capture?layer=*&format=npz"), 413)
    assert document["type"] == "urn:seewhy:problem:capture-too-large"


def packed(body):
    return {"body": gzip.compress(body), "kind": "application/json", "Content-Encoding": "gzip"}


def test_a_body_is_counted_while_it_is_unpacked(narrow, budget, monkeypatch):
    most = []
    real = budget.take
    monkeypatch.setattr(budget, "take", lambda *arguments: (real(*arguments), most.append(budget.occupancy)))
    request = Account(budget)
    request.take(30 * 10**6, BODY)
    assert refused(send(narrow, **packed(b" " * 20 * 10**6)))
    assert max(most) <= 40 * 10**6
    request.close()


def test_a_body_of_numbers_is_refused_unparsed_where_none_are_needed(narrow, budget, monkeypatch):
    monkeypatch.setattr("seewhy.app.http.bodies.loads", lambda *_, **__: pytest.fail("parsed"))
    body = b'{"image": "", "numbers": [' + b"0.5," * (MOST_OPTIONS - 1) + b"0]}"
    for path in ("/explain", "/predict", "/similar", "/hooks/trace", "/hooks/capture", "/hooks/intervene"):
        document = problem(send(narrow, path=path, **packed(body)), 413)
        assert "100,001 values; this route reads at most 100,000" in document["detail"]


def test_numbers_are_counted_before_they_are_parsed(narrow, budget, monkeypatch):
    body = b'{"instances": [[' + b"0.5," * 300_000 + b"0]]}"
    request = Account(budget)
    request.take(20 * 10**6, BODY)
    with monkeypatch.context() as patched:
        patched.setattr("seewhy.app.http.bodies.loads", lambda *_, **__: pytest.fail("parsed"))
        response = send(narrow, path=f"/v1/models/{MODEL}:predict", **packed(body))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
    request.close()
    response = send(narrow, path=f"/v1/models/{MODEL}:predict", **packed(body))
    assert response.status_code == 400
    assert "has the shape" in response.get_json()["error"]


def test_what_nobody_reads_is_given_back(narrow, budget):
    """Whether the server closes an answer, or only forgets it."""
    environ = EnvironBuilder("/predict", method="POST", data=SMALL, content_type="image/png").get_environ()
    answer, status, _ = run_wsgi_app(narrow, environ)
    assert status == "200 OK"
    assert budget.occupancy > 0
    answer.close()
    assert budget.occupancy == 0
    environ = EnvironBuilder("/predict", method="POST", data=SMALL, content_type="image/png").get_environ()
    answer, *_ = run_wsgi_app(narrow, environ)
    del answer
    assert budget.occupancy == 0


def test_a_server_error_gives_everything_back():
    budget = MemoryBudget(100)

    def broken(environ, start_response):
        assert environ["wsgi.input"].read(10) == b"x" * 10
        assert budget.occupancy > 0
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run_wsgi_app(Accounting(broken, budget), EnvironBuilder(method="POST", data=b"x" * 10).get_environ())
    assert budget.occupancy == 0


def test_the_gauge_tells_what_requests_hold(narrow, budget):
    request = Account(budget)
    request.take(1000, BODY)
    metrics = narrow.test_client().get("/metrics").text
    assert "seewhy_memory_used_bytes 1000.0" in metrics
    assert "seewhy_memory_limit_bytes 4e+07" in metrics
    request.close()
    assert "seewhy_memory_used_bytes 0.0" in narrow.test_client().get("/metrics").text


@pytest.mark.fault("memory that runs out while a response is encoded", "503; the next request is handled")
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
        OSError("out of memory error when writing image file"),
    ],
    ids=["python", "torch", "pillow"],
)
def test_memory_lost_while_an_answer_is_encoded_is_503(narrow, budget, error, monkeypatch):
    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patched:
        for name in ("encode", "encode_png"):
            patched.setattr(f"seewhy.app.answers.documents.{name}", fail)
        patched.setattr("seewhy.app.answers.hook_documents.file_parts", fail)
        for path in ("/explain", "/explain?format=json", "/hooks/capture?layer=bn2&format=npz"):
            assert refused(send(narrow, SMALL, path)), path
    assert send(narrow, SMALL).status_code == 200
    assert not lacks_memory(RuntimeError("something else"))
