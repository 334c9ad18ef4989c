"""Writes docs/reference/routes.md, a page of the site, from the service's /openapi.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seewhy.app import create_app
from seewhy.app.http.openapi import document
from seewhy.explainers.methods.catalogue import METHODS

PAGE = Path(__file__).parent / "reference" / "routes.md"
BOUNDS = {
    "minimum": "from {:g}",
    "exclusiveMinimum": "over {:g}",
    "maximum": "to {:g}",
    "exclusiveMaximum": "under {:g}",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}
WORDS = {"integer": "integer", "boolean": "`true` or `false`", "string": "string", "null": "null"}


def page() -> str:
    """Return the text of the page."""
    described = json.loads(document(create_app()))
    lines = [
        "# Routes",
        "",
        "Generated from `GET /openapi.json`. See [HTTP API](../http.md) for what a schema cannot express, and for all "
        "[error codes](../http.md#errors).",
        "",
    ]
    for path, operations in described["paths"].items():
        for verb, operation in operations.items():
            lines += _operation(verb, path, operation)
    lines += _headers(described["paths"])
    lines += ["## Objects", "", "The objects in JSON requests and responses.", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += _object(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _operation(verb: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from (f"## `{verb.upper()} {path}`", "", f"{operation['summary']}. {operation.get('description', '')}", "")
    of_methods = {name for method in METHODS.values() for name in method.options} - {"layers"}
    parameters = operation.get("parameters", [])
    own = [parameter for parameter in parameters if parameter["name"] not in of_methods or verb == "get"]
    if own:
        yield from ("| option | values | meaning |", "| --- | --- | --- |")
        for parameter in own:
            schema = parameter.get("schema") or parameter["content"]["application/json"]["schema"]
            yield _row(parameter["name"], schema, parameter.get("description", ""))
        yield ""
    if names := [f"`{parameter['name']}`" for parameter in parameters if parameter not in own]:
        yield from (f"Options of [methods](../methods.md): {', '.join(names)}.", "")
    if body := operation.get("requestBody"):
        yield from ("Request bodies: " + ", ".join(f"`{media}`" for media in body["content"]) + ".", "")
    errors: dict[str, list[str]] = {}
    for status, answer in operation["responses"].items():
        if int(status) >= 400:
            (form,) = answer["content"].values()
            errors.setdefault(_kind(form["schema"]), []).append(status)
        elif "content" in answer:
            yield from (f"Responses: {_content(answer['content'])}.", "")
        else:
            yield from (f"{status}: {answer['description']}", "")
    for kind, statuses in errors.items():
        yield from (f"Errors ({kind}): {', '.join(statuses)}.", "")
    if headers := operation["responses"].get("200", {}).get("headers"):
        yield from ("Response headers: " + ", ".join(f"`{name}`" for name in headers) + ".", "")


def _headers(paths: dict[str, Any]) -> Iterator[str]:
    answers = [route["responses"].get("200", {}) for operations in paths.values() for route in operations.values()]
    headers = {name: header for answer in answers for name, header in answer.get("headers", {}).items()}
    yield from ("## Headers", "", "| header | meaning |", "| --- | --- |")
    yield from (f"| `{name}` | {header['description']} |" for name, header in headers.items())
    yield ""


def _content(content: dict[str, Any]) -> str:
    parts = []
    for media, form in content.items():
        kind = _kind(form["schema"]) if "json" in media else ""
        parts.append(f"`{media}`: {kind}" if kind.startswith("[") else f"`{media}`")
    return ", ".join(parts)


def _object(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if "description" in schema:
        yield from (schema["description"], "")
    if schema.get("properties"):
        yield from ("| member | values | meaning |", "| --- | --- | --- |")
        for member, value_schema in schema["properties"].items():
            yield _row(member, value_schema, value_schema.get("description", ""))
        yield ""


def _row(name: str, schema: dict[str, Any], meaning: str) -> str:
    meaning = " ".join(meaning.split()).replace("|", "\\|")
    return f"| `{name}` | {_kind(schema)} | {meaning} |"


def _kind(schema: dict[str, Any]) -> str:
    """Describe the values that a schema allows."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_kind(variant) for variant in schema[several]))
    bounds = " ".join(text.format(schema[name]) for name, text in BOUNDS.items() if name in schema)
    if schema.get("type") == "array":
        items = _kind(schema["items"]) if "items" in schema else "values"
        return " ".join(filter(None, [f"list ({items})", bounds]))
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object ({_kind(schema['additionalProperties'])})"
    kind = schema.get("type", "any")
    return " ".join(filter(None, [WORDS.get(kind, kind), bounds]))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
