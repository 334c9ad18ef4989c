"""The description of a call, and its state from its start to the last of its gradients."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from seewhy.explainers.errors import near_matches
from seewhy.explainers.hooks.gradient_tap import Gradients, is_differentiable


class Records(dict[str, list[Any]]):
    """Records by the paths of modules; the error about a path without any says which there are."""

    def __missing__(self, path: str) -> list[Any]:
        hint = near_matches(path, self) or f"There are records of: {', '.join(map(repr, self)) or 'nothing'}."
        raise KeyError(f"Nothing was recorded of {path!r}. {hint}")


@dataclass(frozen=True, eq=False)
class Call:
    """The call of a module whose hook is running.

    Attributes:
        path: path of the module; the first one, if it has several names.
        module: the module itself.
        number: 0 for the module's first call since the session opened, and so on.
        again: whether gradient checkpointing repeats the call in a backward pass.
    """

    path: str
    module: nn.Module
    number: int
    again: bool = False


def recorded_arguments(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Return arguments as recorded: the only argument, or a tuple with the keywords as a last dict."""
    if kwargs:
        return (*args, kwargs)
    return args[0] if len(args) == 1 else args


class Frame:
    """A call from its start to the last of its gradients.

    Attributes:
        call: its description for hooks.
        kwargs: its keyword arguments.
        arguments: the leaves of all its arguments, before any tap; empty once the module has returned.
        grad_input, grad_output: the gradients that have arrived.
        awaits_output: whether a hook or record needs gradients.
        awaits_input: whether a tap of the inputs will run the full backward hooks.
        tapped: tapped tensors, the copies that the module got, and the version counters of these copies.
        replaced: likewise for tensors that hooks of ``shared=True`` replaced.
        versions: version counters of `arguments` before the module ran, which reveal in-place changes.
        outputs: the records of the output, and the call's index in each.
        finished: keys of the hooks after the module that have run.
    """

    def __init__(self, call: Call, kwargs: Any, arguments: list[Any]) -> None:
        self.call = call
        self.kwargs = kwargs
        self.arguments = arguments
        self.grad_input = Gradients()
        self.grad_output = Gradients()
        self.awaits_output = False
        self.awaits_input = False
        self.tapped: list[tuple[Tensor, Tensor, int]] = []
        self.replaced: list[tuple[Tensor, Tensor, int]] = []
        self.versions: list[int] = []
        self.outputs: list[tuple[list[Any], int]] = []
        self.finished: set[int] = set()

    def note_versions(self) -> None:
        """Store the version counters of the arguments, before the module runs."""
        self.versions = [
            leaf._version if is_differentiable(leaf) and not leaf.is_inference() else 0 for leaf in self.arguments
        ]

    def release(self) -> None:
        """Drop the tensors that taps and hooks replaced."""
        self.tapped.clear()
        self.replaced.clear()
