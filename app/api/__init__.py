"""The routes, one module per kind of resource."""

from flask import current_app

from app.service import Service


def service() -> Service:
    """Return the service of the running application."""
    found: Service = current_app.extensions["seewhy"]
    return found
