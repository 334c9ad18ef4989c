"""What a session does at one parameter: the user's hooks in order, the records; frozen parameters thaw for it."""

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from seewhy.explainers.hooks.registry import Registry

Hook = Callable[..., Any]


class ParameterSite:
    """What a session does at one parameter: the user's hooks in the order of registration, then the records.

    Attributes:
        parameter: the parameter.
        hooks: by the key of their registration.
        records: pairs of a dictionary and the name under which it takes the gradient.
    """

    def __init__(self, registry: Registry, parameter: Tensor) -> None:
        self.parameter = parameter
        self.hooks: dict[int, Hook] = {}
        self.records: list[tuple[dict[str, Tensor | None], str]] = []
        self._registry = registry
        _thaw(parameter)
        registry.on_gradient(parameter, self._arrived)

    def close(self) -> None:
        """Forget the hooks, and freeze the parameter if it was frozen before."""
        self.hooks.clear()
        _freeze(self.parameter)

    def _arrived(self, gradient: Tensor) -> Tensor | None:
        """Run the hooks on a gradient, and record it."""
        # On CPU the backward pass runs in the thread that started it, on CUDA in one of the device's.
        if not self._registry.is_open or (gradient.device.type == "cpu" and not self._registry.sees_this_thread()):
            return None
        for hook in tuple(self.hooks.values()):
            replaced = hook(gradient)
            gradient = gradient if replaced is None else fitting(replaced, gradient)
        for record, name in self.records:
            record[name] = gradient.detach().clone()
        return gradient


_thawed: "WeakIdKeyDictionary" = WeakIdKeyDictionary()
"""Parameters that only sessions thaw: how many sessions, and the `.grad` before the first."""
_thawed_lock = threading.Lock()


def _thaw(parameter: Tensor) -> None:
    """Make a parameter need a gradient until as many calls of `_freeze` have undone it."""
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


def fitting(replaced: Any, gradient: Tensor | None) -> Tensor:
    """Return a hook's gradient if it fits the one that it replaces."""
    if isinstance(replaced, Tensor) and (gradient is None or replaced.shape == gradient.shape):
        return replaced
    answer = tuple(replaced.shape) if isinstance(replaced, Tensor) else type(replaced).__name__
    shape = None if gradient is None else tuple(gradient.shape)
    raise ValueError(f"A hook returned {answer} for a gradient of shape {shape}; return one of that shape, or None.")
