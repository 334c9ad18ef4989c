"""The records of a session, and the description of a call."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from seewhy.explainers.hooks.kinds import CALL_KINDS, Kind


@dataclass(frozen=True, eq=False)
class Call:
    """The call of a module whose hook is running.

    Attributes:
        path: of the module; the first one, if it has several names.
        module: the module itself.
        number: 0 for the module's first call since the session opened, and so on.
        again: whether gradient checkpointing repeats the call in a backward pass.
    """

    path: str
    module: nn.Module
    number: int
    again: bool = False


class Records:
    """The records of one session: by kind and path one entry per call, `Gradients` for those of gradients."""

    def __init__(self) -> None:
        self.by_kind: dict[Kind, dict[str, list[Any]]] = {kind: {} for kind in CALL_KINDS}
        self.parameter_grads: dict[str, dict[str, Tensor | None]] = {}

    def add(self, path: str, kinds: Iterable[Kind]) -> None:
        """Start empty records of a path; existing records stay."""
        for kind in kinds:
            if kind in self.by_kind:
                self.by_kind[kind].setdefault(path, [])

    def of(self, path: str, kinds: Iterable[Kind]) -> Iterator[tuple[Kind, list[Any]]]:
        """Yield the kind and the entries of each record of a path."""
        for kind, entries in self.by_kind.items():
            if kind in kinds:
                yield kind, entries[path]


def recorded_arguments(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Return arguments as recorded: the only argument, or a tuple with the keywords as a last dict."""
    if kwargs:
        return (*args, kwargs)
    return args[0] if len(args) == 1 else args
