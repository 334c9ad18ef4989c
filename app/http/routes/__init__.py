"""The routes, one module per kind of resource."""

from typing import TypeVar, cast

from flask import Response, current_app, request
from pydantic import BaseModel

from seewhy.app.answers.stream import Body, respond
from seewhy.app.errors import ModelNotFoundError, NotAcceptableError
from seewhy.app.http.declaration import current_declaration
from seewhy.app.http.headers import Facts
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.liveness import Liveness
from seewhy.app.pipeline.options import MEDIA_TYPES
from seewhy.models.errors import UnknownModelError
from seewhy.models.spec import ModelSpec

Form = TypeVar("Form", bound=str)


def service() -> Service:
    """Return the service of the running application."""
    pipeline: Service = current_app.extensions["seewhy"]
    return pipeline


def liveness() -> Liveness:
    """Return the liveness check of the running application."""
    state: Liveness = current_app.extensions["seewhy-liveness"]
    return state


def model_spec(name: str) -> ModelSpec:
    """Describe the model in a path."""
    try:
        return service().models.registry.spec(name)
    except UnknownModelError as error:
        raise ModelNotFoundError(str(error)) from error


def json_response(answer: BaseModel, status: int = 200) -> Response:
    """Return an answer as JSON, without members that it leaves to their defaults."""
    return Response(answer.model_dump_json(exclude_unset=True), status=status, mimetype="application/json")


def picture_response(body: Body, form: str, facts: Facts) -> Response:
    """Return an answer about a picture, in a format that depends on Accept, with the headers of its facts."""
    response = respond(body, MEDIA_TYPES[form], service().settings.download_seconds)
    response.headers.extend(facts.headers)
    response.headers["Vary"] = "Accept"
    return response


def format_of(name: Form | None) -> Form:
    """Return the format of the answer: the given one, or the one that the client's Accept header prefers.

    Args:
        name: one of the formats that the route declares; None to use Accept, and the first without a preference.

    Raises:
        NotAcceptableError: the client accepts none of them.
    """
    declaration = current_declaration()
    forms = cast("tuple[Form, ...]", declaration.formats)
    if name is not None or not request.accept_mimetypes:
        return name or forms[0]
    types = [MEDIA_TYPES[form] for form in forms]
    best = request.accept_mimetypes.best_match(types)
    if best is None:
        raise NotAcceptableError(f"Accept one of {', '.join(declaration.media_types)}, or set format={forms[0]}.")
    return forms[types.index(best)]
