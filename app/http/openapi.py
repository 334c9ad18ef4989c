"""The OpenAPI 3.1 document, made from the declarations of the views and the schemas that validate requests."""

import re
from collections.abc import Iterable
from copy import deepcopy
from importlib.metadata import version
from typing import Any

from flask import Flask
from openapi_pydantic import OpenAPI
from openapi_pydantic.util import PydanticSchema, construct_open_api_with_schema_class
from werkzeug.routing import Rule

from seewhy.app.answers import schemas
from seewhy.app.http.declaration import BINARY, SEEWHY, Declaration, Schema, declaration_of
from seewhy.app.http.headers import ETAG, HEADERS
from seewhy.app.http.method_options import method_options
from seewhy.app.pipeline import options

_EXAMPLES = {"layer": "blocks.6", "edits": [{"layer": "blocks.6", "op": "zero", "channels": [0, 1]}]}
_KEY = "Required if the operator has set SEEWHY_API_KEYS."
_PICTURE = "JPEG, PNG, WebP, GIF, BMP or TIFF."
_OPTIONS = (
    "Options go in the query string, in form fields or in members of the JSON object; repeat an option to pass a list."
)
_TOO_LONG = "The path and query string exceed 4 kB; options can go in the body."
_CLOSED = (401, 429, 503)
"""Statuses for a client without a valid key, for one over its rate limit, and while the keys cannot be read."""


def document(app: Flask) -> str:
    """Return an application's document as JSON, with all views that declare a summary."""
    raw = OpenAPI.model_validate(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "SeeWhy",
                "version": version("seewhy"),
                "summary": "Post a picture and get a heatmap of where the model looked.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "paths": _paths(app),
            "components": {
                "schemas": {"ProgressAnswer": schemas.ProgressAnswer.model_json_schema()},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": _KEY}},
            },
        }
    )
    return construct_open_api_with_schema_class(raw).model_dump_json(by_alias=True, exclude_unset=True)


def _paths(app: Flask) -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        declaration = declaration_of(app, rule.endpoint)
        if declaration.summary:
            path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
            verbs = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
            paths.setdefault(path, {}).update({verb.lower(): _operation(rule, verb, declaration) for verb in verbs})
    return paths


def _operation(rule: Rule, verb: str, declaration: Declaration) -> dict[str, Any]:
    """Describe the operation of a rule and a verb."""
    schema = _options_schema(declaration)
    properties: dict[str, Schema] = schema["properties"]
    is_reading = verb == "GET"
    takes_picture = not is_reading and declaration.body is None
    parameters = [
        *(_part(name, declaration) for name in sorted(rule.arguments)),
        *(_parameter(name, option, bare=is_reading) for name, option in properties.items()),
        *declaration.headers,
    ]
    operation: dict[str, Any] = {"operationId": _identifier(rule, verb, declaration), "summary": declaration.summary}
    if description := _picture_description(schema) if takes_picture else declaration.description:
        operation["description"] = description
    operation["parameters"] = parameters
    if not is_reading:
        content = _picture_body(schema, declaration) if declaration.body is None else declaration.body(properties)
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = _responses(_statuses(rule, is_reading, declaration), takes_picture, declaration)
    if parameters:
        operation["responses"]["414"] = {
            "description": _TOO_LONG,
            "content": {"text/html": {"schema": {"type": "string"}}},  # gunicorn's
        }
    return operation if declaration.is_open else operation | {"security": [{}, {"key": []}]}


def _identifier(rule: Rule, verb: str, declaration: Declaration) -> str:
    """Return the id of an operation: the name of the view; for other protocols with that of its module."""
    endpoint = str(rule.endpoint)
    if declaration.protocol is SEEWHY:
        return endpoint.rpartition(".")[2]
    ends = (("_version", "version" in rule.arguments), ("_put", verb == "PUT"))
    return endpoint.replace(".", "_") + "".join(end for end, has_it in ends if has_it)


def _part(name: str, declaration: Declaration) -> dict[str, Any]:
    text = declaration.protocol.parts.get(name)
    description = {} if text is None else {"description": text}
    return {"name": name, "in": "path", "required": True, **description, "schema": {"type": "string"}}


def _statuses(rule: Rule, is_reading: bool, declaration: Declaration) -> set[int]:
    """Return the error statuses of a rule."""
    statuses = {*declaration.statuses, *(() if declaration.is_open else _CLOSED)}
    if not is_reading:
        return statuses.union(declaration.protocol.asking)
    if declaration.protocol is SEEWHY:
        statuses.update((404,) if rule.arguments else (), () if declaration.options is None else (422,))
    return statuses.union(declaration.protocol.reading)


def _responses(statuses: Iterable[int], takes_picture: bool, declaration: Declaration) -> dict[str, Any]:
    tag = [ETAG] if declaration.has_tag else []
    headers = {
        header.name: {"description": header.description, "schema": {"type": "string"}} for header in (*HEADERS, *tag)
    }
    success = {"description": "OK", "content": _content(declaration)} | ({"headers": headers} if takes_picture else {})
    not_modified = (
        {"304": {"description": "If-None-Match matches the ETag of this response."}} if declaration.has_tag else {}
    )
    protocol = declaration.protocol
    error: dict[str, Any] = {protocol.media_type: {"schema": PydanticSchema(schema_class=protocol.error)}}
    errors = {str(status): {"description": protocol.title(status), "content": error} for status in sorted(statuses)}
    return {"200": success, **not_modified, **errors}


def _picture_description(schema: Schema) -> str:
    required = schema.get("required", [])
    return f"{_OPTIONS} Required in either place: {', '.join(required)}." if required else _OPTIONS


def _picture_body(schema: Schema, declaration: Declaration) -> dict[str, Any]:
    """Describe the bodies of a route that takes one picture or two."""
    properties: dict[str, Schema] = schema["properties"]
    required: list[str] = schema.get("required", [])
    second = declaration.second
    pictures = {"image": _PICTURE} | ({second.name: second.description} if second else {})
    needed = ["image", *([second.name] if second and second.is_required else [])]
    binary = {name: {**BINARY, "minLength": 1, "description": text} for name, text in pictures.items()}
    base64 = {
        name: {"type": "string", "contentEncoding": "base64", "description": f"{text} Base64, or a data URL."}
        for name, text in pictures.items()
    }
    body = {"type": "object", "required": needed}
    # A form may have all options as fields too, but if they were listed, Swagger UI would fill them all in.
    fields = {name: {"type": "string", "description": properties[name]["description"]} for name in required}
    form = {**body, "properties": binary | fields, "additionalProperties": True}
    members = {name: _member(option) for name, option in properties.items()}
    content: dict[str, Any] = {
        "multipart/form-data": {"schema": {**form, "description": "Every option can also be a form field."}},
        "application/json": {
            "schema": {**body, "properties": base64 | members},
            "example": {**dict.fromkeys(needed, "aGVsbG8="), **{name: _EXAMPLES[name] for name in required}},
        },
    }
    return content if len(needed) > 1 else content | {"image/*": {"schema": binary["image"]}}


def _member(schema: dict[str, Any]) -> dict[str, Any]:
    """Describe an option as a member of a JSON object, where a list of one item may be sent as the item."""
    if schema.get("type") != "array" or "discriminator" in schema["items"]:
        return schema
    texts = {name: value for name, value in schema.items() if name in ("title", "description")}
    return {"anyOf": [schema["items"], {name: schema[name] for name in schema if name not in texts}], **texts}


def _parameter(name: str, schema: Schema, bare: bool) -> dict[str, Any]:
    """Describe an option as a query parameter; `bare` omits from its schema what the parameter says."""
    parameter = {
        "name": name,
        "in": "query",
        "description": schema.get("description", ""),
        "allowEmptyValue": True,
    }
    if name == "edits":
        return {**parameter, "content": {"application/json": {"schema": deepcopy(schema)}}}
    texts = ("title", "description") if bare else ()
    return {**parameter, "schema": deepcopy({key: value for key, value in schema.items() if key not in texts})}


def _options_schema(declaration: Declaration) -> Schema:
    """Return the schema of the options, with defaults only in descriptions: Swagger UI would send them."""
    if declaration.options is None:
        return {"properties": {}}
    schema = declaration.options.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)  # they are among the document's own
    for field in schema["properties"].values():
        default = field.pop("default", None)
        if default not in (None, []):
            field["description"] = f"{field.get('description', '')} Default {default!r}."
        kinds = [kind for kind in field.get("anyOf", []) if kind != {"type": "null"}]
        if len(kinds) == 1:
            field.pop("anyOf")
            field.update(kinds[0])
    if declaration.option_names:
        schema["properties"] = {name: schema["properties"][name] for name in declaration.option_names}
    elif issubclass(declaration.options, options.MethodOptions):
        for name, option in method_options().items():
            schema["properties"].setdefault(name, option)
    return schema


def _content(declaration: Declaration) -> dict[str, Any]:
    """Describe the answers of a route by media type; JSON first, for generators of clients take the first they know."""
    content: dict[str, Any] = {}
    if declaration.answers:
        documents: list[Any] = [PydanticSchema(schema_class=answer) for answer in declaration.answers]
        content[options.MEDIA_TYPES["json"]] = {"schema": documents[0] if len(documents) == 1 else {"anyOf": documents}}
    content |= {options.MEDIA_TYPES[name]: {"schema": BINARY} for name in declaration.formats if name != "json"}
    return content | {media: {"schema": schema} for media, schema in declaration.media.items()}
