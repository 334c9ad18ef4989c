"""The answers of a process that cannot create its application, while no other process answers."""

from flask import Flask, Response, request

from seewhy.app.errors import RETRY_AFTER, NotReadyError
from seewhy.app.http.problems import problem_of
from seewhy.app.http.routes.health import alive

_NOTHING = "The server cannot start because a file that it needs is invalid; its log has the details. Try again later."


def unavailable() -> Flask:
    """Return an application that answers 503 to everything except `/healthz`."""
    app = Flask(__name__, static_folder=None)

    @app.before_request
    def refuse() -> Response:
        if request.path == "/healthz":
            return alive()
        response = problem_of(NotReadyError(_NOTHING))
        response.headers["Retry-After"] = str(RETRY_AFTER)
        return response

    return app
