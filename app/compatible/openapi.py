"""The part of the OpenAPI document that describes the routes of other servers."""

from collections.abc import Iterator, Sequence
from typing import Any

from openapi_pydantic.util import PydanticSchema
from pydantic import BaseModel

from seewhy.app.compatible import schemas
from seewhy.app.compatible.tensors import HEADER
from seewhy.app.pipeline.options import MEDIA_TYPES

_BYTES = {"type": "string", "format": "binary"}
_PICTURE = {**_BYTES, "minLength": 1}
_PARAMETERS = {
    "name": "A name of GET /models.",
    "version": "Each model has one: 1; on TorchServe's routes it is also called 1.0.",
}
_ERRORS = {
    400: "What was sent is at fault",
    404: "There is no such model, or no such version of it",
    413: "Too many bytes, pixels, pictures or numbers",
    500: "Something went wrong here",
    503: "Too busy, still starting, or the weights are not at hand",
    504: "The answer was not ready in time",
}
_EXPLAIN = "those of POST /explain but for `model` and `format`, and `range`."


def compatible_paths() -> dict[str, Any]:
    """Return the paths of these routes, for the member `paths`."""
    paths: dict[str, Any] = {}
    for verb, path, operation in (*_v1(), *_v2(), *_torchserve()):
        names = [name for name in _PARAMETERS if f"{{{name}}}" in path]
        operation["parameters"] += [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PARAMETERS[name],
                "schema": {"type": "string"},
            }
            for name in names
        ]
        paths.setdefault(path, {})[verb] = operation
    return paths


Operations = Iterator[tuple[str, str, dict[str, Any]]]


def _v1() -> Operations:
    request = _json(schemas.V1Request)
    yield "get", "/v1/models", _operation("v1_models", "The models at hand", _json(schemas.V1Models))
    yield "get", "/v1/models/{name}", _operation("v1_model", "Whether a model is ready", _json(schemas.ReadyModel))
    text = "KServe's V1. Options stand in `parameters`: `top`, `output`, `range`."
    predict = _operation("v1_predict", "What a model says of pictures", _json(schemas.V1Predictions), request, text)
    yield "post", "/v1/models/{name}:predict", predict
    text = f"KServe's V1. Options stand in `parameters`: {_EXPLAIN}"
    explain = _operation("v1_explain", "Why it says so", _json(schemas.V1Explanations), request, text)
    yield "post", "/v1/models/{name}:explain", explain


def _v2() -> Operations:
    request = {**_json(schemas.V2Request), "application/octet-stream": {"schema": _PICTURE}}
    response = {**_json(schemas.V2Answer), "application/octet-stream": {"schema": _BYTES}}
    yield "get", "/v2", _operation("v2_server", "Which server this is", _json(schemas.V2Server))
    yield "get", "/v2/health/live", _operation("v2_live", "Whether the process is alive", _json(schemas.V2Live))
    yield "get", "/v2/health/ready", _operation("v2_ready", "Whether it can answer", _json(schemas.V2Ready))
    yield "get", "/v2/models", _operation("v2_models", "The models at hand", _json(schemas.V1Models))
    binary = f"Both are JSON, or JSON and binary tensors; the header {HEADER} tells how long the JSON is then."
    text = "How many bytes of the body are JSON, where binary tensors follow."
    length = [{"name": HEADER, "in": "header", "description": text, "schema": {"type": "integer", "minimum": 1}}]
    infer = f"The V2 protocol. Options stand in `parameters`: `top`, `range`. {binary}"
    explain = f"The V2 protocol. Options stand in `parameters`: {_EXPLAIN} {binary}"
    for path, end in (("/v2/models/{name}", ""), ("/v2/models/{name}/versions/{version}", "_version")):
        yield "get", path, _operation(f"v2_model{end}", "The tensors of a model", _json(schemas.V2Model))
        ready = _operation(f"v2_model_ready{end}", "Whether a model is ready", _json(schemas.ReadyModel))
        yield "get", f"{path}/ready", ready
        summary = "What a model says of pictures"
        operation = _operation(f"v2_infer{end}", summary, response, request, infer, parameters=length)
        yield "post", f"{path}/infer", operation
        operation = _operation(f"v2_explain{end}", "Why it says so", response, request, explain, parameters=length)
        yield "post", f"{path}/explain", operation


def _torchserve() -> Operations:
    numbers: dict[str, Any] = {"type": "number"}
    for _ in range(3):
        numbers = {"type": "array", "items": numbers}
    probabilities = {"schema": {"type": "object", "additionalProperties": {"type": "number"}}}
    labels = {"application/json": probabilities}
    maps = {"application/json": {"schema": numbers}}
    maps |= {MEDIA_TYPES[form]: {"schema": _BYTES} for form in ("png", "jpeg", "webp")}
    error = schemas.TorchServeError
    where = "TorchServe's. JSON may be the picture itself. Options stand in the query string, the form or the object:"
    predict = f"{where} `top`, `range`."
    explain = (
        f"{where} {_EXPLAIN} Without a method these are integrated gradients of 15 steps, [C, H, W], and of another "
        "method [1, H, W]. A picture where Accept asks for one."
    )
    status = _json(schemas.TorchServeStatus)
    ping = _operation("torchserve_ping", "Whether it can answer", status)
    ping["responses"] = {
        "200": {"description": "OK", "content": status},
        "503": {"description": "No", "content": status},
    }
    yield "get", "/ping", ping
    options = [_option("range", schemas.ClassifyOptions), _option("top", schemas.ClassifyOptions)]
    more = [_option(name, schemas.ExplainParameters) for name in ("method", "target", "layer", "range")]
    bodies = _torchserve_body(options, more=False), _torchserve_body(more, more=True)
    for tail, end in (("", ""), ("/{version}", "_version")):
        for verb, last in (("post", end), ("put", f"{end}_put")):
            summary = "What a model says of a picture"
            operation = _operation(f"torchserve_predict{last}", summary, labels, bodies[0], predict, error, options)
            yield verb, f"/predictions/{{name}}{tail}", operation
            operation = _operation(f"torchserve_explain{last}", "Why it says so", maps, bodies[1], explain, error, more)
            yield verb, f"/explanations/{{name}}{tail}", operation


def _torchserve_body(options: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """Describe the body of a request; with `more`, a method may have options beside these."""
    data = {"description": "The picture: an image file, base64, or nested lists of numbers; `body` will do as a name."}
    members = {option["name"]: {**option["schema"], "description": option["description"]} for option in options}
    body = {"type": "object", "required": ["data"]}
    return {
        "multipart/form-data": {
            "schema": {**body, "properties": {"data": _PICTURE | data}, "additionalProperties": True}
        },
        "application/json": {"schema": {**body, "properties": {"data": data} | members, "additionalProperties": more}},
        "application/octet-stream": {"schema": _PICTURE},
    }


def _option(name: str, options: type[BaseModel]) -> dict[str, Any]:
    schema = options.model_json_schema()["properties"][name]
    schema = {part: value for part, value in schema.items() if part not in ("default", "description")}
    return {
        "name": name,
        "in": "query",
        "description": options.model_fields[name].description,
        "allowEmptyValue": True,
        "schema": schema,
    }


def _operation(
    operation: str,
    summary: str,
    content: dict[str, Any],
    body: dict[str, Any] | None = None,
    description: str = "",
    error: type[BaseModel] = schemas.ProtocolError,
    parameters: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    codes = _ERRORS if body else (404, 500, 503)
    errors = {str(code): {"description": _ERRORS[code], "content": _json(error)} for code in codes}
    return {
        "operationId": operation,
        "summary": summary,
        "parameters": list(parameters),
        **({"description": description} if description else {}),
        **({"requestBody": {"required": True, "content": body}} if body else {}),
        "responses": {"200": {"description": "OK", "content": content}, **errors},
    }


def _json(answer: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": PydanticSchema(schema_class=answer)}}
