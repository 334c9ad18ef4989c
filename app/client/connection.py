"""Requests to a service, whose problem documents become the exceptions that the library raises."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPErrorProcessor, OpenerDirector, Request, build_opener

import numpy as np

from seewhy.app.errors import KINDS, RETRY_AFTER, OverloadedError, ServiceError
from seewhy.explainers.errors import ExplainerError, OptionError, UnsupportedOperationError
from seewhy.models.errors import ModelError

_PROBLEM_TYPE = "urn:seewhy:problem:"
_FOREIGN = (AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that readers raise if an answer is not SeeWhy's."""

Result = TypeVar("Result")


class UnreachableError(ServiceError):
    """The service cannot be reached, or is not SeeWhy."""


class _AnyStatus(HTTPErrorProcessor):
    """Returns answers of each status: urllib follows redirects with the key, to any host, and turns POST into GET."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        return response

    https_response = http_response


class Connection:
    """A service at an address.

    Args:
        url: URL of the service, such as ``http://127.0.0.1:8000``.
        key: API key; None if the service needs none.
        timeout: seconds to wait for the service to send something.

    Raises:
        OptionError: the address is not an HTTP address, or the key has characters that keys cannot have.
    """

    def __init__(self, url: str, key: str | None, timeout: float) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise OptionError(f"{url!r} is not a service address; give one such as http://127.0.0.1:8000.", "url")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise OptionError("The API key has a line break or letters beyond ASCII; give it as it was issued.", "key")
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._headers = {"Accept": "application/json, application/problem+json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str, read: Callable[[Any], Result], **query: str | None) -> Result:
        """Return what `read` makes of the JSON of a route; options that are None are left out. Errors as `post`."""
        options = urlencode({name: value for name, value in query.items() if value is not None})
        return self._answer(Request(f"{self.url}{path}{'?' * bool(options)}{options}", headers=self._headers), read)

    def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], Result]) -> Result:
        """Send JSON to a route, and return what `read` makes of its JSON.

        Raises:
            ExplainerError, ModelError: as the library, with the same message.
            OptionError: an option cannot be sent as JSON.
            ServiceError: the service refuses the request, cannot be reached or is not SeeWhy.
        """
        headers = {**self._headers, "Content-Type": "application/json"}
        return self._answer(Request(f"{self.url}{path}", json.dumps(body, default=_plain).encode(), headers), read)

    def download(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Send JSON to a route, and return the file in its answer. Errors as `post`."""
        headers = {**self._headers, "Accept": "*/*", "Content-Type": "application/json"}
        request = Request(f"{self.url}{path}", json.dumps(body, default=_plain).encode(), headers)
        return self._answer(request, bytes, parse=bytes)

    def _answer(
        self, request: Request, read: Callable[[Any], Result], parse: Callable[[bytes], Any] = json.loads
    ) -> Result:
        try:
            with _opener().open(request, timeout=self._timeout) as response:
                content = response.read()
        except (HTTPException, OSError, UnicodeError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            message = f"The service at {self.url} cannot be reached: {reason}. Check its address and that it runs."
            raise UnreachableError(message) from error
        try:
            if response.status == 200:
                return read(parse(content))
            problem = exception_of(json.loads(content), response.headers.get("Retry-After", ""))
        except _FOREIGN as error:
            location = response.headers.get("Location")
            redirect = f"a redirect to {location}: if the service is there, give that address"
            hint = redirect if location else "which is not SeeWhy's: check the address"
            raise UnreachableError(f"{self.url} answered {response.status} {response.reason}, {hint}.") from error
        raise problem


@cache
def _opener() -> OpenerDirector:
    return build_opener(_AnyStatus)


def _plain(value: Any) -> Any:
    """Return NumPy's scalars and arrays as JSON has them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise OptionError(f"A service takes options that can be written as JSON, not {value!r}.", "")


def exception_of(problem: Mapping[str, Any], retry_after: str = "") -> Exception:
    """Return the exception of a problem document: the library's if it has one with that code, or a `ServiceError`.

    Args:
        retry_after: the header of that name.

    Raises:
        ValueError: the problem is not SeeWhy's. A document of another form raises what its reading raises.
    """
    code, detail = problem["type"].removeprefix(_PROBLEM_TYPE), str(problem["detail"])
    if code == problem["type"]:
        raise ValueError(f"{code!r} is not a problem type of SeeWhy.")
    faults: list[dict[str, str]] = problem.get("errors", [])
    field, fault = (faults[0]["field"], faults[0]["message"]) if faults else (None, detail)
    kinds = [kind for kind, entry in KINDS.items() if entry.code == code]
    kinds.sort(key=lambda kind: not issubclass(kind, ExplainerError | ModelError))
    kind = next((kind for kind in kinds if issubclass(kind, ExplainerError | ModelError | ServiceError)), ServiceError)
    if issubclass(kind, OptionError):
        return OptionError(detail, field or "", fault)
    if issubclass(kind, OverloadedError):
        return kind(detail, int(retry_after) if retry_after.isdecimal() else RETRY_AFTER)
    if issubclass(kind, ServiceError):
        return kind(detail, field)
    is_operation = issubclass(kind, UnsupportedOperationError)  # the detail names it
    error = UnsupportedOperationError(detail, operation="") if is_operation else kind(detail)
    if isinstance(error, ExplainerError):
        error.field = field
    return error
