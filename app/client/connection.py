"""Requests to a service, whose problem documents become the exceptions that the library raises."""

import json
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from seewhy.app.errors import KINDS, RETRY_AFTER, OverloadedError, ServiceError
from seewhy.explainers.errors import ExplainerError, OptionError, UnsupportedOperationError
from seewhy.models.errors import ModelError

_PROBLEM = "application/problem+json"


class UnreachableError(ServiceError):
    """The service cannot be reached, or is none."""


class Connection:
    """A service at an address.

    Args:
        url: of the service, such as ``http://127.0.0.1:8000``.
        key: API key; None if the service needs none.
        timeout: seconds to wait for the service to send something.

    Raises:
        OptionError: the address is not one of HTTP.
    """

    def __init__(self, url: str, key: str | None, timeout: float) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise OptionError(f"{url!r} is no address of a service; give one such as http://127.0.0.1:8000.", "url")
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._headers = {"Accept": f"application/json, {_PROBLEM}"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str, **query: str | None) -> Any:
        """Return the JSON of a route; options that are None are left out. Errors as `post`."""
        options = urlencode({name: value for name, value in query.items() if value is not None})
        return self._answer(Request(f"{self.url}{path}{'?' * bool(options)}{options}", headers=self._headers))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send JSON to a route, and return its JSON.

        Raises:
            ExplainerError, ModelError: as the library, with the same message.
            ServiceError: the service refuses the request, cannot be reached or is none.
        """
        headers = {**self._headers, "Content-Type": "application/json"}
        return self._answer(Request(f"{self.url}{path}", json.dumps(body).encode(), headers))

    def _answer(self, request: Request) -> Any:
        try:
            with urlopen(request, timeout=self._timeout) as response:  # nosec B310 - the scheme has been checked
                return self._read(response)
        except HTTPError as error:
            with error:
                raise self._exception(error) from None
        except (HTTPException, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise UnreachableError(f"The service at {self.url} cannot be reached: {reason}.") from error

    def _read(self, response: HTTPResponse) -> Any:
        try:
            return json.loads(response.read())
        except ValueError as error:
            raise UnreachableError(f"{self.url} is no SeeWhy service: its answer is not JSON.") from error

    def _exception(self, error: HTTPError) -> Exception:
        """Return the exception of an answer with an error status."""
        if error.headers.get_content_type() != _PROBLEM:
            return UnreachableError(f"{self.url} answered {error.code} {error.reason}, which is not SeeWhy's.")
        return exception_of(json.loads(error.read()), error.headers.get("Retry-After", str(RETRY_AFTER)))


def exception_of(problem: Mapping[str, Any], retry_after: str = str(RETRY_AFTER)) -> Exception:
    """Return the exception of a problem document: the library's where it has one of that code, or a `ServiceError`.

    Args:
        retry_after: the header of that name.
    """
    code, detail = str(problem["type"]).rpartition(":")[2], str(problem["detail"])
    faults: list[dict[str, str]] = problem.get("errors", [])
    field, fault = (faults[0]["field"], faults[0]["message"]) if faults else (None, detail)
    kinds = [kind for kind, entry in KINDS.items() if entry.code == code]
    kinds.sort(key=lambda kind: not issubclass(kind, ExplainerError | ModelError))
    kind = next((kind for kind in kinds if issubclass(kind, ExplainerError | ModelError | ServiceError)), ServiceError)
    if issubclass(kind, OptionError):
        return OptionError(detail, field or "", fault)
    if issubclass(kind, OverloadedError):
        return kind(detail, int(retry_after))
    if issubclass(kind, ServiceError):
        return kind(detail, field)
    is_operation = issubclass(kind, UnsupportedOperationError)  # the detail names it
    error = UnsupportedOperationError(detail, operation="") if is_operation else kind(detail)
    if isinstance(error, ExplainerError):
        error.field = field
    return error
