"""The OpenAPI 3.1 document, made from the schemas that validate requests and answers, and from the catalogue."""

import re
from collections.abc import Iterable
from copy import deepcopy
from importlib.metadata import version
from typing import Any

from flask import Flask
from openapi_pydantic import OpenAPI
from openapi_pydantic.util import PydanticSchema, construct_open_api_with_schema_class
from pydantic import BaseModel
from werkzeug.routing import Rule

from seewhy.app.answers import schemas
from seewhy.app.errors import HTTP_KINDS, KINDS
from seewhy.app.http.declaration import Declaration, declaration_of
from seewhy.app.http.headers import ETAG, HEADERS
from seewhy.app.pipeline import options
from seewhy.explainers.methods.catalogue import METHODS

_EXAMPLES = {"layer": "blocks.6", "edits": [{"layer": "blocks.6", "op": "zero", "channels": [0, 1]}]}
_KEY = "Needed where whoever runs the service has set SEEWHY_API_KEYS."


def document(app: Flask) -> str:
    """Return the document of an application as JSON.

    The paths are those of its views with a summary, and those that `app.extensions["seewhy-paths"]` describes.
    """
    paths = _cut(own_paths(app) | app.extensions["seewhy-paths"]())
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
            "paths": _guarded(paths, paths.keys() - _open_paths(app)),
            "components": {
                "schemas": {"ProgressAnswer": schemas.ProgressAnswer.model_json_schema()},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": _KEY}},
            },
        }
    )
    return construct_open_api_with_schema_class(raw).model_dump_json(by_alias=True, exclude_unset=True)


def own_paths(app: Flask) -> dict[str, Any]:
    """Return what stands under `paths` of the views that are described by what they declare."""
    paths: dict[str, Any] = {}
    for rule in app.url_map.iter_rules():
        declared = declaration_of(app, rule.endpoint)
        if not declared.summary:
            continue
        if declared.options is not None and issubclass(declared.options, options.Options):
            described = _picture(declared.options, declared)
        else:
            described = _get(sorted(rule.arguments), declared)
        (verb,) = (rule.methods or set()) - {"HEAD", "OPTIONS"}
        operation = {"operationId": app.view_functions[rule.endpoint].__name__, "summary": declared.summary}
        paths.setdefault(_template(rule), {})[verb.lower()] = operation | described
    return paths


def _template(rule: Rule) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)


def _open_paths(app: Flask) -> set[str]:
    return {_template(rule) for rule in app.url_map.iter_rules() if declaration_of(app, rule.endpoint).is_open}


def _guarded(paths: dict[str, Any], closed: Iterable[str]) -> dict[str, Any]:
    """Describe on closed paths the key that they may need, and how they refuse a client without one."""
    refused = _problems((401, 429, 503))
    for path in closed:
        for described in paths[path].values():
            described["security"] = [{}, {"key": []}]
            answers = described["responses"]
            # Routes of other servers have errors in their own form.
            errors = {
                code: {**error, "content": answers.get("500", error)["content"]} for code, error in refused.items()
            }
            described["responses"] = errors | answers
    return paths


def _cut(paths: dict[str, Any]) -> dict[str, Any]:
    """Describe on routes with parameters the answer to too many of them, which is gunicorn's."""
    description = "A path and a query string of more than 4 kB; options may stand in the body."
    too_long = {"description": description, "content": {"text/html": {"schema": {"type": "string"}}}}
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        if operation["parameters"]:
            operation["responses"]["414"] = too_long
    return paths


def _get(names: list[str], declared: Declaration) -> dict[str, Any]:
    """Describe a route that reads; `names` are those of the parts of its path."""
    parts = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    statuses = {*declared.statuses, *((404,) if names else ()), *(() if declared.options is None else (422,))}
    return {
        "parameters": parts + ([] if declared.options is None else _query(declared.options)),
        "responses": {
            "200": {"description": "OK", "content": _content(declared)},
            **_problems(tuple(sorted(statuses))),
        },
    }


def _query(schema: type[BaseModel]) -> list[dict[str, Any]]:
    parameters = [_parameter(name, described) for name, described in _options_schema(schema)["properties"].items()]
    for parameter in parameters:
        for repeated in ("title", "description"):
            parameter["schema"].pop(repeated, None)
    return parameters


def _picture(schema: type[options.Options], declared: Declaration) -> dict[str, Any]:
    """Describe a route that takes a picture, and perhaps another one."""
    described = _options_schema(schema)
    properties: dict[str, Any] = described["properties"]
    required: list[str] = described.get("required", [])
    pictures = {"image": "JPEG, PNG, WebP, GIF, BMP or TIFF."} | ({"other": declared.other} if declared.other else {})
    binary = {
        name: {"type": "string", "format": "binary", "minLength": 1, "description": text}
        for name, text in pictures.items()
    }
    base64 = {
        name: {"type": "string", "contentEncoding": "base64", "description": f"{text} As base64, or a data URL."}
        for name, text in pictures.items()
    }
    body = {"type": "object", "required": ["image"]}
    # A form has all the options as fields too; naming them here would make the page that tries it fill them all in.
    needed = {name: {"type": "string", "description": properties[name]["description"]} for name in required}
    form = {**body, "properties": binary | needed, "additionalProperties": True}
    content: dict[str, Any] = {
        "multipart/form-data": {"schema": {**form, "description": "Every option may be a field of the form as well."}},
        "application/json": {
            "schema": {
                **body,
                "properties": {**base64, **{name: _member(field) for name, field in properties.items()}},
            },
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
    headers = {
        header.name: {"description": header.description, "schema": {"type": "string"}}
        for header in (*HEADERS, *([ETAG] if declared.has_tag else []))
    }
    unchanged = {"304": {"description": "If-None-Match named this answer's ETag."}} if declared.has_tag else {}
    return {
        "description": description,
        "parameters": [_parameter(name, schema) for name, schema in properties.items()],
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {"description": "OK", "headers": headers, "content": _content(declared)},
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


def _options_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of the options, with defaults in words only: a form would fill them in, and send them."""
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


def _content(declared: Declaration) -> dict[str, Any]:
    """Describe the answers of a route by media type."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    content: dict[str, Any] = {options.MEDIA_TYPES[name]: binary for name in declared.formats if name != "json"}
    if declared.answers:
        documents: list[Any] = [PydanticSchema(schema_class=answer) for answer in declared.answers]
        content[options.MEDIA_TYPES["json"]] = {"schema": documents[0] if len(documents) == 1 else {"anyOf": documents}}
    return content | {media: {"schema": schema} for media, schema in declared.media.items()}


def _problems(codes: tuple[int, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/problem+json": {"schema": PydanticSchema(schema_class=schemas.Problem)}}
    titles: dict[int, set[str]] = {}
    for kind in [*KINDS.values(), *HTTP_KINDS.values()]:
        titles.setdefault(kind.status, set()).add(kind.title)
    return {str(code): {"description": "; ".join(sorted(titles[code])), "content": content} for code in codes}
