"""Access: API keys, origins of pages (CORS), and client addresses behind proxies.

Each is off until its setting is set. docs/security.md says what they protect and what they do not.
"""

import logging
import re
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from flask import Flask, g, request
from flask_cors import CORS
from werkzeug.middleware.proxy_fix import ProxyFix

from seewhy.app.errors import FieldError, KeyRefusedError, KeyRequiredError, KeysUnavailableError
from seewhy.app.http.declaration import current_declaration
from seewhy.app.http.headers import EXPOSED, REQUEST_ID
from seewhy.app.http.keys import KeyFile

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PREFLIGHT_SECONDS = 600

_log = logging.getLogger(__name__)


def behind_proxies(answer: "WSGIApplication", count: int) -> "WSGIApplication":
    """Return an application that takes the client's address from this many trusted proxies."""
    if not count:
        return answer
    # Only the address: nothing here depends on the scheme, host or path of the request to the proxy.
    return ProxyFix(_plain_address(answer), x_for=count, x_proto=0, x_host=0, x_port=0, x_prefix=0)


def require_keys(app: Flask, file: Path | None, strict: bool) -> None:
    """Admit only clients with a key of the file; without a file, everybody.

    Args:
        strict: raise if it cannot be read; otherwise requests are refused until it can be read.

    Raises:
        FieldError: the file cannot be read.
    """
    if file is None:
        return
    keys = KeyFile(file)
    try:
        if strict:
            keys.read()
    except (OSError, ValueError) as error:
        raise FieldError(f"SEEWHY_API_KEYS: {error}", "api_keys") from error
    app.before_request(lambda: _identify(keys))


def allow_origins(app: Flask, origins: str) -> None:
    """Let pages of these comma-separated origins read the answers."""
    if origins:
        CORS(
            app,
            origins=origins.split(","),
            methods=["GET", "POST"],
            allow_headers=["Accept", "Authorization", "Content-Type", "If-None-Match", REQUEST_ID],
            expose_headers=EXPOSED,
            max_age=_PREFLIGHT_SECONDS,
            send_wildcard=True,
            always_send=False,
        )


def _plain_address(answer: "WSGIApplication") -> "WSGIApplication":
    """Reduce the client's address to an IP address; if there is none, use the proxy's address.

    Some proxies add the port, which differs for each connection.
    """

    def with_address(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        address = environ.get("REMOTE_ADDR", "").strip()
        host = re.fullmatch(r"\[(.*)\](:\d+)?|([^:]*):\d+", address)
        try:
            environ["REMOTE_ADDR"] = str(ip_address((host[1] or host[3] or "") if host else address))
        except ValueError:
            environ["REMOTE_ADDR"] = environ["werkzeug.proxy_fix.orig"]["REMOTE_ADDR"] or ""
        return answer(environ, start)

    return with_address


def is_open() -> bool:
    """Whether the request needs no key and is not counted: its route declares so, or Flask itself answers OPTIONS.

    Browsers send no key with a preflight request.
    """
    return request.method == "OPTIONS" or current_declaration().is_open


def _identify(keys: KeyFile) -> None:
    """Set `g.client` to the owner of the request's key.

    Raises:
        KeyRequiredError, KeyRefusedError: the request has no key, or one that is not in the file.
        KeysUnavailableError: the file can no longer be read.
    """
    if is_open():
        return
    credentials = request.authorization
    if credentials is None or credentials.type != "bearer" or not credentials.token:
        raise KeyRequiredError(
            "Send an API key as `Authorization: Bearer KEY`. The operator of the service issues keys."
        )
    try:
        owner = keys.owner(credentials.token)
    except (OSError, ValueError) as error:
        _log.error("The key file cannot be used, so all requests are refused: %s", error)
        raise KeysUnavailableError(
            "The service cannot read its API keys at present; its log has the reason."
        ) from error
    if owner is None:
        raise KeyRefusedError("The API key is unknown or revoked. Ask the operator of the service for another.")
    g.client = owner
