"""Common declarations of other servers' routes: errors, paths, bodies and options."""

from functools import partial
from typing import Any

from openapi_pydantic.util import PydanticSchema
from pydantic import BaseModel

from seewhy.app.compatible.schemas import ProtocolError, TorchServeError
from seewhy.app.http.declaration import BINARY, Declaration, Protocol, Schema

PICTURE: Schema = {**BINARY, "minLength": 1}
BYTES = "application/octet-stream"

VERSION = "1"
"""The only version of each model."""

EXPLAIN = "those of POST /explain except `model` and `format`, and `range`."
"""Description of the options of explanations."""

_ERRORS = {
    400: "The request is invalid",
    404: "Unknown model or version",
    413: "Too many bytes, pixels, pictures or values",
    500: "Internal server error",
    503: "Busy, still starting, or the weights are not available",
    504: "The deadline was exceeded",
}
_protocol = partial(
    Protocol,
    titles=_ERRORS,
    reading=(404, 500, 503),
    asking=tuple(_ERRORS),
    parts={
        "name": "A name from GET /models.",
        "version": f"Each model has version {VERSION}; TorchServe's routes also accept {VERSION}.0.",
    },
)

KServe = partial(Declaration, protocol=_protocol(ProtocolError))
"""A declaration of KServe's protocols."""

TorchServe = partial(Declaration, protocol=_protocol(TorchServeError))
"""A declaration of TorchServe's routes."""


def json_request(schema: type[BaseModel], *media_types: str) -> Any:
    """Return a function that makes the schemas of bodies: JSON of a schema, or bytes of other media types."""
    content: dict[str, Any] = {"application/json": {"schema": PydanticSchema(schema_class=schema)}}
    return lambda _: content | {media: {"schema": PICTURE} for media in media_types}
