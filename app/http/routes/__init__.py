"""The routes, one module per kind of resource."""

from typing import TypeVar, cast

from flask import current_app, request

from seewhy.app.errors import NotAcceptableError
from seewhy.app.http.declaration import current_declaration
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.liveness import Liveness
from seewhy.app.pipeline.options import MEDIA_TYPES

Form = TypeVar("Form", bound=str)


def service() -> Service:
    """Return the service of the running application."""
    pipeline: Service = current_app.extensions["seewhy"]
    return pipeline


def liveness() -> Liveness:
    """Return what tells whether this process is broken."""
    state: Liveness = current_app.extensions["seewhy-liveness"]
    return state


def format_of(name: Form | None) -> Form:
    """Return the format of the answer: the one that the options name, or else the one that Accept likes best.

    Args:
        name: one of the formats that the route declares.

    Raises:
        NotAcceptableError: the client accepts none of them.
    """
    declared = current_declaration()
    return name or negotiated(cast("tuple[Form, ...]", declared.formats), *declared.media)


def negotiated(forms: tuple[Form, ...], *media_types: str) -> Form:
    """Return the format that the client's Accept header likes best; the first where it has no preference.

    Args:
        forms: that can be made.
        media_types: media types that can be made too, and are not looked for here.

    Raises:
        NotAcceptableError: it accepts none of them.
    """
    if not request.accept_mimetypes:
        return forms[0]
    types = [MEDIA_TYPES[form] for form in forms]
    best = request.accept_mimetypes.best_match(types)
    if best is None:
        raise NotAcceptableError(f"Accept one of {', '.join([*types, *media_types])}, or say format={forms[0]}.")
    return forms[types.index(best)]
