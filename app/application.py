"""Composition of the Flask application: its parts, and the ordered middleware between the server and the routes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from flask import Flask, request

from seewhy.app.compatible import torchserve, v1, v2
from seewhy.app.compatible.routes import ModelName, protocol_error
from seewhy.app.http.access import allow_origins, behind_proxies, require_keys
from seewhy.app.http.accounting import Accounting, keep_answer
from seewhy.app.http.in_flight import Admission
from seewhy.app.http.problems import register_errors
from seewhy.app.http.rate_limit import limit_requests, report_cost
from seewhy.app.http.request_id import Envelope, redirect_within, restrict_page
from seewhy.app.http.routes import catalogue, health, hooks, pages, pictures
from seewhy.app.http.uploads import InMemoryRequest
from seewhy.app.observability.listeners import Operations
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.decode import quiet_decoders
from seewhy.app.pipeline.disconnect import watch
from seewhy.app.pipeline.liveness import Liveness
from seewhy.app.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

ROUTES = (pictures, hooks, catalogue, health, pages, v1, v2, torchserve)

ERROR_FORMS = dict.fromkeys(("v1", "v2"), protocol_error) | dict.fromkeys(
    ("predictions", "explanations", "ping"), torchserve.torchserve_error
)
"""Error formats of the compatibility APIs, by the first part of their paths."""


@dataclass(frozen=True)
class Components:
    """The parts of an application.

    Attributes:
        strict: raise if the key file cannot be read; otherwise requests are refused until it can be read.
    """

    settings: Settings
    strict: bool
    service: Service
    operations: Operations


class Stage(NamedTuple):
    """A middleware: a WSGI wrapper around Flask, or hooks that Flask calls for each request.

    Attributes:
        hook: registers functions before a request (earlier stages first), after it (last), or for errors.
        wrap: returns the WSGI application that wraps another.
    """

    name: str
    hook: Callable[[Flask, Components], object] = lambda app, parts: None
    wrap: Callable[["WSGIApplication", Components], "WSGIApplication"] = lambda inner, parts: inner


STAGES = (
    # Refusals by later stages carry its headers too.
    Stage("envelope", wrap=lambda inner, _: Envelope(inner)),
    # A body counts before it is read, an answer until it is sent.
    Stage("accounts", wrap=lambda inner, parts: Accounting(inner, parts.service.models.memory)),
    # Later stages see the client's address.
    Stage("proxies", wrap=lambda inner, parts: behind_proxies(inner, parts.settings.trusted_proxies)),
    # Later stages fill in the record, and the answer is counted as it is sent.
    Stage("observers", lambda app, parts: parts.operations.watch(app)),
    # Errors become problem documents.
    Stage("errors", lambda app, _: register_errors(app, ERROR_FORMS)),
    # Limits decide who is charged; refusals report the cost too.
    Stage("costs", lambda app, _: report_cost(app)),
    # Requests count for the owner of a key.
    Stage("keys", lambda app, parts: require_keys(app, parts.settings.api_keys, parts.strict)),
    # Refused requests take no place among those in flight.
    Stage("limits", lambda app, parts: limit_requests(app, parts.settings.rate_limit, parts.settings.rate_storage)),
    # Pages of other origins may read the limits.
    Stage("origins", lambda app, parts: allow_origins(app, parts.settings.cors_origins)),
    # From here on it matters whether the client still waits.
    Stage("disconnect", lambda app, _: app.before_request(lambda: watch(request.environ))),
    # Only admitted clients take a place.
    Stage("admission", lambda app, parts: Admission(parts.settings.max_in_flight).register(app)),
    # Only the answer is held while it is sent.
    Stage("kept", lambda app, _: app.after_request(keep_answer)),
    # Redirects change the body, which is measured.
    Stage("redirects", lambda app, _: app.after_request(redirect_within)),
    # The envelope keeps a policy that is set.
    Stage("pages", lambda app, _: app.after_request(restrict_page)),
)
"""The stages, the outermost first, with the reasons for their order. Requests pass them in this order, responses in
reverse."""


def create_app(settings: Settings | None = None, strict: bool = True) -> Flask:
    """Create the application. No thread starts and no model loads before the first request.

    Args:
        settings: by default from the environment.
        strict: raise if the key file cannot be read; otherwise requests are refused until it can be read.
    """
    settings = settings or Settings()
    quiet_decoders()
    app = Flask("seewhy.app", static_folder="web", static_url_path="/static")
    app.request_class = InMemoryRequest
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.url_map.converters["model"] = ModelName
    for module in ROUTES:
        app.register_blueprint(module.blueprint)
    operations = Operations(settings)
    service = Service(settings, observer=operations)
    living = Liveness(service.models.engine, settings.deadline)
    operations.listeners.append(living)
    app.extensions |= {
        "seewhy": service,
        "seewhy-liveness": living,
        "seewhy-operations": operations,
    }
    parts = Components(settings, strict, service, operations)
    for stage in STAGES:
        stage.hook(app, parts)
    for stage in reversed(STAGES):  # the last wrapper is the outermost
        app.wsgi_app = stage.wrap(app.wsgi_app, parts)  # type: ignore[assignment, method-assign]
    return app
