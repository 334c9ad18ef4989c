"""Posts every hostile picture to a service in its own process, and reports its answers, their time and memory.

``python -m tools.hostile.trial`` prints JSON, one line for each request. With ``--some``, each picture is sent in only
one way, which alternates, and only a ninth of the damaged ones is sent.
"""

import base64
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.hostile.pictures import Hostile, all_pictures

CARRIERS = ("raw", "form", "JSON")

DAMAGED = ("truncated", "bit flipped")
"""Families of many pictures that differ by the place of the damage."""

MAX_GROWTH = 4 * 2**30
"""Bytes of address space that the service may take in addition to those before the first picture."""


@dataclass(frozen=True)
class Answered:
    """The answer to one request.

    Attributes:
        family, name: family and name of the picture.
        carrier: how it was sent.
        status: status of the answer.
        expected: statuses that are right.
        kind: content type of the answer.
        detail: the message of an error.
        seconds: processor time until the answer.
        growth: bytes of resident memory, at the peak, more than before.
    """

    family: str
    name: str
    carrier: str
    status: int
    expected: list[int]
    kind: str
    detail: str
    seconds: float
    growth: int


def requests_of(picture: Hostile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a request for each carrier; pictures that are merely damaged are sent in one way."""
    yield "raw", {"data": picture.content, "content_type": "image/png"}  # whatever it is: a wrong type must not matter
    if picture.family not in DAMAGED:
        head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="../cat.jpg"\r\n\r\n'
        form = head + picture.content + b"\r\n--edge--\r\n"
        yield "form", {"data": form, "content_type": "multipart/form-data; boundary=edge"}
        yield "JSON", {"json": {"image": base64.b64encode(picture.content).decode()}}


def trials(some: bool = False) -> Iterator[Answered]:
    """Post all pictures, each by all carriers; or some of them, each by one carrier in turn."""
    from seewhy.app import create_app
    from seewhy.app.settings import Settings

    app = create_app(Settings())
    client = app.test_client()
    _post(client, next(iter(requests_of(next(p for p in all_pictures() if p.family == "thin"))))[1])
    _limit()
    for place, picture in enumerate(all_pictures()):
        if some and picture.family in DAMAGED and place % 9:
            continue
        requests = list(requests_of(picture))
        for carrier, request in [requests[place % len(requests)]] if some else requests:
            # A raw body of zero bytes is a malformed request.
            expected = {400} if carrier == "raw" and not picture.content else picture.answers
            before = _reset_peak()
            started = time.process_time()
            response = _post(client, request)
            seconds = time.process_time() - started
            problem = response.mimetype == "application/problem+json"
            yield Answered(
                picture.family,
                picture.name,
                carrier,
                response.status_code,
                sorted(expected),
                response.mimetype,
                response.get_json()["detail"] if problem else "",
                round(seconds, 3),
                _status("VmHWM") - before,
            )
    app.extensions["seewhy"].models.stop(60)  # a thread that frees a model while the process ends may abort it


def _post(client: Any, request: dict[str, Any]) -> Any:
    return client.post("/predict", **request)


def _limit() -> None:
    most = _status("VmSize") + MAX_GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) * 1024


if __name__ == "__main__":
    for answer in trials("--some" in sys.argv[1:]):
        print(json.dumps(asdict(answer)))
