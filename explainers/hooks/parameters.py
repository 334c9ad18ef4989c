"""The actions of a session at one parameter: run the user's hooks in order, record; meanwhile frozen parameters require
a gradient."""

import threading

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from seewhy.explainers.hooks.registry import Registry
from seewhy.explainers.hooks.user_hooks import Hook, fitting


class ParameterSite:
    """The actions of a session at one parameter: the user's hooks in the order of registration, then the records.

    Attributes:
        name: name of the parameter.
        parameter: the parameter.
        hooks: by registration key.
        records: pairs of a dictionary and the parameter's name in it.
    """

    def __init__(self, registry: Registry, name: str, parameter: Tensor) -> None:
        self.name = name
        self.parameter = parameter
        self.hooks: dict[int, Hook] = {}
        self.records: list[tuple[dict[str, Tensor | None], str]] = []
        self._registry = registry
        _thaw(parameter)
        registry.on_gradient(parameter, self._receive)

    def close(self) -> None:
        """Drop the hooks, and freeze the parameter if it was frozen before."""
        self.hooks.clear()
        _freeze(self.parameter)

    def _receive(self, gradient: Tensor | None) -> Tensor | None:
        """Run the hooks on a gradient, and record it."""
        if gradient is None:  # PyTorch also calls this if no gradient flows, behind a node that gives none
            return None
        # On the CPU the backward pass runs in the thread that started it, on CUDA in a thread of the device, so there
        # the thread does not tell whose backward pass this is.
        if not self._registry.is_open or (gradient.device.type == "cpu" and not self._registry.sees_this_thread()):
            return None
        for hook in tuple(self.hooks.values()):
            replacement = hook(gradient)
            if replacement is not None:
                place = f"parameter_gradient at {self.name!r}"
                gradient = fitting(replacement, gradient, hook, place).to(gradient.dtype)  # as PyTorch does elsewhere
        for record, name in self.records:
            record[name] = gradient.detach().clone()
        return gradient


_thawed: "WeakIdKeyDictionary" = WeakIdKeyDictionary()
"""Parameters that sessions have thawed: how many sessions, and the `.grad` before the first."""
_thawed_lock = threading.Lock()


def _thaw(parameter: Tensor) -> None:
    """Make a parameter require a gradient until the same number of `_freeze` calls."""
    with _thawed_lock:
        if parameter in _thawed:
            sessions, gradient = _thawed[parameter]
            _thawed[parameter] = sessions + 1, gradient
        elif not parameter.requires_grad:
            _thawed[parameter] = 1, parameter.grad
            parameter.grad = None
            parameter.requires_grad_()


def _freeze(parameter: Tensor) -> None:
    with _thawed_lock:
        if parameter in _thawed:
            sessions, gradient = _thawed[parameter]
            del _thawed[parameter]
            if sessions > 1:
                _thawed[parameter] = sessions - 1, gradient
            else:
                parameter.requires_grad_(False)
                parameter.grad = gradient
