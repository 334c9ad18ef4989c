"""Headers of every answer: the id of its request, and security headers for browsers."""

import json
import re
import uuid

import pytest
from werkzeug.test import Client

from seewhy.app import create_app
from seewhy.app.http.request_id import Envelope
from seewhy.app.settings import Settings

MADE = re.compile(r"[0-9a-f]{32}")


def test_a_request_without_an_id_gets_one_of_its_own(client):
    first, second = (client.get("/healthz").headers["X-Request-ID"] for _ in range(2))
    assert MADE.fullmatch(first)
    assert first != second


@pytest.mark.parametrize("request_id", ["a", str(uuid.UUID(int=7)), "01ARZ3NDEKTSV4RRFFQ69G5FAV", "A.b_c-9", "x" * 128])
def test_an_id_that_is_well_formed_is_kept(client, request_id):
    assert client.get("/healthz", headers={"X-Request-ID": request_id}).headers["X-Request-ID"] == request_id


@pytest.mark.parametrize(
    "request_id", ["", "x" * 129, "a b", 'a"b', "a%0ab", "<script>", "ä", "a\tb", "a,b", "${jndi:ldap}"]
)
def test_an_id_that_is_not_is_replaced(client, request_id):
    response = client.get("/nowhere", headers={"X-Request-ID": request_id})
    assert MADE.fullmatch(response.headers["X-Request-ID"])
    assert response.get_json()["instance"] == f"urn:seewhy:request:{response.headers['X-Request-ID']}"


def test_a_header_that_an_answer_has_is_kept_however_it_is_spelt():
    def page(environ, start_response):
        start_response("200 OK", [("cache-control", "no-store")])
        return []

    response = Client(Envelope(page)).get("/")
    assert response.headers.getlist("Cache-Control") == ["no-store"]
    assert response.headers.getlist("X-Frame-Options") == ["DENY"]


STRICT = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
ANSWERS = {
    "an answer": ("get", "/methods", {}, 200),
    "the page": ("get", "/", {}, 200),
    "a static file": ("get", "/static/icon.svg", {}, 200),
    "a part of the documentation": ("get", "/docs/assets/css/swagger-ui.css", {}, 200),
    "health": ("get", "/healthz", {}, 200),
    "an error": ("post", "/explain", {"data": b""}, 400),
    "no path": ("get", "/nowhere", {}, 404),
    "no model": ("get", "/models/nothing", {}, 404),
    "no method": ("get", "/explain", {}, 405),
    "an option": ("options", "/explain", {}, 200),
    "too large": ("post", "/explain", {"data": b"0" * 2000, "content_type": "image/png"}, 413),
}


@pytest.fixture(scope="module")
def small():
    """A client of a service that takes small uploads only."""
    return create_app(Settings(max_upload_bytes=1000)).test_client()


@pytest.mark.parametrize("kind", ANSWERS)
def test_every_answer_carries_the_id_and_the_headers(small, kind):
    method, path, arguments, status = ANSWERS[kind]
    with getattr(small, method)(path, headers={"X-Request-ID": "mine"}, **arguments) as response:
        assert response.status_code == status
        assert response.headers.getlist("X-Request-ID") == ["mine"]
        assert "Strict-Transport-Security" not in response.headers
        for name, value in STRICT.items():
            assert response.headers.getlist(name) == [value]
        assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["Cache-Control"]
        if response.mimetype == "application/problem+json":
            assert response.get_json()["instance"] == "urn:seewhy:request:mine"
            assert response.headers["Cache-Control"] == "no-store"


def test_a_page_may_load_its_own_parts_and_an_answer_nothing(client):
    with client.get("/") as page:
        assert "default-src 'none'; style-src 'unsafe-inline'" not in page.headers["Content-Security-Policy"]
        assert "'self'" in page.headers["Content-Security-Policy"]
    assert client.get("/methods").headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_no_answer_is_for_a_cache_that_others_share(post, cat, client):
    response = post(cat)
    assert response.headers["Cache-Control"] == "private, no-cache"
    again = post(cat, headers={"If-None-Match": response.headers["ETag"]})
    assert (again.status_code, again.headers["Cache-Control"]) == (304, "private, no-cache")
    assert client.get("/models?source=embedded").headers["Cache-Control"] == "private, no-cache"
    stream = post(cat, headers={"Accept": "text/event-stream"})
    assert stream.headers["Cache-Control"] == "no-store"


def test_an_error_in_a_stream_has_the_id_too(app, monkeypatch, post, cat):
    monkeypatch.setattr("seewhy.app.http.routes.pictures.explain_body", lambda *_, **__: 1 / 0)
    answered = post(cat, headers={"Accept": "text/event-stream", "X-Request-ID": "streamed"})
    last = answered.get_data(as_text=True).strip().split("\n\n")[-1]
    assert last.startswith("event: error\n")
    assert json.loads(last.partition("data: ")[2])["instance"] == "urn:seewhy:request:streamed"


@pytest.mark.parametrize("path", ["/v2//models/efficientnet_lite0", "/v2/models//efficientnet_lite0?a=b"])
def test_a_redirect_leads_to_no_host_that_a_client_names(path, client):
    answer = client.get(path, headers={"Host": "evil.example", "X-Forwarded-Host": "evil.example"})
    assert answer.status_code == 308
    assert answer.headers["Location"] == path.replace("//", "/")
    assert b"evil" not in answer.data + str(answer.headers).encode()
    assert client.get("//evil.example//models", base_url="http://x").headers.get("Location", "/")[:2] != "//"
