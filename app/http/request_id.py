"""Headers of every answer: the request id, which the log has too, and security headers for browsers."""

import re
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from flask import Response

from seewhy.app.http.headers import REQUEST_ID
from seewhy.app.pipeline.record import Record, begin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""An id that a client or a proxy may choose: the characters of UUIDs, ULIDs and trace ids, none of which has a meaning
in a log or a header."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Defaults; pages have a content policy of their own. Strict-Transport-Security is not among them: TLS ends at the
proxy, and only its operator knows whether every path and port of the host has TLS."""


PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What a page may load and run: only files of this service, without inline scripts and styles, and no text as
markup."""


class Envelope:
    """The outermost WSGI middleware, so that refusals by the others carry these headers too."""

    def __init__(self, inner: "WSGIApplication") -> None:
        self._inner = inner

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        """Answer a request."""
        header = environ.get("HTTP_X_REQUEST_ID", "")
        identity = header if WELL_FORMED.fullmatch(header) else uuid4().hex
        begin(Record(request_id=identity))

        def start(
            status: str,
            headers: list[tuple[str, str]],
            exc_info: tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None = None,
            /,
        ) -> "Callable[[bytes], Any]":
            # An error is true only now. An answer is private to its client, which may revalidate it by its tag.
            ours = HEADERS | {"Cache-Control": "no-store" if status >= "4" else "private, no-cache"}
            present = {name.lower() for name, _ in headers}
            added = [(name, value) for name, value in ours.items() if name.lower() not in present]
            return start_response(status, [*headers, *added, (REQUEST_ID, identity)], exc_info)

        return self._inner(environ, start)


def restrict_page(response: Response) -> Response:
    """Set the content policy of a page."""
    if response.mimetype == "text/html":
        response.headers.setdefault("Content-Security-Policy", PAGE_POLICY)
    return response


def redirect_within(response: Response) -> Response:
    """Redirect within this service only: the Host header of a client must not send others elsewhere."""
    if response.location is not None:
        target = urlsplit(response.location)
        path = "/" + target.path.lstrip("/")  # two slashes would name a host
        response.location = urlunsplit(("", "", path, target.query, target.fragment))
        response.data = b""  # it names the host too
    return response
