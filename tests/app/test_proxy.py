"""The service behind nginx, as deployed: slow clients, many clients, and clients that disconnect."""

import re
import resource
import select
import socket
import subprocess
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
import requests

from seewhy.app.settings import Settings
from tests.app.proxying import Attack, proxy, write_configuration
from tests.app.serving import CAT, explain, figures, free_port, underway
from tests.waiting import GUARD, until

pytestmark = pytest.mark.slow

PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n"


@pytest.fixture(scope="module", autouse=True)
def files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def proxied(tight, tmp_path_factory):
    """The address of nginx before it."""
    with proxy(tmp_path_factory.mktemp("nginx"), tight.port) as port:
        yield f"http://127.0.0.1:{port}"


def departures(url):
    """Return how many clients have left before their answer."""
    return sum(figures(url, 'seewhy_rejections_total{reason="client-gone"}'))


PROBE_SECONDS = 5
"""That probes wait, as deploy/kubernetes.yaml has it: who waits for an attacker's time to be over waits for ten."""

ATTACKS = {
    "500 silent connections": ([b""] * 500, b""),
    "1,100 silent connections": ([b""] * 1100, b""),
    "985 kept-alive connections, and 60 silent": ([PROBE] * 985 + [b""] * 60, b""),
    "200 heads that come byte by byte": ([b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "] * 200, b"a"),
    "40 bodies that come byte by byte": ([HEAD + b"\r\n" + CAT[:100]] * 40, b"a"),
    "40 bodies that never come": ([HEAD + b"\r\n"] * 40, b""),
    "heads without an end": ([b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 2_000] * 20, b"X-A: b\r\n" * 100),
}


@pytest.mark.fault("behind nginx: silent, slow or endless connections, or too many", "nothing")
@pytest.mark.parametrize("attack", ATTACKS)
def test_slow_clients_are_the_proxys(attack, proxied, tight):
    with Attack(urlsplit(proxied).port, *ATTACKS[attack]):
        for _ in range(3):
            for path in ("healthz", "readyz"):
                assert requests.get(f"{proxied}/{path}", timeout=PROBE_SECONDS).status_code == 200
            assert explain(proxied).status_code == 200
        (files,) = figures(tight.url, "process_open_fds")
        assert files < 200  # none of these connections reaches the service
        assert max(figures(tight.url, "seewhy_requests_in_progress")) < 4  # its threads


def is_silent(url):
    """Whether a probe gets no answer in the time that probes wait."""
    try:
        return requests.get(f"{url}/healthz", timeout=PROBE_SECONDS).status_code != 200
    except (requests.Timeout, requests.ConnectionError):
        return True


@pytest.mark.parametrize("attack", ["200 heads that come byte by byte", "40 bodies that come byte by byte"])
def test_the_same_attacks_silence_the_service_without_the_proxy(attack, tight):
    with Attack(tight.port, *ATTACKS[attack]):
        until(lambda: is_silent(tight.url))
    until(lambda: not is_silent(tight.url))


@pytest.mark.fault("behind nginx: a client that stops reading its event stream", "its work ends before the next pass")
def test_events_pass_as_they_come_and_end_with_their_client(proxied, tight):
    before = departures(tight.url)
    request = {"files": {"image": CAT}, "data": {"method": "rise", "samples": "8000"}, "stream": True, "timeout": GUARD}
    with requests.post(f"{proxied}/explain", headers={"Accept": "text/event-stream"}, **request) as stream:
        assert stream.status_code == 200
        assert b"event" in next(stream.iter_content(None))  # minutes before the last one
    until(lambda: departures(tight.url) > before)


def test_a_client_that_leaves_ends_its_work(proxied, tight):
    before = departures(tight.url)
    with socket.create_connection(("127.0.0.1", urlsplit(proxied).port)) as connection:
        head = "POST /explain?method=rise&samples=8000 HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
        connection.sendall(f"{head}Content-Length: {len(CAT)}\r\n\r\n".encode() + CAT)
        until(lambda: underway(tight.url))
    until(lambda: departures(tight.url) > before)


def test_an_upload_that_is_too_large_is_refused_as_the_service_refuses_it(proxied):
    request = {"Content-Type": "image/png"}
    body = bytes(Settings().max_upload_bytes + 1)
    refused = requests.post(f"{proxied}/explain", data=body, headers=request, timeout=GUARD)
    assert (refused.status_code, refused.headers["Content-Type"]) == (413, "application/problem+json")
    assert refused.json()["type"] == "urn:seewhy:problem:upload-too-large"


def test_an_upload_of_unstated_length_reaches_the_service_with_one(proxied):
    chunks = (CAT[start : start + 10_000] for start in range(0, len(CAT), 10_000))
    request = {"Content-Type": "image/png"}
    assert requests.post(f"{proxied}/predict", data=chunks, headers=request, timeout=GUARD).ok


def test_the_service_knows_its_clients_by_what_the_proxy_saw(proxied, tight):
    body = {"X-Forwarded-For": "192.0.2.1", "X-Request-ID": "request-of-a-client"}
    answer = requests.get(f"{proxied}/methods", headers=body, timeout=GUARD)
    assert answer.headers["X-Request-ID"] == "request-of-a-client"
    (line,) = until(lambda: [line for line in tight.lines() if line.get("request_id") == "request-of-a-client"])
    assert line["address"] == "127.0.0.1"
    request_ids = [requests.get(f"{proxied}/methods", timeout=GUARD).headers["X-Request-ID"] for _ in range(2)]
    assert request_ids[0] != request_ids[1]
    assert all(re.fullmatch("[0-9a-f]{32}", request_id) for request_id in request_ids)


STATISTICS = [
    "v2/models/stats",
    "v2/models/efficientnet_lite0/stats",
    "v2/models/efficientnet_lite0/versions/1/stats",
    "v2//models/efficientnet_lite0/%73tats?x=1",
]


@pytest.mark.parametrize("path", ["metrics", *STATISTICS])
def test_figures_are_not_for_the_public(proxied, path):
    refused = requests.get(f"{proxied}/{path}", timeout=GUARD)
    assert (refused.status_code, refused.headers["Server"]) == (404, "nginx")
    assert "nginx" in refused.text  # not the service's own answer


def test_routes_beside_figures_are(proxied):
    assert requests.get(f"{proxied}/v2/models/efficientnet_lite0", timeout=GUARD).status_code == 200


@pytest.mark.fault("behind nginx: the service is down", "503 with `Retry-After`")
def test_a_service_that_is_not_there_is_told(tmp_path):
    with proxy(tmp_path, free_port()) as port:
        refused = explain(f"http://127.0.0.1:{port}")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:seewhy:problem:not-ready"


@pytest.mark.fault("behind nginx: no space for an upload", "503 with `Retry-After`; small uploads still work")
def test_an_upload_that_the_proxy_has_no_room_for_is_told_to_come_again(tight, tmp_path):
    with proxy(tmp_path, tight.port) as port:
        folder = tmp_path / "client_body"
        folder.rmdir()
        folder.touch()  # where no file can be made, as in a file system that is full
        request = {"Content-Type": "image/png"}
        refused = requests.post(f"http://127.0.0.1:{port}/explain", data=bytes(2**20), headers=request, timeout=GUARD)
        assert explain(f"http://127.0.0.1:{port}").status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:seewhy:problem:overloaded"


LARGE = {
    "of 10 MB and more": b"Content-Length: 10000000\r\n\r\n",
    "of unstated length": b"Transfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("length", LARGE.values(), ids=LARGE)
def test_an_address_has_few_large_uploads_at_a_time(length, tight, tmp_path):
    head = b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
    with proxy(tmp_path, tight.port) as port, ExitStack() as stack:

        def opened(head):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=GUARD))
            connection.sendall(head)
            return connection

        uploads = [opened(head + length) for _ in range(17)]  # one more than it may have
        refused, _, _ = select.select(uploads, [], [], GUARD)  # the others say nothing for 10 seconds
        assert [upload.recv(12) for upload in refused] == [b"HTTP/1.1 429"]
        assert explain(f"http://127.0.0.1:{port}").status_code == 200


@pytest.mark.parametrize(("read", "limit", "attempts"), [(2, 1, 1), (1, 10, 2)])
def test_a_get_that_waited_longer_than_the_limit_is_not_sent_to_another_replica(read, limit, attempts, tmp_path):
    seconds = {"proxy_read_timeout": read, "proxy_next_upstream_timeout": limit}
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [server.getsockname()[1] for server in silent]
        port = stack.enter_context(proxy(tmp_path, *ports, **seconds))
        assert requests.get(f"http://127.0.0.1:{port}/models", timeout=GUARD).status_code == 503
        assert len(select.select(silent, [], [], 0)[0]) == attempts


def test_nginx_finds_no_fault_with_its_configuration(tmp_path):
    process = subprocess.run(
        [*write_configuration(tmp_path, 8080, 8000), "-t"], capture_output=True, text=True, timeout=GUARD
    )
    assert process.returncode == 0, process.stderr
    assert "[warn]" not in process.stderr
