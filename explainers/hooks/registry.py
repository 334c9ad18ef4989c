"""What the parts of a session share: whose forward passes it sees, which hook runs, and what its end undoes.

A session owns one registry and hands it to its call sites, parameters and cut, which know nothing else of the session.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from seewhy.explainers.hooks.records import Call, Records
from seewhy.explainers.hooks.registered import ModuleHook

_only = threading.local()
"""Has, as `registry`, the only one that sees what runs in this thread; nothing where all do."""


class Registry:
    """Registers hooks with PyTorch for one session, between `open` and `close`.

    Attributes:
        call: the call whose hook runs at this moment; None outside hooks and in hooks of parameters.
        records: what the session records.
    """

    def __init__(self) -> None:
        self.call: Call | None = None
        self.records = Records()
        self._thread: int | None = None
        self._handles: list[RemovableHandle] = []
        self._written: list[Tensor] = []
        self._foreign: list[Tensor] | None = None

    @property
    def is_open(self) -> bool:
        """Whether hooks run."""
        return self._thread is not None

    def open(self) -> None:
        """See the forward passes of this thread from now on, with empty records."""
        self._thread = threading.get_ident()
        self.call = None
        self.records = Records()

    def remove_hooks(self) -> None:
        """Take away all that was registered."""
        while self._handles:
            self._handles.pop().remove()

    def close(self) -> None:
        """See nothing any more, and forget all tensors but those of the records."""
        for tensor in self._written:
            # The caller's own may be among them. A view cannot be detached, but what it is a view of can.
            whole = tensor._base if tensor._is_view() else tensor
            if whole is not None and not whole.is_leaf:
                whole.detach_()
        self._written.clear()
        self._foreign = None
        self._thread = None

    def sees_this_thread(self) -> bool:
        """Whether what runs in this thread is the session's."""
        return self._thread == threading.get_ident() and getattr(_only, "registry", self) is self

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other session see what this thread runs in here."""
        before = vars(_only).copy()
        _only.registry = self
        try:
            yield
        finally:
            del _only.registry
            vars(_only).update(before)

    def run(self, call: Call, hook: Callable[..., Any], *args: Any) -> Any:
        """Run a user's hook for a call. Hooks nest, as one may run modules itself."""
        outer, self.call = self.call, call
        try:
            return hook(*args)
        finally:
            self.call = outer

    def before_module(self, module: nn.Module, run: Callable[..., Any], with_kwargs: bool = False) -> None:
        """Have PyTorch run a function before a module."""
        self._handles.append(module.register_forward_pre_hook(ModuleHook(run), with_kwargs=with_kwargs))

    def after_module(
        self, module: nn.Module, run: Callable[..., Any], prepend: bool = False, always_call: bool = False
    ) -> None:
        """Have PyTorch run a function after a module."""
        hook = ModuleHook(run)
        self._handles.append(module.register_forward_hook(hook, prepend=prepend, always_call=always_call))

    def on_gradient(self, tensor: Tensor, run: Callable[[Tensor], Tensor | None]) -> None:
        """Have PyTorch run a function on the gradient of a tensor."""
        self._handles.append(tensor.register_hook(run))  # type: ignore[no-untyped-call]

    def note_written(self, tensor: Tensor) -> None:
        """Detach a tensor at the end: it had no graph, and what a module wrote into it through a tap gave it one."""
        self._written.append(tensor)

    def keep_foreign(self) -> None:
        """Keep what `note_foreign` is given from now on."""
        if self._foreign is None:
            self._foreign = []

    def note_foreign(self, tensors: Iterable[Tensor]) -> None:
        """Note tensors that are no module's result: what the model was called with, and the copies that taps made."""
        if self._foreign is not None:
            self._foreign += tensors

    def is_foreign(self, tensor: Tensor) -> bool:
        """Whether `note_foreign` was given this very tensor."""
        return any(tensor is other for other in self._foreign or ())


class HookHandle:
    """One registration, at all the modules or parameters that it matched.

    Attributes:
        paths: where the hook is, in module order.
    """

    def __init__(self, paths: tuple[str, ...], undo: list[Callable[[], object]]) -> None:
        self.paths = paths
        self._undo = undo

    def remove(self) -> None:
        """Take the hook away now, before the session ends; a second time does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
