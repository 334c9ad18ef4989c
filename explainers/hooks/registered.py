"""What is registered on modules in PyTorch's place for a hook: it stays behind when the module is copied or saved."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from torch import nn


class _Uncopied:
    """Copies of a module get a `_Leftover` in its place, and files what does nothing and needs no import of ours."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Leftover":
        return _Leftover()

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments and returns None.
        return getattr, (nullcontext(), "__exit__")


class ModuleHook(_Uncopied):
    """A hook on a module.

    Args:
        run: what PyTorch calls.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *args: Any) -> Any:
        """Run the hook."""
        return self._run(*args)


class _Leftover(_Uncopied):
    """What a copied module has in a hook's place: they all go when the copy is called first."""

    def __call__(self, module: nn.Module, *_: Any) -> None:
        """Remove all of them from the module, as the first hook before its call does."""
        # PyTorch walks through the hooks themselves, and no copy, for those that are called after an error.
        if not any(module._forward_hooks.get(key) is self for key in module._forward_hooks_always_called):
            remove_leftovers(module)


def remove_leftovers(module: nn.Module) -> None:
    """Remove from a module, and not its submodules, what a copy or a file has in the place of our hooks."""
    for hooks, *details in (
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
    ):
        for key in [key for key, hook in list(hooks.items()) if _is_leftover(hook)]:
            del hooks[key]
            for detail in details:
                detail.pop(key, None)


def _is_leftover(hook: Any) -> bool:
    return isinstance(hook, _Leftover) or isinstance(getattr(hook, "__self__", None), nullcontext)


def count_hooks(module: nn.Module) -> int:
    """Return how many hooks are on a module, its submodules and its parameters."""
    on_modules = sum(
        len(hooks)
        for part in module.modules()
        for hooks in (part._forward_pre_hooks, part._forward_hooks, part._backward_pre_hooks, part._backward_hooks)
    )
    # PyTorch's type says bool where there is None or a dictionary.
    on_parameters: Iterable[Any] = (parameter._backward_hooks for parameter in module.parameters())
    return on_modules + sum(len(hooks) for hooks in on_parameters if hooks)
