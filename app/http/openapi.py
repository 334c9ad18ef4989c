"""The OpenAPI 3.1 document, made from the schemas that validate requests and answers, and from the catalogue."""

from copy import deepcopy
from importlib.metadata import version
from typing import Any, get_args

from openapi_pydantic import OpenAPI
from openapi_pydantic.util import PydanticSchema, construct_open_api_with_schema_class
from pydantic import BaseModel

from seewhy.app.answers import schemas
from seewhy.app.errors import HTTP_KINDS, KINDS
from seewhy.app.http.events import MEDIA_TYPE
from seewhy.app.pipeline import options
from seewhy.explainers.methods.catalogue import METHODS

_EXAMPLES = {"layer": "blocks.6", "edits": [{"layer": "blocks.6", "op": "zero", "channels": [0, 1]}]}
OPEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/ping", "/openapi.json", "/docs", "/"})
"""Paths that need no key, whatever the settings."""

_KEY = "Needed where whoever runs the service has set SEEWHY_API_KEYS."


def document(others: dict[str, Any]) -> str:
    """Return the document as JSON.

    Args:
        others: paths that stand beside those of this room, as OpenAPI describes them.
    """
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
            "paths": _guarded(_cut(_paths() | others)),
            "components": {
                "schemas": {"ProgressAnswer": schemas.ProgressAnswer.model_json_schema()},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": _KEY}},
            },
        }
    )
    return construct_open_api_with_schema_class(raw).model_dump_json(by_alias=True, exclude_unset=True)


def _guarded(paths: dict[str, Any]) -> dict[str, Any]:
    """Say of the routes that are not open that they may need a key, and what they answer to who is not let in."""
    refused = _problems((401, 429, 503))
    for path in paths.keys() - OPEN:
        for described in paths[path].values():
            described["security"] = [{}, {"key": []}]
            answers = described["responses"]
            # Routes of other servers tell of errors in their own ways.
            told = {code: {**one, "content": answers.get("500", one)["content"]} for code, one in refused.items()}
            described["responses"] = told | answers
    return paths


def _cut(paths: dict[str, Any]) -> dict[str, Any]:
    """Say of the routes with parameters that there may be too much of them; it is gunicorn that answers then."""
    said = "A path and a query string of more than 4 kB; options may stand in the body."
    too_long = {"description": said, "content": {"text/html": {"schema": {"type": "string"}}}}
    for described in (one for verbs in paths.values() for one in verbs.values() if one["parameters"]):
        described["responses"]["414"] = too_long
    return paths


def _paths() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    source = {
        "name": "source",
        "in": "query",
        "description": "List only the models of one source.",
        "allowEmptyValue": True,
        "schema": {"type": "string", "enum": ["own", "embedded", "torchvision", "timm"]},
    }
    text = {"text/html": {"schema": {"type": "string"}}}
    return {
        "/explain": {
            "post": _picture(
                "explain",
                "Why the model says what it says",
                options.ExplainOptions,
                {**_answers(get_args(options.Format), schemas.ExplainAnswer), **_events()},
                etag=True,
            )
        },
        "/predict": {
            "post": _picture(
                "predict",
                "What the model says",
                options.PredictOptions,
                _answers(("json",), schemas.PredictAnswer),
            )
        },
        "/hooks/trace": {
            "post": _picture(
                "trace",
                "The time line of every hook call of one forward and one backward pass",
                options.TraceOptions,
                _answers(get_args(options.TraceFormat), schemas.TraceAnswer),
            )
        },
        "/hooks/capture": {
            "post": _picture(
                "capture",
                "What passes through layers: statistics, arrays, or the strongest feature maps",
                options.CaptureOptions,
                _answers(get_args(options.CaptureFormat), schemas.CaptureAnswer),
            )
        },
        "/hooks/intervene": {
            "post": _picture(
                "intervene",
                "What edits of inputs, outputs and gradients change",
                options.InterveneOptions,
                _answers(get_args(options.InterveneFormat), schemas.InterveneAnswer, schemas.SweepAnswer),
                other="The picture that the op `swap` takes from.",
            )
        },
        "/models": {"get": _get("models", "All models", _json(schemas.ModelsAnswer), [source], (422,))},
        "/models/{name}": {"get": _get("model", "One model", _json(schemas.ModelDetailAnswer), [name], (404, 422))},
        "/models/{name}/layers": {
            "get": _get("layers", "Every module in execution order", _json(schemas.LayersAnswer), [name], (404, 422))
        },
        "/methods": {"get": _get("methods", "All methods", _json(schemas.MethodsAnswer), codes=(422,))},
        "/colormaps": {
            "get": _get("colormaps", "Colour maps with their colours", _json(schemas.ColormapsAnswer), codes=(422,))
        },
        "/healthz": {"get": _get("healthz", "Whether the process is alive", _json(schemas.HealthAnswer), codes=(503,))},
        "/readyz": {
            "get": _get("readyz", "Whether the default model is loaded", _json(schemas.HealthAnswer), codes=(503,))
        },
        "/metrics": {"get": _get("metrics", "Figures for Prometheus", {"text/plain": {"schema": {"type": "string"}}})},
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


def _picture(
    operation: str,
    summary: str,
    schema: type[options.Options],
    answers: dict[str, Any],
    etag: bool = False,
    other: str | None = None,
) -> dict[str, Any]:
    """Describe a route that takes a picture, and perhaps another one.

    Args:
        operation, summary: of the route.
        schema: of the options.
        answers: by media type.
        etag: whether the answer has one, and the route answers 304 too.
        other: what the second picture is for.
    """
    described = _options_schema(schema)
    properties: dict[str, Any] = described["properties"]
    required: list[str] = described.get("required", [])
    pictures = {"image": "JPEG, PNG, WebP, GIF, BMP or TIFF."} | ({"other": other} if other else {})
    binary = {
        name: {"type": "string", "format": "binary", "minLength": 1, "description": said}
        for name, said in pictures.items()
    }
    base64 = {
        name: {"type": "string", "contentEncoding": "base64", "description": f"{said} As base64, or a data URL."}
        for name, said in pictures.items()
    }
    body = {"type": "object", "required": ["image"]}
    # A form has all the options as fields too; naming them here would make the page that tries it fill them all in.
    needed = {name: {"type": "string", "description": properties[name]["description"]} for name in required}
    form = {**body, "properties": binary | needed, "additionalProperties": True}
    content: dict[str, Any] = {
        "multipart/form-data": {"schema": {**form, "description": "Every option may be a field of the form as well."}},
        "application/json": {
            "schema": {**body, "properties": {**base64, **{name: _member(one) for name, one in properties.items()}}},
            "example": {"image": "aGVsbG8=", **{name: _EXAMPLES[name] for name in required}},
        },
    }
    content["image/*"] = {"schema": binary["image"]}
    description = (
        "Options stand in the query string, or beside the picture as fields of the form or members of the JSON object; "
        "a repeated one is a list."
    )
    if required:
        description += f" Required, here or there: {', '.join(required)}."
    headers = _headers() | (_etag() if etag else {})
    unchanged = {"304": {"description": "If-None-Match named this answer's ETag."}} if etag else {}
    return {
        "operationId": operation,
        "summary": summary,
        "description": description,
        "parameters": [_parameter(name, schema) for name, schema in properties.items()],
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {"description": "OK", "headers": headers, "content": answers},
            **unchanged,
            **_problems(tuple(sorted({kind.status for kind in KINDS.values()} - {404}))),
        },
    }


def _member(schema: dict[str, Any]) -> dict[str, Any]:
    """Describe an option as a member of a JSON object, where a list of one may be sent as its only item."""
    if schema.get("type") != "array" or "discriminator" in schema["items"]:
        return schema
    described = {name: value for name, value in schema.items() if name in ("title", "description")}
    return {"anyOf": [schema["items"], {name: schema[name] for name in schema if name not in described}], **described}


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    described = {
        "name": name,
        "in": "query",
        "description": schema.get("description", ""),
        "allowEmptyValue": True,
    }
    if name == "edits":
        return {**described, "content": {"application/json": {"schema": deepcopy(schema)}}}
    return {**described, "schema": deepcopy(schema)}


def _options_schema(schema: type[options.Options]) -> dict[str, Any]:
    """Return the schema of the options; defaults are told in words, for a form that fills them in would send them."""
    described = schema.model_json_schema(ref_template="#/components/schemas/{model}")
    described.pop("$defs", None)  # they stand among the document's own
    for field in described["properties"].values():
        default = field.pop("default", None)
        if default not in (None, []):
            field["description"] = f"{field.get('description', '')} Default {default!r}."
        kinds = [kind for kind in field.get("anyOf", []) if kind != {"type": "null"}]
        if len(kinds) == 1:
            field.pop("anyOf")
            field.update(kinds[0])
    if issubclass(schema, options.HeatmapOptions):
        for method in METHODS.values():
            for name, option in method.options.items():
                if name == "layers":
                    continue
                field = described["properties"].setdefault(name, deepcopy(option) | {"description": ""})
                field.pop("default", None)  # each method has its own
                text = f"{method.name}: {option.get('description', '')} Default {option.get('default')!r}."
                field["description"] = f"{field['description']} {text}".strip()
    return described


def _answers(forms: tuple[str, ...], *documents: type[BaseModel]) -> dict[str, Any]:
    """Describe an answer in each of these formats; its JSON document is one of these."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    found: dict[str, Any] = {options.MEDIA_TYPES[form]: binary for form in forms if form != "json"}
    parts: list[Any] = [PydanticSchema(schema_class=one) for one in documents]
    found[options.MEDIA_TYPES["json"]] = {"schema": parts[0] if len(parts) == 1 else {"anyOf": parts}}
    return found


def _events() -> dict[str, Any]:
    said = (
        "Server-sent events: `progress` (ProgressAnswer) while the method runs, then one `answer` (ExplainAnswer) "
        "or one `error` (Problem). Closing the connection cancels the explanation."
    )
    return {MEDIA_TYPE: {"schema": {"type": "string", "description": said}}}


ANSWER_HEADERS = {
    "X-SeeWhy-Model": "Name of the model.",
    "X-SeeWhy-Method": "Name of the method.",
    "X-SeeWhy-Layers": "Paths of the layers used, separated by commas.",
    "X-SeeWhy-Target": "Indices of the explained classes, separated by commas.",
    "X-SeeWhy-Against": "Label of the class that they are contrasted with.",
    "X-SeeWhy-Label": "Their labels, percent-encoded where a header could not hold them.",
    "X-SeeWhy-Probability": "Their probabilities.",
    "X-SeeWhy-Diagnostics": "Codes of what a reader of the map should know, separated by commas.",
    "X-SeeWhy-Cost": "What the request counts in rate limits: 1 for a Grad-CAM by a model of 224×224 pixels, more for "
    "methods of many passes.",
    "Server-Timing": "Milliseconds of each stage: decode, queue, explain (or another), render, encode.",
    "X-Request-ID": "The id that the client gave the request, or one made for it; the log has it too.",
}
"""Headers of an answer about a picture, and what they say."""


def _headers() -> dict[str, Any]:
    return {name: {"description": said, "schema": {"type": "string"}} for name, said in ANSWER_HEADERS.items()}


def _etag() -> dict[str, Any]:
    return {"ETag": {"description": "Digest of everything that the answer depends on.", "schema": {"type": "string"}}}


def _json(answer: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": PydanticSchema(schema_class=answer)}}


def _problems(codes: tuple[int, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/problem+json": {"schema": PydanticSchema(schema_class=schemas.Problem)}}
    titles: dict[int, set[str]] = {}
    for kind in [*KINDS.values(), *HTTP_KINDS.values()]:
        titles.setdefault(kind.status, set()).add(kind.title)
    return {str(code): {"description": "; ".join(sorted(titles[code])), "content": content} for code in codes}
