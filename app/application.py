"""The Flask application and what it is made of."""

from urllib.parse import urlsplit, urlunsplit

from flask import Flask, Response, request

from seewhy.app.compatible import torchserve, v1, v2
from seewhy.app.compatible.openapi import compatible_paths
from seewhy.app.compatible.routes import ModelName, protocol_error
from seewhy.app.http.access import register_access
from seewhy.app.http.accounting import register_accounts
from seewhy.app.http.in_flight import Admission
from seewhy.app.http.problems import register_errors
from seewhy.app.http.rate_limit import tell_cost
from seewhy.app.http.request_id import Envelope
from seewhy.app.http.routes import catalogue, health, hooks, pages, pictures
from seewhy.app.http.uploads import InMemoryRequest
from seewhy.app.observability.listeners import Operations
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.decode import quiet_decoders
from seewhy.app.pipeline.disconnect import watch
from seewhy.app.pipeline.liveness import Liveness
from seewhy.app.settings import Settings

_POLICY = "; ".join(
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
"""What a page may load and run: files of this service alone, no inline script or style, no text turned into markup."""


def create_app(settings: Settings | None = None, strict: bool = True) -> Flask:
    """Make the application. No thread starts and no model loads before the first request.

    Args:
        settings: by default those of the environment.
        strict: refuse a file of keys that cannot be read; otherwise it lets nobody in until it can.
    """
    settings = settings or Settings()
    app = Flask("seewhy.app", static_folder="web", static_url_path="/static")
    app.request_class = InMemoryRequest
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes
    quiet_decoders()
    app.json.sort_keys = False  # type: ignore[attr-defined]
    operations = Operations(settings)
    operations.watch(app)
    service = app.extensions["seewhy"] = Service(settings, observer=operations)
    living = app.extensions["seewhy-liveness"] = Liveness(service.engine, settings.deadline)
    operations.listeners.append(living)
    app.extensions["seewhy-operations"] = operations
    app.extensions["seewhy-paths"] = compatible_paths
    app.url_map.converters["model"] = ModelName
    for module in (pictures, hooks, catalogue, health, pages, v1, v2, torchserve):
        app.register_blueprint(module.blueprint)
    theirs = dict.fromkeys(("v1", "v2"), protocol_error)
    register_errors(app, theirs | dict.fromkeys(("predictions", "explanations", "ping"), torchserve.told))
    tell_cost(app)
    register_access(app, settings, strict)
    app.before_request(lambda: watch(request.environ))
    Admission(settings.max_in_flight).register(app)
    register_accounts(app, service.memory)
    app.after_request(_relative)
    app.after_request(_secure)
    app.wsgi_app = Envelope(app.wsgi_app)  # type: ignore[method-assign]  # the outermost
    return app


def _secure(response: Response) -> Response:
    if response.mimetype == "text/html":
        response.headers.setdefault("Content-Security-Policy", _POLICY)
    return response


def _relative(response: Response) -> Response:
    """Redirect within this service alone: the host that a client names must not send others elsewhere."""
    if response.location is not None:
        target = urlsplit(response.location)
        path = "/" + target.path.lstrip("/")  # two slashes would name a host again
        response.location = urlunsplit(("", "", path, target.query, target.fragment))
        response.data = b""  # which names the host too
    return response
