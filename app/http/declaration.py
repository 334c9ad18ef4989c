"""What a route says of itself, once: OpenAPI, access control and content negotiation read it here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from flask import Flask, current_app, request
from pydantic import BaseModel

from seewhy.app.answers.schemas import Problem
from seewhy.app.errors import HTTP_KINDS, KINDS
from seewhy.app.pipeline.options import MEDIA_TYPES

View = TypeVar("View", bound=Callable[..., Any])
Schema = dict[str, Any]
"""JSON schema, as OpenAPI has it."""

BINARY: Schema = {"type": "string", "format": "binary"}


@dataclass(frozen=True)
class Protocol:
    """What all routes of a protocol have in common.

    Attributes:
        error: schema of its errors.
        media_type: of its errors.
        titles: what statuses of its errors mean; by default what the titles in `errors.py` say.
        reading: statuses of errors of all routes without a body.
        asking: statuses of errors of all routes with a body.
        parts: what stands in each part of a path.
    """

    error: type[BaseModel]
    media_type: str = "application/json"
    titles: Mapping[int, str] = field(default_factory=dict)
    reading: tuple[int, ...] = ()
    asking: tuple[int, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)

    def title(self, status: int) -> str:
        """Return what a status of an error means."""
        kinds = (*KINDS.values(), *HTTP_KINDS.values())
        return self.titles.get(status) or "; ".join(sorted({kind.title for kind in kinds if kind.status == status}))


SEEWHY = Protocol(
    Problem, "application/problem+json", asking=tuple(sorted({kind.status for kind in KINDS.values()} - {404}))
)


@dataclass(frozen=True)
class Declaration:
    """What a view is, declared by using this as its decorator. A view without one is closed and undocumented.

    Attributes:
        summary: what it answers, in one line; empty where OpenAPI leaves it out.
        description: what else a client has to know.
        options: what validates its options.
        option_names: names of the options that OpenAPI lists; empty for all.
        body: makes the schemas of its bodies by media type from those of its options; None for a picture with options.
        headers: headers of its requests, as OpenAPI has parameters.
        answers: schemas of its JSON; an answer fits one of them.
        forms: formats of its answers, where its options do not offer any.
        media: schemas of its other answers by media type, beside those of its formats.
        other: what its second picture is for; empty where it takes none.
        statuses: of its errors, beside those of its protocol and those that follow from its path and options.
        has_tag: whether its answer has an ETag.
        is_open: whether it needs no key and counts against no limit.
        is_light: whether it is let in however many requests are being answered. Open ones are.
        protocol: which protocol it belongs to.
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
    other: str = ""
    statuses: tuple[int, ...] = ()
    has_tag: bool = False
    is_open: bool = False
    is_light: bool = False
    protocol: Protocol = SEEWHY

    def __call__(self, view: View) -> View:
        """Declare this of a view."""
        _DECLARATIONS[view] = self
        return view

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats of its answers, the default one first; `json` alone where there is no choice."""
        fields = self.options.model_fields if self.options is not None else {}
        if self.forms or "format" not in fields:
            return self.forms or (("json",) if self.answers else ())
        return get_args(get_args(fields["format"].annotation)[0])  # of `Literal[...] | None`

    @property
    def media_types(self) -> list[str]:
        """Media types of its answers, those of the formats first."""
        return list(dict.fromkeys([*(MEDIA_TYPES[name] for name in self.formats), *self.media]))


_DECLARATIONS: dict[Callable[..., Any], Declaration] = {}
_UNDECLARED = Declaration()
_OPEN = Declaration(is_open=True)


def declaration_of(app: Flask, endpoint: str | None) -> Declaration:
    """Return what the view of an endpoint declares; static files are open, and so are paths that lead nowhere."""
    if endpoint is None or endpoint == "static":
        return _OPEN
    return _DECLARATIONS.get(app.view_functions[endpoint], _UNDECLARED)


def current_declaration() -> Declaration:
    """Return what the view of this request declares."""
    return declaration_of(current_app, request.endpoint)
