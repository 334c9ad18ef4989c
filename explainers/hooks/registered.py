"""The objects that PyTorch holds as our hooks; in copies and saved files of a module they turn into placeholders."""

import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from torch import nn


class _Placeholder:
    """In a copy of a module it becomes a `_Leftover`, in a saved file a function of the standard library."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Leftover":
        return _Leftover()

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments and returns None.
        return getattr, (nullcontext(), "__exit__")


class ModuleHook(_Placeholder):
    """A hook on a module.

    Args:
        run: what PyTorch calls.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._thread = threading.get_ident()

    @property
    def is_elsewhere(self) -> bool:
        """Whether it belongs to a session of another thread, and does nothing in this one."""
        return self._thread != threading.get_ident()

    def __call__(self, *args: Any) -> Any:
        """Run the hook."""
        return self._run(*args)


class _Leftover(_Placeholder):
    """Replaces a hook in a copied module; the first call of the copy removes all of these."""

    def __call__(self, module: nn.Module, *_: Any) -> None:
        """Remove all leftovers from the module."""
        # PyTorch iterates over the very dictionary of hooks that run after an error: removing one then would break it.
        if not any(module._forward_hooks.get(key) is self for key in module._forward_hooks_always_called):
            remove_leftovers(module)


def remove_leftovers(module: nn.Module) -> None:
    """Remove the placeholders of our hooks from a module, not from its submodules."""
    for hooks, *details in (
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
    ):
        for key, hook in list(hooks.items()):
            if isinstance(hook, _Leftover) or isinstance(getattr(hook, "__self__", None), nullcontext):
                del hooks[key]
                for detail in details:
                    detail.pop(key, None)


def _hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    """Return a module's own hooks, of which PyTorch has no public list."""
    return module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks


def is_hooked(module: nn.Module) -> bool:
    """Whether a module itself has hooks that do something in this thread."""
    hooks = [hook for own in _hooks_of(module) for hook in own.values()]
    return not all(isinstance(hook, ModuleHook) and hook.is_elsewhere for hook in hooks)


def count_hooks(module: nn.Module) -> int:
    """Return the number of hooks on a module, its submodules and its parameters."""
    on_modules = sum(len(hooks) for part in module.modules() for hooks in _hooks_of(part))
    # PyTorch's type says bool where there is None or a dictionary.
    on_parameters: Iterable[Any] = (parameter._backward_hooks for parameter in module.parameters())
    return on_modules + sum(len(hooks) for hooks in on_parameters if hooks)
