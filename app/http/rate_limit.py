"""How much a client may ask in a time: counted by Flask-Limiter, per key or else per address.

A request counts 1 when it comes. It is refused as soon as its cost (`pipeline.costs`) is known to be too much. The rest
of that counts once the queue of the model has taken its work: what is refused for another reason counts 1. One that
costs more than a whole limit counts as that, so that it is answered when its client has asked nothing else.

The headers are those of draft-ietf-httpapi-ratelimit-headers-10, and ours, for Flask-Limiter's own say `Retry-After`
with every answer.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import product

from flask import Flask, Response, g, request
from flask_limiter import ApplicationLimit, Limiter
from limits import parse_many
from limits.errors import ConfigurationError, StorageError

from seewhy.app.errors import FieldError, TooCostlyError
from seewhy.app.http.headers import COST
from seewhy.app.pipeline.costs import Charge, charge, uncharged
from seewhy.app.pipeline.record import current

_SECONDS = 1
"""That Redis may take to answer before requests are counted here."""

_JUMP_SECONDS = 2.0
"""By which a clock is set back at least before all counts are dropped."""


def limit_requests(app: Flask, limit: str, storage: str, is_exempt: Callable[[], bool]) -> None:
    """Answer 429 to a client that asks more often than the limit allows.

    Args:
        app: the application.
        limit: such as ``60/minute``, or several separated by semicolons, in units of `seewhy.app.pipeline.costs`.
        storage: where requests are counted, ``memory://`` or the address of a Redis. While it cannot be reached, each
            process counts by itself.
        is_exempt: whether a request is let through uncounted.

    Raises:
        FieldError: the limit cannot be read, or the storage cannot be used.
    """
    try:
        parse_many(limit)
    except ValueError as error:
        message = f"SEEWHY_RATE_LIMIT: {limit!r} is no limit; write 60/minute, or several as 10/second;1000/day"
        raise FieldError(message, "rate_limit") from error
    timeouts = {} if storage.startswith("memory:") else {"socket_connect_timeout": _SECONDS, "socket_timeout": _SECONDS}
    limiter = Limiter(
        client,
        application_limits=[ApplicationLimit(limit, key_function=client)],
        # A fixed window would let twice as many through around its end.
        strategy="moving-window",
        storage_uri=storage,
        storage_options={"wrap_exceptions": True, **timeouts},
        in_memory_fallback_enabled=True,
        key_prefix="seewhy",
    )
    limiter.request_filter(is_exempt)
    if storage.startswith("memory:"):  # a Redis forgets by a clock of its own
        clock = _Clock()
        app.before_request(lambda: limiter.reset() if clock.was_set_back() else None)
    try:
        limiter.init_app(app)
    except ConfigurationError as error:
        message = f"SEEWHY_RATE_STORAGE: {error}; Redis needs its client: pip install 'seewhy[redis]'"
        raise FieldError(message, "rate_storage") from error
    app.before_request(lambda: _set_charge(partial(_charge, limiter)))
    app.after_request(lambda response: _tell(limiter, response))


def tell_cost(app: Flask) -> None:
    """Say in a header what a request cost, where it asked a model for something."""
    app.before_request(lambda: _set_charge(uncharged))

    def tell(response: Response) -> Response:
        if cost := current().cost:
            response.headers[COST] = str(cost)
        return response

    app.after_request(tell)


class _Clock:
    """Notices that the system's clock is set back: what was counted would count until it is as late again."""

    def __init__(self) -> None:
        self._ahead = self._now()

    @staticmethod
    def _now() -> float:
        return time.time() - time.monotonic()

    def was_set_back(self) -> bool:
        """Whether it was, since the last call; small corrections are no matter."""
        before, self._ahead = self._ahead, self._now()
        return self._ahead < before - _JUMP_SECONDS


def client() -> str:
    """Return whom this request counts for: the name of its key, or its address, of IPv6 the network.

    Whoever has one IPv6 address mostly has 2^64 of them.
    """
    name = g.get("client")
    if name is not None:
        return f"key {name}"
    try:
        address = ip_address(request.remote_addr or "")
    except ValueError:
        return "no address"
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return f"address {mapped or ip_network((address, 64), strict=False)}"
    return f"address {address}"


def _set_charge(of_request: Charge) -> None:
    """Let the request that this thread answers be charged so."""
    charge.set(of_request)


def _charge(limiter: Limiter, before: int, now: int, counts: bool) -> None:
    """Count what a request costs beyond what it has been counted for, or only test whether so much is left.

    Raises:
        TooCostlyError: its client has not so much left.
    """
    charges = [
        (limit, min(now, limit.limit.amount) - max(1, min(before, limit.limit.amount)))
        for limit in limiter.current_limits
    ]
    test = limiter.limiter.test
    with suppress(StorageError):  # the storage was lost meanwhile: the request is let through
        # Two requests at once may both pass the test: who counts is told whether there was so much left.
        for judge, (limit, more) in product((test, limiter.limiter.hit) if counts else (test,), charges):
            if more > 0 and not judge(limit.limit, *limit.request_args, cost=more):
                limit.breached = True
                raise TooCostlyError(
                    f"This request costs {now:,}, for the passes that it takes, and of {limit.limit} not so much is "
                    "left; come back after the seconds that Retry-After says, or ask for a method, samples or steps "
                    "that cost less."
                )


def _tell(limiter: Limiter, response: Response) -> Response:
    """Say in headers what the limits are and what is left of them; to a client refused, when to come back."""
    limits = limiter.current_limits
    # The storage was lost meanwhile: the answer goes without.
    with suppress(StorageError):
        now = time.time()
        # No more than its length, whatever the clock was when requests were counted.
        states = [(limit, min(limit.limit.get_expiry(), max(1, math.ceil(limit.window[0] - now)))) for limit in limits]
        if states:
            policies = [f'"{limit.limit}";q={limit.limit.amount};w={limit.limit.get_expiry()}' for limit in limits]
            response.headers["RateLimit-Policy"] = ", ".join(policies)
            texts = [f'"{limit.limit}";r={limit.remaining};t={seconds}' for limit, seconds in states]
            response.headers["RateLimit"] = ", ".join(texts)
        if waits := [seconds for limit, seconds in states if limit.breached]:
            response.headers["Retry-After"] = str(max(waits))
    return response
