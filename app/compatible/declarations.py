"""What the routes of other servers declare alike: their errors, paths, bodies and options."""

from functools import partial
from typing import Any

from openapi_pydantic.util import PydanticSchema
from pydantic import BaseModel

from seewhy.app.compatible.schemas import ProtocolError, TorchServeError
from seewhy.app.http.declaration import BINARY, Declaration, Protocol, Schema

PICTURE: Schema = {**BINARY, "minLength": 1}
BYTES = "application/octet-stream"

EXPLAIN = "those of POST /explain but for `model` and `format`, and `range`."
"""The options of explanations, in words."""

_ERRORS = {
    400: "What was sent is at fault",
    404: "There is no such model, or no such version of it",
    413: "Too many bytes, pixels, pictures or numbers",
    500: "Something went wrong here",
    503: "Too busy, still starting, or the weights are not at hand",
    504: "The answer was not ready in time",
}
_protocol = partial(
    Protocol,
    titles=_ERRORS,
    reading=(404, 500, 503),
    asking=tuple(_ERRORS),
    parts={
        "name": "A name of GET /models.",
        "version": "Each model has one: 1; on TorchServe's routes it is also called 1.0.",
    },
)

KServe = partial(Declaration, protocol=_protocol(ProtocolError))
"""A declaration of KServe's protocols."""

TorchServe = partial(Declaration, protocol=_protocol(TorchServeError))
"""A declaration of TorchServe's routes."""


def json_request(schema: type[BaseModel], *media_types: str) -> Any:
    """Return what makes the bodies of requests: JSON of a schema, or bytes of other media types."""
    content: dict[str, Any] = {"application/json": {"schema": PydanticSchema(schema_class=schema)}}
    return lambda _: content | {media: {"schema": PICTURE} for media in media_types}
