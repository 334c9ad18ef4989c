"""Options of methods in the OpenAPI document: one schema for all methods with an option of the same name."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from seewhy.explainers.methods.catalogue import METHODS, get_method, list_methods

Schema = dict[str, Any]

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
