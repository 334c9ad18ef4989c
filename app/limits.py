"""How many requests a client may send in a time: counted by Flask-Limiter, per key or else per address.

The headers are those of draft-ietf-httpapi-ratelimit-headers-10, and ours, for Flask-Limiter's own say `Retry-After`
with every answer.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address, ip_network

from flask import Flask, Response, g, request
from flask_limiter import ApplicationLimit, Limiter
from limits import parse_many
from limits.errors import ConfigurationError, StorageError

from app.errors import FieldError

_SECONDS = 1
"""That Redis may take to answer before requests are counted here."""


def limit_requests(app: Flask, limit: str, storage: str, is_exempt: Callable[[], bool]) -> None:
    """Answer 429 to a client that asks more often than the limit allows.

    Args:
        app: the application.
        limit: such as ``60/minute``, or several separated by semicolons.
        storage: where requests are counted, ``memory://`` or the address of a Redis. While it cannot be reached, each
            process counts by itself.
        is_exempt: whether a request is let through uncounted.

    Raises:
        FieldError: the limit cannot be read, or the storage cannot be used.
    """
    try:
        parse_many(limit)
    except ValueError as error:
        said = f"SEEWHY_RATE_LIMIT: {limit!r} is no limit; write 60/minute, or several as 10/second;1000/day"
        raise FieldError(said, "rate_limit") from error
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
    try:
        limiter.init_app(app)
    except ConfigurationError as error:
        said = f"SEEWHY_RATE_STORAGE: {error}; Redis needs its client: pip install 'seewhy[redis]'"
        raise FieldError(said, "rate_storage") from error
    app.after_request(lambda response: _tell(limiter, response))


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


def _tell(limiter: Limiter, response: Response) -> Response:
    """Say in headers what the limits are and what is left of them; to a client refused, when to come back."""
    found = limiter.current_limits
    # The storage was lost meanwhile: the answer goes without.
    with suppress(StorageError):
        now = time.time()
        left = [(one, max(1, math.ceil(one.window[0] - now))) for one in found]
        if left:
            policies = [f'"{one.limit}";q={one.limit.amount};w={one.limit.get_expiry()}' for one in found]
            response.headers["RateLimit-Policy"] = ", ".join(policies)
            states = [f'"{one.limit}";r={one.remaining};t={seconds}' for one, seconds in left]
            response.headers["RateLimit"] = ", ".join(states)
        if waits := [seconds for one, seconds in left if one.breached]:
            response.headers["Retry-After"] = str(max(waits))
    return response
