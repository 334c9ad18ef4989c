"""Rate limits, counted by Flask-Limiter: per key, or per address if there are no keys.

A request counts 1 on arrival. It is refused as soon as its cost (`pipeline.costs`) is known to be too high. The rest
of the cost counts once the model's queue has accepted the work: a request refused for another reason counts 1. A cost
above a whole limit counts as that limit, so that such a request is answered if its client has sent no others.

The headers follow draft-ietf-httpapi-ratelimit-headers-10 and are written here: Flask-Limiter writes an older version
with one number each, and sends `Retry-After` with every answer.
"""

import math
import time
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import product

from flask import Flask, Response, g, request
from flask_limiter import ApplicationLimit, Limiter
from limits import parse_many
from limits.errors import ConfigurationError, StorageError

from seewhy.app.errors import FieldError, TooCostlyError
from seewhy.app.http.access import is_open
from seewhy.app.http.headers import COST
from seewhy.app.pipeline.record import current

_SECONDS = 1
"""Time limit for Redis; after it this process counts alone."""

_JUMP_SECONDS = 2.0
"""A clock set back by more than this drops all counts."""


def limit_requests(app: Flask, limit: str, storage: str) -> None:
    """Answer 429 to clients over the limit; open routes are not counted.

    Args:
        limit: such as ``60/minute``, or several separated by semicolons, in units of `seewhy.app.pipeline.costs`;
            empty for none.
        storage: where requests are counted: ``memory://`` or the address of a Redis. While Redis is unreachable, each
            process counts alone.

    Raises:
        FieldError: the limit cannot be read, or the storage cannot be used.
    """
    if not limit:
        return
    try:
        parse_many(limit)
    except ValueError as error:
        message = f"SEEWHY_RATE_LIMIT: {limit!r} is not a rate limit; write 60/minute, or several as 10/second;1000/day"
        raise FieldError(message, "rate_limit") from error
    timeouts = {} if storage.startswith("memory:") else {"socket_connect_timeout": _SECONDS, "socket_timeout": _SECONDS}
    limiter = Limiter(
        client,
        application_limits=[ApplicationLimit(limit, key_function=client)],
        # A fixed window would admit twice as many around its end.
        strategy="moving-window",
        storage_uri=storage,
        storage_options={"wrap_exceptions": True, **timeouts},
        in_memory_fallback_enabled=True,
        key_prefix="seewhy",
    )
    limiter.request_filter(is_open)
    if storage.startswith("memory:"):  # Redis expires counts by its own clock
        clock = _Clock()
        app.before_request(lambda: limiter.reset() if clock.was_set_back() else None)
    try:
        limiter.init_app(app)
    except ConfigurationError as error:
        message = f"SEEWHY_RATE_STORAGE: {error}; Redis needs a client: pip install 'seewhy[redis]'"
        raise FieldError(message, "rate_storage") from error
    app.before_request(lambda: _set_charge(limiter))
    app.after_request(lambda response: _set_headers(limiter, response))


def report_cost(app: Flask) -> None:
    """Set the header with the cost of a request that used a model."""

    def set_header(response: Response) -> Response:
        if cost := current().cost:
            response.headers[COST] = str(cost)
        return response

    app.after_request(set_header)


class _Clock:
    """Detects that the system clock was set back: counts would otherwise last until it has caught up."""

    def __init__(self) -> None:
        self._ahead = self._now()

    @staticmethod
    def _now() -> float:
        return time.time() - time.monotonic()

    def was_set_back(self) -> bool:
        """Whether the clock was set back since the last call; small corrections do not matter."""
        before, self._ahead = self._ahead, self._now()
        return self._ahead < before - _JUMP_SECONDS


def client() -> str:
    """Return the client that a request counts for: the name of its key, or its address; for IPv6 its network.

    The owner of an IPv6 address usually has 2^64 of them.
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


def _set_charge(limiter: Limiter) -> None:
    current().charge = partial(_charge, limiter)


def _charge(limiter: Limiter, before: int, now: int, counts: bool) -> None:
    """Count the cost of a request beyond what has been counted, or only test whether that much is left.

    Raises:
        TooCostlyError: the client has less left.
    """
    charges = [
        (limit, min(now, limit.limit.amount) - max(1, min(before, limit.limit.amount)))
        for limit in limiter.current_limits
    ]
    test = limiter.limiter.test
    with suppress(StorageError):  # the storage was lost meanwhile: the request is admitted
        # Two requests may pass the test at once, so counting checks again.
        for judge, (limit, more) in product((test, limiter.limiter.hit) if counts else (test,), charges):
            if more > 0 and not judge(limit.limit, *limit.request_args, cost=more):
                limit.breached = True
                raise TooCostlyError(
                    f"This request costs {now:,} for its passes, more than the remainder of {limit.limit}; try again "
                    "after the seconds in Retry-After, or use a cheaper method or fewer samples or steps."
                )


def _set_headers(limiter: Limiter, response: Response) -> Response:
    """Set the headers: the limits, what is left of them, and when a refused client should retry."""
    limits = limiter.current_limits
    # If the storage was lost meanwhile, the answer has no such headers.
    with suppress(StorageError):
        now = time.time()
        # At most its length, whatever the clock was when requests were counted.
        states = [(limit, min(limit.limit.get_expiry(), max(1, math.ceil(limit.window[0] - now)))) for limit in limits]
        if states:
            policies = [f'"{limit.limit}";q={limit.limit.amount};w={limit.limit.get_expiry()}' for limit in limits]
            response.headers["RateLimit-Policy"] = ", ".join(policies)
            texts = [f'"{limit.limit}";r={limit.remaining};t={seconds}' for limit, seconds in states]
            response.headers["RateLimit"] = ", ".join(texts)
        if waits := [seconds for limit, seconds in states if limit.breached]:
            response.headers["Retry-After"] = str(max(waits))
    return response
