"""JSON in which no member stands twice."""

import json
from typing import Any


class RepeatedMemberError(ValueError):
    """A member that stands twice in an object of JSON; `name` says which."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the member {name[:100]!r} stands twice; give it once")
        self.name = name


def loads(text: str | bytes, **how: Any) -> Any:
    """Return what JSON says, as `json.loads` does.

    Raises:
        RepeatedMemberError: which value is meant cannot be known.
        ValueError, RecursionError: it is no JSON, or nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unrepeated, **how)


def _unrepeated(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise RepeatedMemberError(name)
        found[name] = value
    return found
