"""The OpenAPI 3.1 document, made from the declarations of the views and the schemas that validate requests."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from flask import Flask
from openapi_pydantic import OpenAPI
from openapi_pydantic.util import PydanticSchema, construct_open_api_with_schema_class
from werkzeug.routing import Rule

from seewhy.app.answers import schemas
from seewhy.app.http.declaration import BINARY, SEEWHY, Declaration, Schema, declaration_of
from seewhy.app.http.headers import ETAG, HEADERS
from seewhy.app.pipeline import options
from seewhy.explainers.methods.catalogue import METHODS, get_method, list_methods

_EXAMPLES = {"layer": "blocks.6", "edits": [{"layer": "blocks.6", "op": "zero", "channels": [0, 1]}]}
_KEY = "Required if the operator has set SEEWHY_API_KEYS."
_PICTURE = "JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF."
_OPTIONS = (
    "Options go in the query string, in form fields or in members of the JSON object; repeat an option to pass a list."
)
_TOO_LONG = "The path and query string exceed 4 kB; options can go in the body."
_TAGS = {
    "pictures": ("Pictures", "Explain, predict, detect, segment, compare and measure."),
    "hooks": ("Hooks", "See, record and change what passes through a model."),
    "catalogue": ("Catalogue", "Models, their layers, methods and colour maps."),
    "health": ("Operations", "Probes and metrics."),
    "pages": ("Pages", "The web page and the documentation of the routes."),
    "v1": ("KServe V1", "KServe's first protocol, also that of TensorFlow Serving."),
    "v2": ("Open Inference Protocol V2", "The protocol of KServe, Triton and MLServer."),
    "torchserve": ("TorchServe", "TorchServe's inference API."),
}
"""The tag of the routes of each blueprint, with its description, in the order in which Swagger UI shows them."""

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
            "tags": [{"name": name, "description": description} for name, description in _TAGS.values()],
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
    operation: dict[str, Any] = {
        "operationId": _identifier(rule, verb, declaration),
        "summary": declaration.summary,
        "tags": [_tag(rule)],
    }
    required = f" Required in either place: {', '.join(schema['required'])}." if schema.get("required") else ""
    if description := _OPTIONS + required if takes_picture else declaration.description:
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


def operation_link(app: Flask, endpoint: str) -> str:
    """Return the address of a view's operation on the page `/docs`; the view has one rule and one verb."""
    (rule,) = app.url_map.iter_rules(endpoint)
    (verb,) = (rule.methods or set()) - {"HEAD", "OPTIONS"}
    return f"/docs#/{quote(_tag(rule))}/{_identifier(rule, verb, declaration_of(app, endpoint))}"


def _tag(rule: Rule) -> str:
    return _TAGS[str(rule.endpoint).partition(".")[0]][0]


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
    examples = {name: _EXAMPLES[name] for name in required}
    fields = {
        name: {
            "type": "string",
            "description": properties[name]["description"],
            "example": value if isinstance(value, str) else json.dumps(value),
        }
        for name, value in examples.items()
    }
    form = {**body, "properties": binary | fields, "additionalProperties": True}
    members = {name: _member(option) for name, option in properties.items()}
    content: dict[str, Any] = {
        "multipart/form-data": {"schema": {**form, "description": "Every option can also be a form field."}},
        "application/json": {
            "schema": {**body, "properties": base64 | members},
            "example": {**dict.fromkeys(needed, "aGVsbG8="), **examples},
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


_WORDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
_MERGED = {*_WORDS, "enum"}
"""Schema members in which methods may differ while their option still has one schema."""

_TEXTS = {"title", "description", "default"}


def method_options() -> dict[str, Schema]:
    """Return the schema of each option of methods, except their layers, in the order of the catalogue.

    A schema accepts what any of its methods accepts; the description gives the bounds and the default of each method.
    """
    options: dict[str, dict[str, Schema]] = {}
    for method in map(get_method, list_methods()):
        for name, schema in method.options.items():
            if name != "layers":
                options.setdefault(name, {})[method.name] = schema
    return {name: _option_schema(schemas) for name, schemas in options.items()}


def _option_schema(schemas: dict[str, Schema]) -> Schema:
    """Return the union of the schemas of an option, given by method name."""
    union = _union([{name: schema[name] for name in schema if name not in _TEXTS} for schema in schemas.values()])
    texts: dict[str, list[str]] = {}
    for method, schema in schemas.items():
        texts.setdefault(_text(schema, union), []).append(method)
    is_common = len(schemas) == len(METHODS) > 1 and len(texts) == 1
    lines = [f"{'All methods' if is_common else ', '.join(methods)}: {text}" for text, methods in texts.items()]
    title = next(iter(schemas.values())).get("title", "")
    return {**union, "title": title, "description": " ".join(lines)}


def _union(schemas: Sequence[Schema]) -> Schema:
    kinds = [{name: schema[name] for name in schema if name not in _MERGED} for schema in schemas]
    if any(kind != kinds[0] for kind in kinds):
        return {"anyOf": [schema for number, schema in enumerate(schemas) if schema not in schemas[:number]]}
    choices = [schema.get("enum", []) for schema in schemas]
    enum = {"enum": list(dict.fromkeys(value for values in choices for value in values))} if all(choices) else {}
    lower = _bound(schemas, min, "minimum", "exclusiveMinimum")
    return kinds[0] | enum | lower | _bound(schemas, max, "maximum", "exclusiveMaximum")


def _bound(schemas: Sequence[Schema], widest: Callable[[Iterable[Any]], Any], including: str, excluding: str) -> Schema:
    """Return the widest bound of the schemas at one end; nothing if one of them is unbounded there."""
    bounds = [(schema[name], name) for schema in schemas for name in (including, excluding) if name in schema]
    if len(bounds) < len(schemas):
        return {}
    end = widest(value for value, _ in bounds)
    return {including if (end, including) in bounds else excluding: end}


def _text(schema: Schema, union: Schema) -> str:
    """Return the contribution of a method's option to the union."""
    shared = {name for name in schema if union.get(name) == schema[name]}
    parts = [schema.get("description", "")]
    if "default" in schema:
        parts.append(f"Default {schema['default']!r}.")
    if "enum" in schema and set(schema["enum"]) != set(union.get("enum", [])):
        parts.append(f"One of {', '.join(map(str, schema['enum']))}.")
    bounds = [f"{word} {schema[name]}" for name, word in _WORDS.items() if name in schema and name not in shared]
    if bounds:
        parts.append(f"{', '.join(bounds).capitalize()}.")
    return " ".join(filter(None, parts))
