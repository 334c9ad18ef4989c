"""What goes with one call of a module from its start to the last of its gradients."""

from typing import Any

from torch import Tensor

from seewhy.explainers.hooks.gradient_tap import Gradients, is_differentiable
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.hooks.records import Call


class Frame:
    """A call from its start to the last of its gradients.

    Attributes:
        call: what hooks are told of it.
        kwargs: its keyword arguments.
        arguments: the leaves of all its arguments, before any tap; emptied when the module has returned.
        grad_input, grad_output: the gradients that have arrived.
        awaits_output: whether anybody asks for gradients.
        awaits_input: whether a tap of the inputs will run the full backward hooks.
        tapped: the tensors that were tapped, the copies that the module got, and the versions of these.
        replaced: likewise the tensors that hooks replaced, for hooks that share changes.
        versions: of `arguments`, by which changes in place are seen.
        places: of the call in each record.
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
        self.places: dict[tuple[str, Kind], int] = {}
        self.finished: set[int] = set()

    def note_versions(self) -> None:
        """Note the arguments' versions, before the module may change them."""
        self.versions = [
            leaf._version if is_differentiable(leaf) and not leaf.is_inference() else 0 for leaf in self.arguments
        ]

    def overlook(self, tensor: Tensor, changes: int) -> None:
        """Do not take so many changes of an argument for the module's."""
        self.versions = [
            version + changes * (argument is tensor)
            for version, argument in zip(self.versions, self.arguments, strict=False)
        ]

    def record(self, kind: Kind) -> Gradients | None:
        """Return what stands for the record of this kind when the call starts."""
        return {"grad_input": self.grad_input, "grad_output": self.grad_output}.get(kind)

    def release(self) -> None:
        """Forget the tensors that taps and hooks replaced."""
        self.tapped.clear()
        self.replaced.clear()
