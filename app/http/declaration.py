"""What a route says of itself, once: OpenAPI, access control and content negotiation read it here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from flask import Flask, current_app, request
from pydantic import BaseModel

from seewhy.app.pipeline.options import MEDIA_TYPES

View = TypeVar("View", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """What a view is, declared by using this as its decorator. A view without one is closed and undocumented.

    Attributes:
        summary: what it answers, in one line; empty where OpenAPI leaves it out or describes it elsewhere.
        options: what validates its options.
        answers: schemas of its JSON; an answer fits one of them.
        media: schemas of its other answers by media type, beside those of the formats that its options offer.
        other: what its second picture is for; empty where it takes none.
        statuses: of its errors, beside those that follow from its path and options.
        has_tag: whether its answer has an ETag.
        is_open: whether it needs no key and counts against no limit.
        is_light: whether it is let in however many requests are being answered. Open ones are.
    """

    summary: str = ""
    options: type[BaseModel] | None = None
    answers: tuple[type[BaseModel], ...] = ()
    media: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    other: str = ""
    statuses: tuple[int, ...] = ()
    has_tag: bool = False
    is_open: bool = False
    is_light: bool = False

    def __call__(self, view: View) -> View:
        """Declare this of a view."""
        _DECLARATIONS[view] = self
        return view

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats that the options offer, the default one first; `json` alone where they offer none."""
        fields = self.options.model_fields if self.options is not None else {}
        if "format" in fields:
            return get_args(get_args(fields["format"].annotation)[0])  # of `Literal[...] | None`
        return ("json",) if self.answers else ()

    @property
    def media_types(self) -> list[str]:
        """Media types of its answers, those of the formats first."""
        return [*(MEDIA_TYPES[name] for name in self.formats), *self.media]


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
