"""Who may come in: with which key, how often, from which pages; and whose address counts behind proxies.

Each of these is off until its setting is given. docs/security.md says what they protect, and what not.
"""

import logging
import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from flask import Flask, g, request
from flask_cors import CORS
from werkzeug.middleware.proxy_fix import ProxyFix

from seewhy.app.errors import FieldError, KeyRefusedError, KeyRequiredError, KeysUnavailableError
from seewhy.app.http.declaration import current_declaration
from seewhy.app.http.headers import EXPOSED, REQUEST_ID
from seewhy.app.http.keys import KeyFile
from seewhy.app.http.rate_limit import limit_requests
from seewhy.app.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PREFLIGHT_SECONDS = 600

_log = logging.getLogger(__name__)


def register_access(app: Flask, settings: Settings, strict: bool = True) -> None:
    """Guard the routes of an application as the settings say.

    Args:
        app, settings: as `create_app` has them.
        strict: refuse a file of keys that cannot be read; otherwise it lets nobody in until it can.

    Raises:
        FieldError: a setting cannot be used.
    """
    if settings.trusted_proxies:
        # The address alone: nothing here depends on the scheme, host or path that a proxy was asked for.
        proxied = ProxyFix(
            _plain_address(app.wsgi_app), x_for=settings.trusted_proxies, x_proto=0, x_host=0, x_port=0, x_prefix=0
        )
        app.wsgi_app = proxied  # type: ignore[method-assign]
    if settings.api_keys is not None:
        keys = KeyFile(settings.api_keys)
        try:
            if strict:
                keys.read()
        except (OSError, ValueError) as error:
            raise FieldError(f"SEEWHY_API_KEYS: {error}", "api_keys") from error
        app.before_request(lambda: _identify(keys))
    if settings.rate_limit:
        limit_requests(app, settings.rate_limit, settings.rate_storage, is_open)
    if settings.cors_origins:
        CORS(
            app,
            origins=settings.cors_origins.split(","),
            methods=["GET", "POST"],
            allow_headers=["Accept", "Authorization", "Content-Type", "If-None-Match", REQUEST_ID],
            expose_headers=EXPOSED,
            max_age=_PREFLIGHT_SECONDS,
            send_wildcard=True,
            always_send=False,
        )


def _plain_address(answer: "WSGIApplication") -> "WSGIApplication":
    """Let only addresses pass for one, and the proxy's where there is none.

    Some proxies add the port, which is another with each connection.
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
    """Whether this request needs no key and is not counted: its route declares it, or Flask answers OPTIONS by itself.

    Browsers send no key with the question whether they may send one.
    """
    return request.method == "OPTIONS" or current_declaration().is_open


def _identify(keys: KeyFile) -> None:
    """Find out whose key came with this request: `g.client`.

    Raises:
        KeyRequiredError, KeyRefusedError: it came with none, or with one that is not in the file.
        KeysUnavailableError: the file cannot be read any more.
    """
    if is_open():
        return
    credentials = request.authorization
    if credentials is None or credentials.type != "bearer" or not credentials.token:
        raise KeyRequiredError("Send a key of this service as `Authorization: Bearer KEY`. Who runs it makes keys.")
    try:
        owner = keys.owner(credentials.token)
    except (OSError, ValueError) as error:
        _log.error("The file of keys cannot be used, and nobody is let in: %s", error)
        raise KeysUnavailableError("The keys of this service cannot be read now; the log says why.") from error
    if owner is None:
        raise KeyRefusedError("The key is none of this service's, or no longer. Ask who runs it for another.")
    g.client = owner
