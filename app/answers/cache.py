"""Whole answers by their tag, within a limit of bytes; the least recently used go first."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from seewhy.app.answers.stream import Body


@dataclass(frozen=True)
class Answer:
    """What a client is sent.

    Attributes:
        body: its bytes.
        mimetype: what they are.
        headers: those that are the same each time.
    """

    body: Body
    mimetype: str
    headers: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """Bytes that it takes at the most, without what Python adds."""
        body = len(self.body) if isinstance(self.body, bytes) else self.body.most
        return body + sum(len(name) + len(value) for name, value in self.headers)


class Cache:
    """Answers of this process, for all its threads.

    Args:
        limit: the most bytes that all answers together may take; with 0 none is kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tag: str) -> Answer | None:
        """Return the answer with this tag, if it is kept."""
        with self._lock:
            answer = self._answers.get(tag)
            if answer is not None:
                self._answers.move_to_end(tag)
            return answer

    def put(self, tag: str, answer: Answer) -> None:
        """Keep an answer in one piece, and drop others as the limit demands; one larger than the limit is not kept."""
        if answer.size > self.limit:
            return
        with self._lock:
            replaced = self._answers.pop(tag, None)
            self.size += answer.size - (replaced.size if replaced else 0)
            self._answers[tag] = answer
            while self.size > self.limit:
                _, oldest = self._answers.popitem(last=False)
                self.size -= oldest.size
