"""Four times as many requests as the service can answer.

First, as many clients as are admitted send one request after the other, which shows the capacity per second. Then four
times as many requests arrive, whether or not earlier ones are answered, as from independent clients. The clients share
the processors with the service, so they are as small as possible.
"""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from tests.app.conftest import EXAMPLES
from tools.service import service

CLIENTS = 32
FACTOR = 4
DEADLINE = 10.0
"""The service's deadline in seconds, shorter than its default, so that it has an effect."""

PATIENCE = 60.0
"""Seconds after which a client gives up."""

CAT = (EXAMPLES / "cat.png").read_bytes()

REQUEST = (
    b"POST /explain HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: image/png\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(CAT), CAT)
)


@dataclass
class Report:
    """The results.

    Attributes:
        capacity: requests answered per second while no more arrive than are admitted.
        offered: requests sent per second after that.
        codes: number of answers by status; 0 for a connection that broke.
        answered, refused: seconds from each request to its 200 or 503.
        bare: number of 503 without Retry-After.
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
    """Find the capacity, and send a multiple of it for some seconds."""
    with service(SEEWHY_DEADLINE=str(DEADLINE)) as running:
        return asyncio.run(_overload(running.port, seconds))


async def _overload(port: int, seconds: float) -> Report:
    report = Report()
    await _one_after_another(port, 2)
    begun = time.monotonic()
    answered = await _one_after_another(port, 6)
    report.capacity = answered / (time.monotonic() - begun)
    rate = FACTOR * report.capacity
    begun, tasks = time.monotonic(), []
    while (now := time.monotonic() - begun) <= seconds:
        await asyncio.sleep(max(0.0, len(tasks) / rate - now))
        tasks.append(asyncio.create_task(_ask(port)))
    report.offered = len(tasks) / (time.monotonic() - begun)
    for code, took, is_told in await asyncio.gather(*tasks):
        report.codes[code] += 1
        if code == 200:
            report.answered.append(took)
        elif code == 503:
            report.refused.append(took)
            report.bare += not is_told
    return report


async def _one_after_another(port: int, count: int) -> int:
    """Let as many clients as are admitted send some requests each, and return the number answered with 200."""

    async def ask() -> int:
        return sum([(await _ask(port))[0] == 200 for _ in range(count)])

    return sum(await asyncio.gather(*(ask() for _ in range(CLIENTS))))


async def _ask(port: int) -> tuple[int, float, bool]:
    """Return the status of an answer, 0 for none, the seconds that it took, and whether it has Retry-After."""
    begun, head = time.monotonic(), b""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(REQUEST)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                _, _, length = answer.partition(b"\r\ncontent-length:")
                await reader.readexactly(int(length.split()[0]))
                head = answer
            finally:
                writer.close()
    code = int(head.split()[1]) if head else 0
    return code, time.monotonic() - begun, b"\r\nretry-after:" in head
