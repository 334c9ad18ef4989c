"""Four times as many requests as the service can answer.

First as many clients as are let in ask one request after the other, which tells how many a second there is room for.
Then four times as many come, whether or not the ones before them are answered, as strangers do: clients enough to send
for as long as an answer may take, twice over, before the first of them is free again.
"""

import itertools
import math
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import local

import numpy as np
import requests

from tests.app.conftest import EXAMPLES
from tests.app.serving import free_port, start

CLIENTS = 32
FACTOR = 4
DEADLINE = 10.0
"""Seconds that the service gives itself for a request, less than its default, so that there is something to see."""

CAT = (EXAMPLES / "cat.png").read_bytes()


@dataclass
class Report:
    """What came of it.

    Attributes:
        capacity: requests a second that were answered when no more came than are let in.
        offered: requests a second that were sent then.
        codes: how often each status came; 0 for a connection that broke.
        answered, refused: seconds until each 200 and each 503, since it was sent.
        bare: 503 without Retry-After.
    """

    capacity: float = 0.0
    offered: float = 0.0
    codes: "Counter[int]" = field(default_factory=Counter)
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    bare: int = 0

    @property
    def is_right(self) -> bool:
        """Whether some requests were answered, in time, and all others refused as they should be."""
        if set(self.codes) != {200, 503} or self.bare:
            return False
        return bool(np.percentile(self.answered, 99) <= DEADLINE)

    def late(self, seconds: list[float]) -> str:
        """Return the median and the 99th percentile in words."""
        middle, most = np.percentile(seconds, [50, 99])
        return f"{middle:.2g} s (median), {most:.2g} s (p99)"


def overload(seconds: float) -> Report:
    """Find the capacity, and send so many times as much for so many seconds."""
    port = free_port()
    process = start(port, SEEWHY_DEADLINE=str(DEADLINE), SEEWHY_LOG_LEVEL="error")
    report, kept = Report(), local()

    def ask() -> tuple[int, float, bool]:
        kept.session = getattr(kept, "session", None) or requests.Session()
        begun = time.monotonic()
        try:
            response = kept.session.post(f"http://127.0.0.1:{port}/explain", files={"image": CAT}, timeout=60)
        except requests.RequestException:
            return 0, time.monotonic() - begun, False
        return response.status_code, time.monotonic() - begun, "Retry-After" in response.headers

    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda _: ask(), range(2 * CLIENTS)))
            begun, count = time.monotonic(), 6 * CLIENTS
            list(pool.map(lambda _: ask(), range(count)))
            report.capacity = count / (time.monotonic() - begun)
        rate = FACTOR * report.capacity
        with ThreadPoolExecutor(math.ceil(rate * 2 * DEADLINE)) as pool:
            begun, waiting = time.monotonic(), []
            for number in itertools.count():
                now = time.monotonic() - begun
                if now > seconds:
                    break
                time.sleep(max(0.0, number / rate - now))
                waiting.append(pool.submit(ask))
            report.offered = len(waiting) / (time.monotonic() - begun)
            for one in waiting:
                code, took, is_told = one.result()
                report.codes[code] += 1
                if code == 200:
                    report.answered.append(took)
                elif code == 503:
                    report.refused.append(took)
                    report.bare += not is_told
        return report
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
