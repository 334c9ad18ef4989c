"""Declarations of routes, read by OpenAPI, access control and content negotiation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, get_args

from flask import Flask, current_app, request
from pydantic import BaseModel

from seewhy.app.answers.schemas import Problem
from seewhy.app.errors import HTTP_KINDS, KINDS
from seewhy.app.pipeline.options import MEDIA_TYPES

View = TypeVar("View", bound=Callable[..., Any])
Schema = dict[str, Any]
"""A JSON schema of OpenAPI."""

BINARY: Schema = {"type": "string", "format": "binary"}


class SecondPicture(NamedTuple):
    """The second picture of a route."""

    name: str
    description: str
    is_required: bool = False


@dataclass(frozen=True)
class Protocol:
    """Common properties of the routes of a protocol.

    Attributes:
        error: schema of its errors.
        media_type: media type of its errors.
        titles: meanings of its error statuses; by default the titles in `errors.py`.
        reading: error statuses of all routes without a body.
        asking: error statuses of all routes with a body.
        parts: meanings of the variable parts of its paths.
    """

    error: type[BaseModel]
    media_type: str = "application/json"
    titles: Mapping[int, str] = field(default_factory=dict)
    reading: tuple[int, ...] = ()
    asking: tuple[int, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)

    def title(self, status: int) -> str:
        """Return the meaning of an error status."""
        kinds = (*KINDS.values(), *HTTP_KINDS.values())
        return self.titles.get(status) or "; ".join(sorted({kind.title for kind in kinds if kind.status == status}))


SEEWHY = Protocol(
    Problem, "application/problem+json", asking=tuple(sorted({kind.status for kind in KINDS.values()} - {404}))
)


@dataclass(frozen=True)
class Declaration:
    """Decorator that declares a view. A view without one is closed and undocumented.

    Attributes:
        summary: the answer in one line; empty if OpenAPI leaves the view out.
        description: further information for clients.
        option_names: names of the options that OpenAPI lists; empty for all.
        body: makes the schemas of its bodies by media type from those of its options; None for a picture with options.
        headers: request headers, as OpenAPI parameters.
        answers: schemas of its JSON answers; an answer matches one of them.
        forms: formats of its answers, if its options do not have any.
        media: schemas of further answers by media type, besides those of its formats.
        second: its second picture; None if it takes one alone.
        statuses: error statuses besides those of its protocol and those that follow from its path and options.
        has_tag: whether its answer has an ETag.
        is_open: whether it needs no key and counts against no limit.
        is_light: whether it is admitted however many requests are in flight. Open views are.
    """

    summary: str = ""
    description: str = ""
    options: type[BaseModel] | None = None
    option_names: tuple[str, ...] = ()
    body: Callable[[Mapping[str, Schema]], Mapping[str, Any]] | None = None
    headers: tuple[Schema, ...] = ()
    answers: tuple[type[BaseModel], ...] = ()
    forms: tuple[str, ...] = ()
    media: Mapping[str, Schema] = field(default_factory=dict)
    second: SecondPicture | None = None
    statuses: tuple[int, ...] = ()
    has_tag: bool = False
    is_open: bool = False
    is_light: bool = False
    protocol: Protocol = SEEWHY

    def __call__(self, view: View) -> View:
        """Attach the declaration to a view."""
        _DECLARATIONS[view] = self
        return view

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the response formats, the default first; only `json` if there is no choice."""
        fields = self.options.model_fields if self.options is not None else {}
        if self.forms or "format" not in fields:
            return self.forms or (("json",) if self.answers else ())
        return get_args(get_args(fields["format"].annotation)[0])  # of `Literal[...] | None`

    @property
    def media_types(self) -> list[str]:
        """Media types of the responses, those of the formats first."""
        return list(dict.fromkeys([*(MEDIA_TYPES[name] for name in self.formats), *self.media]))


_DECLARATIONS: dict[Callable[..., Any], Declaration] = {}
_UNDECLARED = Declaration()
_OPEN = Declaration(is_open=True)


def declaration_of(app: Flask, endpoint: str | None) -> Declaration:
    """Return the declaration of an endpoint's view; static files and unknown paths are open."""
    if endpoint is None or endpoint == "static":
        return _OPEN
    return _DECLARATIONS.get(app.view_functions[endpoint], _UNDECLARED)


def current_declaration() -> Declaration:
    """Return the declaration of this request's view."""
    return declaration_of(current_app, request.endpoint)
