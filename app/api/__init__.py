"""The routes, one module per kind of resource."""

from typing import TypeVar

from flask import current_app, request

from app.errors import NotAcceptableError
from app.schemas import MEDIA_TYPES
from app.service import Service

Form = TypeVar("Form", bound=str)


def service() -> Service:
    """Return the service of the running application."""
    found: Service = current_app.extensions["seewhy"]
    return found


def negotiated(forms: tuple[Form, ...]) -> Form:
    """Return the format that the client's Accept header likes best; the first where it has no preference.

    Raises:
        NotAcceptableError: it accepts none of them.
    """
    if not request.accept_mimetypes:
        return forms[0]
    offered = [MEDIA_TYPES[form] for form in forms]
    best = request.accept_mimetypes.best_match(offered)
    if best is None:
        raise NotAcceptableError(f"Accept one of {', '.join(offered)}, or say which with format={forms[0]}.")
    return forms[offered.index(best)]
