"""The routes that an orchestrator asks: /healthz and /readyz."""

from flask import Blueprint, Response

from app.api import service
from app.schemas import HealthAnswer

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
def healthz() -> Response:
    """Say that the process is alive."""
    return Response(HealthAnswer(status="alive").model_dump_json(), mimetype="application/json")


@blueprint.get("/readyz")
def readyz() -> Response:
    """Say whether the default model is loaded, so that the next request is answered at once."""
    service().require_ready()
    return Response(HealthAnswer(status="ready").model_dump_json(), mimetype="application/json")
