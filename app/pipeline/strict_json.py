"""JSON parser that refuses repeated members."""

import json
from typing import Any


class RepeatedMemberError(ValueError):
    """A JSON object repeats the member `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the member {name[:100]!r} is repeated; give it once")
        self.name = name


def loads(text: str | bytes, **how: Any) -> Any:
    """Parse JSON, as `json.loads` does.

    Raises:
        RepeatedMemberError: an object repeats a member, so its value is ambiguous.
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
