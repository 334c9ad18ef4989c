"""The real service: gunicorn on a real socket."""

import http.client
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
import requests
import torch
from gunicorn.http.errors import ParseException

from seewhy.app.server import start as server
from seewhy.app.server.configuration import BODY_SECONDS, Server, read_rest
from seewhy.app.server.start import _check_port
from seewhy.app.settings import Settings
from tests import nets
from tests.app.conftest import EXAMPLES, ROOT
from tests.app.serving import declare, free_port, rests, underway
from tests.waiting import GUARD, until


def explain(url, name, **fields):
    with (EXAMPLES / name).open("rb") as picture:
        return requests.post(f"{url}/explain", files={"image": picture}, data=fields, timeout=60)


def arrays(response):
    assert response.status_code == 200, response.text
    with np.load(io.BytesIO(response.content)) as values:
        return dict(values)


def test_requests_at_once_get_the_answers_they_would_get_alone(url):
    questions = [
        {"name": name, "target": str(target), "method": method, "format": "npz"}
        for name in ("cat.png", "coffee.png")
        for target in (281, 967)
        for method in ("gradcam", "saliency")
    ]
    alone = [arrays(explain(url, **question)) for question in questions]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda question: arrays(explain(url, **question)), questions))
    for values, expected in zip(together, alone, strict=True):
        assert values["targets"] == expected["targets"]
        np.testing.assert_allclose(values["logits"], expected["logits"], rtol=1e-4, atol=1e-4)
        scale = np.abs(expected["maps"]).max()
        np.testing.assert_allclose(values["maps"] / scale, expected["maps"] / scale, atol=1e-3)


@pytest.mark.parametrize("chunks", [1, 40], ids=["of stated length", "of unstated length"])
def test_too_large_an_upload_is_answered_not_cut_off(url, chunks):
    body = b"\0" * (33 * 2**20) if chunks == 1 else (b"\0" * 2**20 for _ in range(chunks))
    response = requests.post(f"{url}/explain", data=body, headers={"Content-Type": "image/png"}, timeout=60)
    assert response.status_code == 413


def test_a_refused_upload_leaves_the_connection_to_the_next_request(url):
    picture = (EXAMPLES / "cat.png").read_bytes()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    statuses = []
    for path in ("/nonesuch", "/v2/models/nonesuch/infer", "/predict"):
        connection.request("POST", path, picture, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    assert statuses == [404, 404, 200]


def test_a_large_upload_that_is_refused_is_read_to_its_end(url):
    # More than the system takes up for a client that does not read meanwhile.
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    for _ in range(2):
        connection.request("POST", "/nonesuch", bytes(24 * 2**20), {"Content-Type": "image/png"})
        first_socket = connection.sock
        answer = connection.getresponse()
        assert answer.read()
        assert answer.status == 404
        assert connection.sock is first_socket  # and kept
    connection.close()


def test_the_rest_of_a_body_is_waited_for_no_longer_than_said(monkeypatch):
    now, connection, body = [1000.0], Mock(), Mock()
    monkeypatch.setattr("seewhy.app.server.configuration.time", Mock(monotonic=lambda: now[0]))

    def read(size):
        now[0] += 1
        return bytes(size)

    body.read = read
    read_rest(None, None, {"wsgi.input": body, "gunicorn.socket": connection}, None)
    assert now[0] == 1000 + BODY_SECONDS
    for error in (TimeoutError(), ParseException()):
        body.read = Mock(side_effect=error)
        read_rest(None, None, {"wsgi.input": body, "gunicorn.socket": connection}, None)
    assert [call.args for call in connection.settimeout.mock_calls] == [(BODY_SECONDS,), (None,)] * 3
    read_rest(None, None, {}, None)


def test_headers_of_nobody_trusted_move_no_path(url):
    assert requests.get(f"{url}/inner/healthz", headers={"SCRIPT_NAME": "/inner"}, timeout=60).status_code == 404


@pytest.mark.fault("a client that disconnects", "its work ends before the next pass")
def test_a_client_that_leaves_costs_no_more_passes(url):
    host, port = url.removeprefix("http://").split(":")
    picture = (EXAMPLES / "cat.png").read_bytes()
    # A minute of work and more.
    for _ in range(8):
        with socket.create_connection((host, int(port))) as connection:
            head = (
                "POST /explain?method=rise&samples=2000 HTTP/1.1\r\nHost: seewhy\r\nContent-Type: image/png\r\n"
                f"Content-Length: {len(picture)}\r\n\r\n"
            )
            connection.sendall(head.encode() + picture)
            until(lambda: underway(url))
    with (EXAMPLES / "cat.png").open("rb") as image:
        assert requests.post(f"{url}/explain", files={"image": image}, timeout=GUARD).status_code == 200
    assert rests(url, 60)


@pytest.mark.slow
def test_an_idle_connection_is_kept_for_longer_than_balancers_keep_it(url):
    assert Server(Settings()).cfg.keepalive > 60
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    for pause in (3, 0):  # gunicorn's own is two seconds
        connection.request("GET", "/healthz")
        assert connection.getresponse().read()
        first_socket = connection.sock
        time.sleep(pause)
    assert connection.sock is first_socket
    connection.close()


def test_pytorch_is_not_imported_before_it_is_told_how_many_processors_it_has():
    code = """
import sys, seewhy.app.cli, seewhy.app.server.start
from seewhy.app.settings import Settings
for device in ("auto", "cuda:1"):
    seewhy.app.server.configuration.Server(Settings(device=device))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def refused(port, status=2, **variables) -> str:
    """What the service says that does not start."""
    command = [sys.executable, "-m", "seewhy", "serve", "--port", str(port)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
    assert process.returncode == status
    assert "Traceback" not in process.stderr
    return process.stderr


def test_a_port_that_is_taken_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert f"Port {port} is in use; choose another" in refused(port)


LONG = "SEEWHY_DEADLINE or --deadline: the deadline can be at most 86,400 seconds"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HOST", "192.0.2.1", "SEEWHY_HOST or --host: this machine cannot listen on '192.0.2.1'"),
        ("DEADLINE", "86401", LONG),
        pytest.param("DEADLINE", "inf", LONG, marks=pytest.mark.slow),
        pytest.param("METHODS", "nope", "SEEWHY_METHODS: The module 'nope' cannot be imported", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_served_is_told_by_its_setting(name, value, message):
    assert f"Error: {message}" in refused(free_port(), **{f"SEEWHY_{name}": value})


@pytest.mark.slow  # the service loads its model before it ends
@pytest.mark.parametrize(
    ("code", "weights", "status", "reason"),
    [
        ("import nowhere_to_be_found", None, 2, "[models.mine]: No module named 'nowhere_to_be_found'"),
        ("", None, 2, "[models.mine]: the module 'mine' has no 'Net'"),
        ("from tests.nets import Net", b"not weights", 1, "mine: The weights file 'w.pth' cannot be read"),
    ],
)
def test_a_default_model_that_can_never_be_loaded_ends_the_service(tmp_path, code, weights, status, reason):
    (tmp_path / "mine.py").write_text(code)
    if weights is not None:
        (tmp_path / "w.pth").write_bytes(weights)
    else:
        torch.save(nets.Net().state_dict(), tmp_path / "w.pth")
    models = declare(tmp_path, "mine:Net")
    variables = {"SEEWHY_MODELS": str(models), "SEEWHY_DEFAULT_MODEL": "mine", "SEEWHY_WORKERS": "2"}
    printed = refused(free_port(), status, PYTHONPATH=f"{tmp_path}:{ROOT}", **variables)
    assert reason in printed
    assert "Reason: The default model cannot be loaded" in printed


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_may_stand_in_brackets(host):
    assert Server(Settings(host=host, port=8765)).cfg.address == [("::1", 8765)]
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = probe.getsockname()[1]
    _check_port(host, port)


@pytest.fixture
def started(monkeypatch):
    """What the service does last, without what it does before."""
    monkeypatch.setattr(server, "Processes", Mock())
    for name in (
        "share_processors",
        "share_figures",
        "_share_memory",
        "checked_app",
        "_check_port",
        "raise_file_limit",
    ):
        monkeypatch.setattr(server, name, Mock())
    return server.Processes


def test_no_folder_for_temporary_files_is_told(monkeypatch, started):
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError("No usable temporary directory")))
    with pytest.raises(SystemExit, match="tmpfs on /tmp"):
        server.serve(Settings())
    started.assert_not_called()


def test_no_thread_for_probes_is_warned_of(started, capsys):
    for threads, warned in ((5, False), (4, True)):
        server.serve(Settings(threads=threads, max_in_flight=4))
        assert ("Set SEEWHY_MAX_IN_FLIGHT (4) below SEEWHY_THREADS" in capsys.readouterr().err) is warned
    assert started.call_count == 2
