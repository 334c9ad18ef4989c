"""JSON whose objects have no member twice."""

import json
from typing import Any


class RepeatedMemberError(ValueError):
    """An object of JSON has a member twice; `name` is that of the member."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the member {name[:100]!r} stands twice; give it once")
        self.name = name


def loads(text: str | bytes, **how: Any) -> Any:
    """Return the value of a JSON text, as `json.loads` does.

    Raises:
        RepeatedMemberError: an object has a member twice, so that nobody knows which value is meant.
        ValueError, RecursionError: the text is not JSON, or nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unrepeated, **how)


def _unrepeated(members: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for name, value in members:
        if name in unique:
            raise RepeatedMemberError(name)
        unique[name] = value
    return unique
