"""Memory accounting: each request has an account, which counts its body and closes once the answer is sent."""

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flask import Response
from werkzeug.wsgi import ClosingIterator

from seewhy.app.http.bodies import SPARE
from seewhy.app.memory.account import Account, begin, current
from seewhy.app.memory.budget import ANSWER, BODY, MemoryBudget

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def keep_answer(response: Response) -> Response:
    """Keep only the memory of the answer while it is sent; a streamed answer keeps what it has reserved."""
    if not response.is_streamed:
        current().keep(min(current().holdings, response.content_length or 0), ANSWER)
    return response


class Accounting:
    """WSGI middleware: a request has an account from its headers until its response is sent or abandoned."""

    def __init__(self, inner: "WSGIApplication", budget: MemoryBudget) -> None:
        self._inner = inner
        self._budget = budget

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request."""
        account = Account(self._budget)
        begin(account)
        environ["wsgi.input"] = _CountedBody(environ["wsgi.input"], account)
        try:
            return AtEnd(self._inner(environ, start_response), account.close)
        except BaseException:
            account.close()
            raise


class _CountedBody(io.RawIOBase):
    """The body of a request, counted as it is read."""

    def __init__(self, inner: Any, account: Account) -> None:
        self._inner = inner
        self._account = account

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        piece: bytes = self._inner.read(len(view))
        self._account.take(len(piece) + len(piece) // SPARE, BODY)
        view[: len(piece)] = piece
        return len(piece)


class AtEnd(ClosingIterator):
    """An answer that calls a function, maybe several times, once it is sent, closed or dropped."""

    def __init__(self, inner: Iterable[Any], end: Callable[[], None]) -> None:
        self._end = end
        super().__init__(inner, end)

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except BaseException:  # also StopIteration: the client may see the end before the server closes the answer
            self._end()
            raise

    def __del__(self) -> None:
        self._end()
