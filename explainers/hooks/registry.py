"""Shared state of the parts of a session: the thread that it sees, the running hook, and what to undo at its end.

A session owns one registry and hands it to its call sites, parameters and leaves, which know nothing else of it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from seewhy.explainers.hooks.kinds import CALL_KINDS, Kind
from seewhy.explainers.hooks.records import Call, Records
from seewhy.explainers.hooks.registered import ModuleHook
from seewhy.explainers.hooks.user_hooks import Hook, listed, name_of

_only = threading.local()
"""Only the registry in its attribute `registry` sees this thread's calls; without the attribute, all registries do."""


class Registry:
    """Registers hooks with PyTorch for one session, between `open` and `close`.

    Attributes:
        call: the call whose hook is running; None outside hooks and in hooks of parameters.
        records: records of the session, by kind and path: one entry per call, `Gradients` for those of gradients.
        parameter_grads: likewise by path and the parameter's name.
    """

    records: dict[Kind, Records]
    parameter_grads: dict[str, dict[str, Tensor | None]]

    def __init__(self) -> None:
        self.call: Call | None = None
        self._clear()
        self._thread: int | None = None
        self._handles: list[RemovableHandle] = []
        self._overwrites: list[Tensor] = []
        self._foreign: list[Tensor] | None = None
        self._misfits: dict[str, None] = {}

    @property
    def is_open(self) -> bool:
        """Whether hooks run."""
        return self._thread is not None

    def open(self) -> None:
        """Start to see the forward passes of this thread, with empty records."""
        self._thread = threading.get_ident()
        self.call = None
        self._clear()
        self._misfits.clear()

    def _clear(self) -> None:
        self.records, self.parameter_grads = {kind: Records() for kind in CALL_KINDS}, {}

    def remove_hooks(self) -> None:
        """Remove all hooks from PyTorch."""
        while self._handles:
            self._handles.pop().remove()

    def close(self) -> None:
        """Stop seeing forward passes, and drop all tensors but those of the records."""
        for tensor in self._overwrites:
            # Such a tensor may be the caller's, which must not keep our graph. A view cannot be detached, its base can.
            whole = tensor._base if tensor._is_view() else tensor
            if whole is not None and not whole.is_leaf:
                whole.detach_()
        self._overwrites.clear()
        self._foreign = None
        self._thread = None

    def sees_this_thread(self) -> bool:
        """Whether the code that runs in this thread belongs to the session."""
        return self._thread == threading.get_ident() and getattr(_only, "registry", self) is self

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hide this thread's forward passes from all other sessions."""
        before = vars(_only).copy()
        _only.registry = self
        try:
            yield
        finally:
            # Deleted, not set to None: a thread without the attribute is seen by all sessions.
            del _only.registry
            vars(_only).update(before)

    def run(self, call: Call, hook: Callable[..., Any], *args: Any) -> Any:
        """Run a user's hook for a call. Hooks nest: a hook may call modules."""
        outer, self.call = self.call, call
        try:
            return hook(*args)
        finally:
            self.call = outer

    def before_module(self, module: nn.Module, run: Callable[..., Any], with_kwargs: bool = False) -> None:
        """Register a function that PyTorch runs before a module."""
        self._handles.append(module.register_forward_pre_hook(ModuleHook(run), with_kwargs=with_kwargs))

    def after_module(
        self, module: nn.Module, run: Callable[..., Any], prepend: bool = False, always_call: bool = False
    ) -> None:
        """Register a function that PyTorch runs after a module."""
        hook = ModuleHook(run)
        self._handles.append(module.register_forward_hook(hook, prepend=prepend, always_call=always_call))

    def on_gradient(self, tensor: Tensor, run: Callable[[Tensor], Tensor | None]) -> None:
        """Register a function that PyTorch runs on the gradient of a tensor."""
        self._handles.append(tensor.register_hook(run))  # type: ignore[no-untyped-call]

    def note_written(self, tensor: Tensor) -> None:
        """Detach a tensor at the session's end: writing a module's change back to it gave it a graph."""
        self._overwrites.append(tensor)

    def keep_foreign(self) -> None:
        """Make `note_foreign` store its tensors from now on."""
        if self._foreign is None:
            self._foreign = []

    def note_foreign(self, tensors: Iterable[Tensor]) -> None:
        """Store tensors that no module returned: arguments of the model, and copies made by taps."""
        if self._foreign is not None:
            self._foreign += tensors

    def note_misfit(self, text: str) -> None:
        """Store that a hook changed the shape of what modules pass on, for `explain`; nothing if the text is empty."""
        if text:
            self._misfits[text] = None

    def explain(self, error: BaseException) -> None:
        """Add notes about hooks that changed shapes to an error, which may be a consequence."""
        for text in self._misfits:
            error.add_note(text)

    def is_foreign(self, tensor: Tensor) -> bool:
        """Whether `note_foreign` got this very tensor."""
        return any(tensor is other for other in self._foreign or ())  # `in` would compare values


class HookHandle:
    """One registration, at all the modules or parameters that it matched.

    Attributes:
        kind: the name of the method that registered the hook, such as ``after_forward``.
        hook: the hook.
        paths: paths of these modules or parameters, in the model's order.
    """

    def __init__(self, kind: str, hook: Hook, paths: tuple[str, ...], undo: list[Callable[[], object]]) -> None:
        self.kind = kind
        self.hook = hook
        self.paths = paths
        self._undo = undo

    def remove(self) -> None:
        """Remove the hook before the session ends; a second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "" if self._undo else ", removed"
        return f"HookHandle({self.kind}: {name_of(self.hook)} at {listed(self.paths)}{state})"
