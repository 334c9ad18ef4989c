"""The Flask application and what it is made of."""

from flask import Flask, Response, request

from app.access import register_access
from app.admission import Admission
from app.api import catalogue, health, hooks, pages, pictures, torchserve, v1, v2
from app.api.compatible import ModelName, protocol_error
from app.carriers import InMemoryRequest
from app.decoders import quiet_decoders
from app.envelope import Envelope
from app.errors import register_errors
from app.observing import Operations
from app.patience import Patient
from app.presence import watch
from app.service import Service
from app.settings import Settings

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
    app = Flask("app", static_folder="web", static_url_path="/static")
    app.request_class = InMemoryRequest
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes
    quiet_decoders()
    app.json.sort_keys = False  # type: ignore[attr-defined]
    operations = Operations(settings)
    operations.watch(app)
    app.extensions["seewhy"] = Service(settings, observer=operations)
    app.extensions["seewhy-operations"] = operations
    app.url_map.converters["model"] = ModelName
    for module in (pictures, hooks, catalogue, health, pages, v1, v2, torchserve):
        app.register_blueprint(module.blueprint)
    theirs = dict.fromkeys(("v1", "v2"), protocol_error)
    register_errors(app, theirs | dict.fromkeys(("predictions", "explanations", "ping"), torchserve.told))
    register_access(app, settings, strict)
    app.before_request(lambda: watch(request.environ))
    Admission(settings.max_in_flight, settings.max_in_flight_bytes, settings.max_upload_bytes).register(app)
    app.wsgi_app = Patient(  # type: ignore[method-assign]
        app.wsgi_app, settings.upload_seconds, settings.download_seconds
    )
    app.after_request(_secure)
    app.wsgi_app = Envelope(app.wsgi_app)  # type: ignore[method-assign]  # the outermost
    return app


def _secure(response: Response) -> Response:
    if response.mimetype == "text/html":
        response.headers.setdefault("Content-Security-Policy", _POLICY)
    return response
