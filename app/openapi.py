"""The OpenAPI 3.1 document, made from the schemas that validate requests and answers, and from the catalogue."""

from copy import deepcopy
from importlib.metadata import version
from typing import Any

from openapi_pydantic import OpenAPI
from openapi_pydantic.util import PydanticSchema, construct_open_api_with_schema_class
from pydantic import BaseModel

from app import schemas
from app.errors import HTTP_KINDS, KINDS
from explainers.registry import METHODS

_UPLOAD_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")


def document() -> str:
    """Return the document as JSON."""
    raw = OpenAPI.model_validate(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "SeeWhy",
                "version": version("seewhy"),
                "summary": "Post a picture, get the heatmap that shows where a pretrained CNN looked.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "paths": _paths(),
        }
    )
    return construct_open_api_with_schema_class(raw).model_dump_json(by_alias=True, exclude_unset=True)


def _paths() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    source = {
        "name": "source",
        "in": "query",
        "description": "List only the models of one source.",
        "schema": {"type": "string", "enum": ["own", "embedded", "torchvision", "timm"]},
    }
    text = {"text/html": {"schema": {"type": "string"}}}
    return {
        "/explain": {"post": _picture("explain", schemas.ExplainOptions, _explain_answers())},
        "/predict": {"post": _picture("predict", schemas.PredictOptions, _json(schemas.PredictAnswer))},
        "/models": {"get": _get("models", "All models", _json(schemas.ModelsAnswer), [source], (422,))},
        "/models/{name}": {"get": _get("model", "One model", _json(schemas.ModelDetailAnswer), [name], (404,))},
        "/models/{name}/layers": {
            "get": _get("layers", "Every module in execution order", _json(schemas.LayersAnswer), [name], (404,))
        },
        "/methods": {"get": _get("methods", "All methods", _json(schemas.MethodsAnswer))},
        "/healthz": {"get": _get("healthz", "Whether the process is alive", _json(schemas.HealthAnswer))},
        "/readyz": {
            "get": _get("readyz", "Whether the default model is loaded", _json(schemas.HealthAnswer), codes=(503,))
        },
        "/openapi.json": {
            "get": _get("openapi", "This document", {"application/json": {"schema": {"type": "object"}}})
        },
        "/docs": {"get": _get("docs", "A page to try the routes", text)},
        "/": {"get": _get("index", "The web page", text)},
    }


def _get(
    operation: str,
    summary: str,
    content: dict[str, Any],
    parameters: list[dict[str, Any]] | None = None,
    codes: tuple[int, ...] = (),
) -> dict[str, Any]:
    return {
        "operationId": operation,
        "summary": summary,
        "parameters": parameters or [],
        "responses": {"200": {"description": "OK", "content": content}, **_problems(codes)},
    }


def _picture(operation: str, options: type[schemas.Options], answers: dict[str, Any]) -> dict[str, Any]:
    described = _options_schema(options)
    properties: dict[str, Any] = described["properties"]
    binary = {"type": "string", "format": "binary", "description": "JPEG, PNG, WebP, GIF, BMP or TIFF."}
    encoded = {
        "type": "string",
        "contentEncoding": "base64",
        "description": "The picture as base64, or a data URL.",
    }
    body = {"type": "object", "required": ["image"]}
    # A form has all the options as fields too; naming them here would make the page that tries it fill them all in.
    form = {**body, "properties": {"image": binary}, "additionalProperties": True}
    content: dict[str, Any] = {
        "multipart/form-data": {"schema": {**form, "description": "Every option may be a field of the form as well."}},
        "application/json": {
            "schema": {**body, "properties": {"image": encoded, **properties}},
            "example": {"image": "aGVsbG8="},
        },
    }
    for media_type in _UPLOAD_TYPES:
        content[media_type] = {"schema": binary}
    headers = _headers() if operation == "explain" else {}
    description = (
        "Options stand in the query string, or beside the picture as fields of the form or members of the JSON object; "
        "a repeated one is a list."
    )
    return {
        "operationId": operation,
        "summary": {"explain": "Why the model says what it says", "predict": "What the model says"}[operation],
        "description": description,
        "parameters": [
            {
                "name": name,
                "in": "query",
                "description": schema.get("description", ""),
                "schema": deepcopy(schema),
            }
            for name, schema in properties.items()
        ],
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {"description": "OK", "headers": headers, "content": answers},
            **({"304": {"description": "If-None-Match named this answer's ETag."}} if operation == "explain" else {}),
            **_problems(tuple(sorted({kind.status for kind in KINDS.values()} - {404}))),
        },
    }


def _options_schema(options: type[schemas.Options]) -> dict[str, Any]:
    """Return the schema of the options; defaults are told in words, for a form that fills them in would send them."""
    described = options.model_json_schema()
    for schema in described["properties"].values():
        default = schema.pop("default", None)
        if default not in (None, []):
            schema["description"] = f"{schema.get('description', '')} Default {default!r}."
        kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
        if len(kinds) == 1:
            schema.pop("anyOf")
            schema.update(kinds[0])
    if options is schemas.ExplainOptions:
        for method in METHODS.values():
            for name, schema in method.options.items():
                if name == "layers":
                    continue
                one = described["properties"].setdefault(name, deepcopy(schema) | {"description": ""})
                one.pop("default", None)  # each method has its own
                said = f"{method.name}: {schema.get('description', '')} Default {schema.get('default')!r}."
                one["description"] = f"{one['description']} {said}".strip()
    return described


def _explain_answers() -> dict[str, Any]:
    pictures = {
        media_type: {"schema": {"type": "string", "format": "binary"}}
        for form, media_type in schemas.MEDIA_TYPES.items()
        if form != "json"
    }
    return {**pictures, **_json(schemas.ExplainAnswer)}


def _headers() -> dict[str, Any]:
    text = {
        "X-SeeWhy-Model": "Name of the model.",
        "X-SeeWhy-Method": "Name of the method.",
        "X-SeeWhy-Layers": "Paths of the layers used, separated by commas.",
        "X-SeeWhy-Target": "Indices of the explained classes, separated by commas.",
        "X-SeeWhy-Label": "Their labels, percent-encoded where a header could not hold them.",
        "X-SeeWhy-Probability": "Their probabilities.",
        "ETag": "Digest of everything that the answer depends on.",
        "Server-Timing": "Milliseconds of decode, queue, explain, render, encode.",
    }
    return {name: {"description": said, "schema": {"type": "string"}} for name, said in text.items()}


def _json(answer: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": PydanticSchema(schema_class=answer)}}


def _problems(codes: tuple[int, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/problem+json": {"schema": PydanticSchema(schema_class=schemas.Problem)}}
    titles: dict[int, set[str]] = {}
    for kind in [*KINDS.values(), *HTTP_KINDS.values()]:
        titles.setdefault(kind.status, set()).add(kind.title)
    return {str(code): {"description": "; ".join(sorted(titles[code])), "content": content} for code in codes}
