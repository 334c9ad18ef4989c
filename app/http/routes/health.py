"""The routes for orchestrators: /healthz, /readyz and /metrics."""

from flask import Blueprint, Response, current_app, request

from seewhy.app.answers.schemas import HealthAnswer
from seewhy.app.http.declaration import Declaration
from seewhy.app.http.routes import json_response, liveness, service
from seewhy.app.observability.listeners import Operations

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
@Declaration("Whether the process is alive", answers=(HealthAnswer,), statuses=(503,), is_open=True)
def healthz() -> Response:
    """Answer that the process is alive; 503 if it is permanently broken."""
    liveness().require()
    return alive()


def alive() -> Response:
    """Return the answer of a live process."""
    return json_response(HealthAnswer(status="alive"))


@blueprint.get("/readyz")
@Declaration("Whether the default model is loaded", answers=(HealthAnswer,), statuses=(503,), is_open=True)
def readyz() -> Response:
    """Answer whether the default model is loaded, so that the next request is answered at once."""
    liveness().require()
    service().models.require_ready()
    return json_response(HealthAnswer(status="ready"))


@blueprint.get("/metrics")
@Declaration("Metrics for Prometheus", media={"text/plain": {"type": "string"}}, is_light=True)
def metrics() -> Response:
    """Return the metrics of all processes as Prometheus text."""
    operations: Operations = current_app.extensions["seewhy-operations"]
    body, content_type = operations.metrics.exposition(request.headers.get("Accept", ""))
    return Response(body, content_type=content_type)
