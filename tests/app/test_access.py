"""Access: keys, rate limits, other origins, addresses behind proxies."""

import io
import re
import time

import pytest
from fakeredis import FakeRedis, FakeServer
from flask import request
from openapi_spec_validator import validate

from seewhy.app import create_app
from seewhy.app.errors import FieldError
from seewhy.app.http.keys import new_key
from seewhy.app.settings import Settings
from tests.app.test_errors import problem

CLOSED = "/methods"


def app_of(**settings):
    app = create_app(Settings(**settings))
    # It would load a model, in a thread that outlives the test.
    app.extensions["seewhy"].models.require_ready = lambda: None
    return app


def client_of(**settings):
    return app_of(**settings).test_client()


def statuses(client, count, **options):
    """Return what as many requests of a closed route are answered with."""
    return [client.get(CLOSED, **options).status_code for _ in range(count)]


@pytest.fixture
def keys(tmp_path):
    """A file with the keys of alice and bob, and what to send for each."""
    new_keys = {name: new_key(name) for name in ("alice", "bob")}
    file = tmp_path / "keys.toml"
    file.write_text("\n".join(line for _, line in new_keys.values()))
    return file, {name: {"Authorization": f"Bearer {key}"} for name, (key, _) in new_keys.items()}


def test_without_a_file_of_keys_everybody_is_let_in(client):
    assert client.get("/methods").status_code == 200
    assert client.get("/methods", headers={"Authorization": "Bearer whatever"}).status_code == 200


def test_with_one_a_key_is_needed(keys):
    file, logins = keys
    client = client_of(api_keys=file)
    key = logins["alice"]["Authorization"].removeprefix("Bearer ")
    for value in (None, "Basic YTpi", "Bearer", "Bearer a=b", key, f"Token {key}"):
        refused = client.get("/methods", headers={} if value is None else {"Authorization": value})
        assert "Authorization: Bearer" in problem(refused, 401)["detail"]
        assert refused.get_json()["type"].endswith(":key-required")
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    for key in ("wrong", logins["alice"]["Authorization"][7:-1], "ä", "x" * 3000):
        refused = client.get("/methods", headers={"Authorization": f"Bearer {key}"})
        assert problem(refused, 401)["type"].endswith(":key-refused")
        assert key not in refused.get_data(as_text=True)
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    for headers in logins.values():
        assert client.get("/methods", headers=headers).status_code == 200
    assert client.get("/methods", headers={"Authorization": logins["bob"]["Authorization"].lower()}).status_code == 401


def test_a_key_is_no_part_of_an_address(keys):
    file, logins = keys
    key, client = logins["alice"]["Authorization"].removeprefix("Bearer "), client_of(api_keys=file)
    queries = (f"{name}={key}" for name in ("key", "access_token", "api_key"))
    assert {client.get(f"/methods?{query}").status_code for query in queries} == {401}


OPEN = {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/ping", "/openapi.json", "/docs", "/guide", "/"}


def test_every_route_is_closed_but_those_that_are_listed(keys):
    app = app_of(api_keys=keys[0])
    client = app.test_client()
    described = client.get("/openapi.json").get_json()
    tried = 0
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(\w+:)?\w+>", "nothing", rule.rule)
        documented = described["paths"].get(re.sub(r"<(\w+:)?(\w+)>", r"{\2}", rule.rule), {})
        for method in rule.methods - {"OPTIONS"}:
            with client.open(path, method=method) as response:
                is_open = rule.rule in OPEN or rule.rule.startswith(("/static/", "/docs/assets/"))
                assert (response.status_code != 401) is is_open, rule
            operation = documented.get(method.lower())
            if operation is not None:
                assert ("security" in operation) is not is_open
                assert ({"401", "429"} <= set(operation["responses"])) is not is_open
                tried += 1
        assert client.options(path).status_code == 200
    assert tried > 10
    assert client.get("/nowhere").status_code == 404
    assert client.get("/explain").status_code == 405
    validate(described)
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_scrapes_of_metrics_count_against_their_own_key(keys):
    file, logins = keys
    client = client_of(api_keys=file, rate_limit="1/hour")
    answers = [client.get("/metrics", headers=logins[name]).status_code for name in ("alice", "alice", "bob")]
    assert answers == [200, 429, 200]


def test_routes_of_other_servers_refuse_in_their_own_form(keys):
    client = client_of(api_keys=keys[0], rate_limit="1/hour")
    key, route = keys[1]["alice"], "/predictions/nonesuch"
    refused, _, late = client.post(route), client.post(route, headers=key), client.post(route, headers=key)
    assert (refused.status_code, refused.get_json()["type"]) == (401, "InvalidKeyException")
    assert "WWW-Authenticate" in refused.headers
    assert (late.status_code, late.get_json()["type"]) == (429, "TooManyRequestsException")
    assert "Retry-After" in late.headers
    for path in ("/v1/models/m:predict", "/v2/models/m/infer"):
        assert set(client.post(path).get_json()) == {"error"}


def test_a_picture_is_not_read_before_the_key_is_known(keys):
    class Body(io.BytesIO):
        def read(self, *_):
            raise AssertionError("the body was read")

        readinto = readline = read

    refused = client_of(api_keys=keys[0]).post("/explain", input_stream=Body(b"0" * 10), content_type="image/png")
    assert refused.status_code == 401


def test_a_key_that_is_taken_out_of_the_file_is_refused_at_once(keys):
    file, logins = keys
    client = client_of(api_keys=file)
    assert client.get("/methods", headers=logins["alice"]).status_code == 200
    file.write_text(file.read_text().splitlines()[1])
    assert client.get("/methods", headers=logins["alice"]).status_code == 401
    assert client.get("/methods", headers=logins["bob"]).status_code == 200


def test_a_file_that_breaks_lets_nobody_in_and_tells_the_log_alone(keys, caplog):
    file, logins = keys
    client = client_of(api_keys=file)
    file.write_text("secret nonsense")
    refused = client.get("/methods", headers=logins["alice"])
    assert problem(refused, 503)["type"].endswith(":keys-unavailable")
    assert refused.headers["Retry-After"]
    assert "keys.toml" not in refused.get_data(as_text=True)
    assert "keys.toml is not TOML" in caplog.text
    assert client.get("/healthz").status_code == 200


def test_a_file_of_keys_that_cannot_be_used_is_told_at_the_start(tmp_path):
    file = tmp_path / "keys.toml"
    file.write_text("")
    with pytest.raises(FieldError, match=r"SEEWHY_API_KEYS: keys\.toml has no key"):
        create_app(Settings(api_keys=file))


def test_without_a_limit_nothing_is_counted(client):
    names = {name for _ in range(3) for name, _ in client.get("/methods").headers}
    assert not {"RateLimit", "RateLimit-Policy", "Retry-After"} & names


def test_more_requests_than_the_limit_are_refused_until_it_is_over(monkeypatch):
    now = [time.time()]
    monkeypatch.setattr("time.time", lambda: now[0])
    client = client_of(rate_limit="2/second;100/day")
    first, second, third = (client.get(CLOSED) for _ in range(3))
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["RateLimit-Policy"] == '"2 per 1 second";q=2;w=1, "100 per 1 day";q=100;w=86400'
    assert first.headers["RateLimit"].startswith('"2 per 1 second";r=1;t=1, "100 per 1 day";r=99;t=')
    assert second.headers["RateLimit"].startswith('"2 per 1 second";r=0;t=1')
    assert "Retry-After" not in first.headers
    assert "2 per 1 second" in problem(third, 429)["detail"]
    assert third.headers["Retry-After"] == "1"
    now[0] += 1.1
    assert client.get(CLOSED).status_code == 200


@pytest.mark.parametrize("seconds", [-172_800, -60, 172_800])
def test_a_clock_that_is_set_keeps_nobody_out_for_longer_than_a_window(seconds, monkeypatch):
    client = client_of(rate_limit="2/minute")
    assert statuses(client, 3) == [200, 200, 429]
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + seconds)
    assert statuses(client, 3) == [200, 200, 429]
    assert 0 < int(client.get(CLOSED).headers["Retry-After"]) <= 60


def test_what_a_clock_set_back_left_in_a_redis_is_told_no_longer_than_a_window(redis, monkeypatch):
    now = time.time
    client = client_of(rate_limit="1/minute", rate_storage=redis)
    assert client.get(CLOSED).status_code == 200
    monkeypatch.setattr("time.time", lambda: now() - 172_800)
    refused = client.get(CLOSED)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert ";t=60" in refused.headers["RateLimit"]


def test_the_end_of_a_window_lets_no_more_through(monkeypatch):
    client = client_of(rate_limit="4/minute")
    now = [1_700_000_000.0]
    monkeypatch.setattr("limits.storage.memory.time.time", lambda: now[0])
    assert statuses(client, 1) == [200]
    now[0] += 58
    assert statuses(client, 3) == [200] * 3
    now[0] += 3  # the first of the four is a minute ago
    assert statuses(client, 1) == [200]
    refused = client.get(CLOSED)
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "57"


def test_all_routes_count_together_and_open_ones_not_at_all():
    client = client_of(rate_limit="2/hour")
    pages = ("/", "/docs", "/guide", "/openapi.json", "/static/icon.svg", "/docs/assets/css/swagger-ui.css")
    for path in ("/healthz", *pages) * 2:
        with client.get(path) as response:
            assert response.status_code == 200
            assert "RateLimit" not in response.headers
    assert client.options("/explain").status_code == 200
    assert client.get("/nowhere").status_code == 404
    assert client.get(CLOSED).status_code == 200
    assert client.get("/models?source=hub").status_code == 422  # an error counts too
    assert client.get("/methods").status_code == 429
    assert client.post("/explain").status_code == 429
    assert client.get("/readyz").status_code == 200


def test_each_key_has_its_own_count_and_shares_no_address(keys):
    file, logins = keys
    client = client_of(api_keys=file, rate_limit="1/hour")
    assert statuses(client, 1, headers=logins["alice"]) == [200]
    assert statuses(client, 1, headers=logins["alice"], environ_base={"REMOTE_ADDR": "9.9.9.9"}) == [429]
    assert statuses(client, 1, headers=logins["bob"]) == [200]
    assert statuses(client, 1) == [401]  # who is not let in costs nobody else a request


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "unknown", True),
        ("_hidden", "x" * 3000, True),
    ],
)
def test_who_has_one_address_has_one_count(first, second, same):
    client = client_of(rate_limit="1/hour")
    assert client.get(CLOSED, environ_base={"REMOTE_ADDR": first}).status_code == 200
    assert (client.get(CLOSED, environ_base={"REMOTE_ADDR": second}).status_code == 429) is same


def forwarded(client, addresses, peer="10.0.0.1"):
    return client.get(CLOSED, headers={"X-Forwarded-For": addresses}, environ_base={"REMOTE_ADDR": peer}).status_code


@pytest.mark.parametrize(
    ("proxies", "visits"),
    [
        (0, [("192.0.2.1", 200), ("192.0.2.2", 429)]),  # nobody is believed
        # What a client writes itself comes before what the proxy adds.
        (1, [("192.0.2.1", 200), ("192.0.2.2", 200), ("203.0.113.9, 192.0.2.1", 429)]),
        (2, [("192.0.2.1, 10.0.0.7", 200), ("192.0.2.2, 10.0.0.7", 200), ("203.0.113.9, 192.0.2.1, 10.0.0.8", 429)]),
        # A request past the first proxy has one address too few: that of its peer counts.
        (2, [("192.0.2.5", 200), ("192.0.2.6", 429)]),
    ],
)
def test_behind_proxies_the_address_is_the_one_that_the_first_saw(proxies, visits):
    client = client_of(rate_limit="1/hour", trusted_proxies=proxies)
    assert [(addresses, forwarded(client, addresses)) for addresses, _ in visits] == visits
    if proxies == 1:
        assert forwarded(client, "203.0.113.8, 192.0.2.1", peer="10.0.0.2") == 429


@pytest.mark.parametrize(
    ("sender", "same"),
    [
        ("192.0.2.1:555", "192.0.2.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:0db8:0::1"),
        ("unknown", "a" * 3000),
        ("\xff", "192.0.2.300"),
        ("[unknown]:1", ":1"),
    ],
)
def test_what_a_proxy_says_is_an_address_or_else_its_own_counts(sender, same):
    client = client_of(rate_limit="1/hour", trusted_proxies=1)
    assert forwarded(client, sender) == 200
    assert forwarded(client, same) == 429
    assert forwarded(client, "192.0.2.77") == 200
    is_address = sender.startswith(("192", "[2001"))
    assert forwarded(client, same, peer="10.0.0.2") == (429 if is_address else 200)


@pytest.mark.parametrize("header", ["X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Forwarded-Port"])
def test_of_a_proxy_the_address_alone_is_believed(header):
    app = create_app(Settings(trusted_proxies=1))
    records = []
    app.before_request(lambda: records.append((request.url, request.script_root)))
    app.test_client().get(CLOSED)
    app.test_client().get(CLOSED, headers={header: "443" if "Port" in header else "https"})
    assert records[0] == records[1]


@pytest.mark.parametrize("limit", ["60", "often", "60/fortnight", "-1/minute", "1/minute;x"])
def test_a_limit_that_is_none_is_told_at_the_start(limit):
    with pytest.raises(FieldError, match="write 60/minute"):
        create_app(Settings(rate_limit=limit))


@pytest.fixture
def redis(monkeypatch):
    """The address of a Redis that lives in this process."""
    server = FakeServer(server_type="redis")
    monkeypatch.setattr("redis.from_url", lambda _url, **_: FakeRedis(server=server))
    return "redis://redis.example.org:6379/0"


def test_processes_that_share_a_redis_count_together(redis):
    first, second = (client_of(rate_limit="3/hour", rate_storage=redis) for _ in range(2))
    assert [client.get(CLOSED).status_code for client in (first, second, first, second, first)] == [200] * 3 + [429] * 2
    assert first.get(CLOSED).headers["RateLimit"].startswith('"3 per 1 hour";r=0;t=')
    assert statuses(client_of(rate_limit="3/hour"), 1) == [200]


def test_without_its_redis_each_process_counts_by_itself():
    client = client_of(rate_limit="2/hour", rate_storage="redis://127.0.0.1:1/0")
    assert statuses(client, 3) == [200, 200, 429]
    assert client.get(CLOSED).headers["Retry-After"]


ORIGIN = "https://app.example.org"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-request-id",
}


def allowed(response):
    return {name: value for name, value in response.headers.items() if name.startswith("Access-Control-")}


def test_without_origins_no_other_page_may_read_answers(client):
    assert allowed(client.get("/methods", headers={"Origin": ORIGIN})) == {}
    assert allowed(client.options("/explain", headers=PREFLIGHT)) == {}


def test_pages_of_the_listed_origins_may(keys):
    file, _ = keys
    client = client_of(cors_origins=f"{ORIGIN}, http://localhost:3000", api_keys=file)
    for origin in (ORIGIN, "http://localhost:3000"):
        decision = allowed(client.options("/explain", headers={**PREFLIGHT, "Origin": origin}))
        assert decision["Access-Control-Allow-Origin"] == origin
        assert set(decision["Access-Control-Allow-Methods"].split(", ")) == {"GET", "POST"}
        assert decision["Access-Control-Allow-Headers"] == "authorization, content-type, x-request-id"
        assert int(decision["Access-Control-Max-Age"]) > 0
    assert allowed(client.options("/explain")) == {}
    # An error can be read as well, or the page could not tell what is wrong.
    refused = client.get("/methods", headers={"Origin": ORIGIN})
    assert refused.status_code == 401
    assert allowed(refused)["Access-Control-Allow-Origin"] == ORIGIN
    assert "Origin" in refused.headers["Vary"]
    assert "Access-Control-Allow-Credentials" not in refused.headers
    strangers = ("https://example.org", "https://evil.org", "http://app.example.org", "https://appXexample.org", "null")
    for stranger in (*strangers, f"{ORIGIN}.evil.org", f"{ORIGIN}:8443"):
        assert allowed(client.get("/methods", headers={"Origin": stranger})) == {}
        assert allowed(client.options("/explain", headers={**PREFLIGHT, "Origin": stranger})) == {}


def test_what_an_answer_says_in_headers_can_be_read_by_such_a_page(post, cat):
    client = client_of(cors_origins="*")
    decision = allowed(client.get("/methods", headers={"Origin": ORIGIN}))
    assert decision["Access-Control-Allow-Origin"] == "*"
    exposed = set(decision["Access-Control-Expose-Headers"].split(", "))
    answered = post(cat, against="lens cap")
    own = {name for name, _ in answered.headers if name.startswith("X-") and "Frame" not in name}
    assert {*own, "ETag", "Server-Timing", "Retry-After"} - {"X-Content-Type-Options"} <= exposed


@pytest.mark.parametrize(
    "origins", ["example.org", f"{ORIGIN}/", "https://*.example.org", "null", f"{ORIGIN};x", "https://"]
)
def test_what_is_no_origin_is_refused(origins):
    with pytest.raises(ValueError, match=r"is not an origin; write https://example\.org"):
        Settings(cors_origins=origins)
