import io
import threading

import pytest

from seewhy.app import create_app
from seewhy.app.answers.cache import Answer, Cache
from seewhy.app.settings import Settings


def answer(size, letter=b"x"):
    return Answer(letter * size, "image/png", ())


def test_what_was_put_is_got():
    cache = Cache(100)
    assert cache.get("a") is None
    cache.put("a", answer(40))
    assert cache.get("a") == answer(40)
    assert cache.get("b") is None


def test_the_least_recently_used_go_first():
    cache = Cache(100)
    for tag in "abc":
        cache.put(tag, answer(30))
    cache.get("a")
    cache.put("d", answer(60))
    assert [tag for tag in "abcd" if cache.get(tag)] == ["a", "d"]
    assert cache.size == 90


def test_headers_count():
    assert Answer(b"12345", "image/png", (("name", "value"),)).size == 14


def test_one_put_twice_counts_once():
    cache = Cache(100)
    cache.put("a", answer(60))
    cache.put("a", answer(70))
    assert (cache.size, cache.get("a")) == (70, answer(70))


@pytest.mark.parametrize("limit", [0, 50])
def test_what_is_larger_than_the_limit_is_not_kept_and_drives_nothing_out(limit):
    cache = Cache(limit)
    cache.put("a", answer(limit // 2 + 1))
    before = cache.size
    cache.put("b", answer(limit + 1))
    assert cache.get("b") is None
    assert cache.size == before
    assert (cache.get("a") is not None) is (limit > 0)


def test_threads_share_it_and_its_limit_holds():
    cache = Cache(1000)
    wrong = []

    def work(number):
        for step in range(2000):
            tag = str((number * 7 + step) % 40)
            cache.put(tag, answer(int(tag) + 10, tag[:1].encode()))
            found = cache.get(tag)
            if cache.size > 1050 or (found and found != answer(int(tag) + 10, tag[:1].encode())):
                wrong.append(tag)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.size == sum(found.size for tag in map(str, range(40)) if (found := cache.get(tag))) <= 1000


@pytest.fixture(scope="module")
def caching():
    app = create_app(Settings(cache_bytes=10_000_000))
    yield app
    app.extensions["seewhy"].engine.stop()


def sent(app, picture, headers=None, **fields):
    return app.test_client().post("/explain", data={"image": (io.BytesIO(picture), "a"), **fields}, headers=headers)


def without_timing(response):
    varying = ("Server-Timing", "X-Request-ID", "X-SeeWhy-Cost")
    return sorted((name, value) for name, value in response.headers if name not in varying)


@pytest.mark.parametrize("form", ["png", "json", "npz"])
def test_the_same_request_gets_the_same_bytes_without_the_work(caching, cat, form, monkeypatch):
    fields = {"format": form, "target": ["tabby", "lynx"]}
    first = sent(caching, cat, **fields)
    assert first.status_code == 200
    monkeypatch.setattr("seewhy.app.pipeline.ask.read_reduced", lambda *_: pytest.fail("decoded"))
    again = sent(caching, cat, **fields)
    assert again.status_code == 200
    assert again.data == first.data
    assert without_timing(again) == without_timing(first)
    assert "ETag" in again.headers
    assert again.headers["Server-Timing"] == "cache"
    assert first.headers["X-SeeWhy-Cost"] == "2"
    assert "X-SeeWhy-Cost" not in again.headers
    assert first.headers["Server-Timing"].startswith("decode;dur=")
    tag = {"If-None-Match": first.headers["ETag"]}
    assert sent(caching, cat, headers=tag, **fields).status_code == 304


def test_other_pictures_options_and_formats_are_other_answers(caching, cat, coffee):
    asked = [(cat, {}), (coffee, {}), (cat, {"alpha": "0.2"}), (cat, {"format": "webp"}), (cat, {"target": "lynx"})]
    bodies = [sent(caching, picture, **fields).data for picture, fields in asked]
    assert len(set(bodies)) == len(bodies)
    assert [sent(caching, picture, **fields).data for picture, fields in asked] == bodies


def test_errors_are_not_kept(caching, cat):
    before = caching.extensions["seewhy"].cache.size
    for _ in range(2):
        assert sent(caching, cat, target="no such class").status_code == 422
        assert sent(caching, b"no picture").status_code == 415
    assert caching.extensions["seewhy"].cache.size == before


def test_without_the_setting_nothing_is_kept(post, cat, service):
    post(cat)
    assert "decode" in post(cat).headers["Server-Timing"]
    assert service.cache.size == 0
