"""What a session does at one parameter: the user's hooks in order, the records; frozen parameters thaw for it."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from seewhy.explainers.hooks.session import HookSession

Hook = Callable[..., Any]


class ParameterSite:
    """What a session does at one parameter: the user's hooks in the order of registration, then the records."""

    def __init__(self, session: "HookSession", parameter: Tensor) -> None:
        self.parameter = parameter
        self.hooks: dict[int, Hook] = {}
        self.records: list[tuple[dict[str, Tensor | None], str]] = []
        self._session = session
        _thaw(parameter)

    def close(self) -> None:
        """Forget the hooks, and freeze the parameter if it was frozen before."""
        self.hooks.clear()
        _freeze(self.parameter)

    def arrived(self, gradient: Tensor) -> Tensor | None:
        """Run the hooks on a gradient, and record it."""
        # On CPU the backward pass runs in the thread that started it, on CUDA in one of the device's.
        if self._session._thread is None or (gradient.device.type == "cpu" and not self._session._is_ours()):
            return None
        for hook in tuple(self.hooks.values()):
            replaced = hook(gradient)
            gradient = gradient if replaced is None else fitting(replaced, gradient)
        for found, name in self.records:
            found[name] = gradient.detach().clone()
        return gradient


_thawed: "WeakIdKeyDictionary" = WeakIdKeyDictionary()
"""Parameters that are frozen but for sessions: how many of these, and the `.grad` before the first."""
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
    found = tuple(replaced.shape) if isinstance(replaced, Tensor) else type(replaced).__name__
    shape = None if gradient is None else tuple(gradient.shape)
    raise ValueError(f"A hook returned {found} for a gradient of shape {shape}; return one of that shape, or None.")
