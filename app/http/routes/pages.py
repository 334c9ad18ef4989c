"""The web pages and the OpenAPI document."""

from importlib.resources import files
from pathlib import Path
from threading import Lock

from flask import Blueprint, Response, current_app, request, send_from_directory

from seewhy.app.answers.guide import guide as guide_page
from seewhy.app.answers.schemas import HealthAnswer
from seewhy.app.http.declaration import Declaration
from seewhy.app.http.openapi import document, operation_link
from seewhy.app.http.routes import liveness
from seewhy.app.http.routes.health import alive

blueprint = Blueprint("pages", __name__)

# Swagger UI writes style attributes and markup.
_DOCS_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HTML = {"text/html": {"type": "string"}}
_SWAGGER = Path(str(files("flask_openapi_swagger"))) / "templates" / "swagger"
_writing = Lock()


@blueprint.get("/openapi.json")
@Declaration("This document", media={"application/json": {"type": "object"}}, is_open=True)
def openapi() -> Response:
    """Return the OpenAPI 3.1 document."""
    with _writing:  # otherwise concurrent first requests would each write it
        if "seewhy-openapi" not in current_app.extensions:
            current_app.extensions["seewhy-openapi"] = document(current_app)
    return Response(current_app.extensions["seewhy-openapi"], mimetype="application/json")


@blueprint.get("/docs")
@Declaration("A page to try the routes", media=_HTML, is_open=True)
def docs() -> Response:
    """Return the page that describes every route and can call it."""
    response = current_app.send_static_file("docs.html")
    response.headers["Content-Security-Policy"] = _DOCS_POLICY
    return response


@blueprint.get("/guide")
@Declaration("A page about heatmaps, proofs, hooks and methods", media=_HTML, is_open=True)
def guide() -> Response:
    """Return the guide, which the web page links to."""
    links = (operation_link(current_app, f"hooks.{view}") for view in ("trace", "capture", "intervene"))
    return Response(guide_page(*links), mimetype="text/html")


@blueprint.get("/docs/assets/<path:name>")
@Declaration(is_open=True)
def docs_asset(name: str) -> Response:
    """Return a file of Swagger UI from the installed package: nothing is loaded from elsewhere."""
    return send_from_directory(_SWAGGER, name, max_age=86_400)


@blueprint.get("/")
@Declaration(
    "The web page; for KServe's clients, which accept anything, JSON that says that the process is alive",
    ("Browsers ask for `text/html` and get the page."),
    answers=(HealthAnswer,),
    media=_HTML,
    statuses=(503,),
    is_open=True,
)
def index() -> Response:
    """Return the page: choose a picture, see its heatmap. KServe's V1 clients take this path for the live probe."""
    is_probe = request.accept_mimetypes.best_match(("application/json", "text/html")) == "application/json"
    if is_probe:
        liveness().require()
    response = alive() if is_probe else current_app.send_static_file("index.html")
    response.headers["Vary"] = "Accept"
    return response
