"""Every hook of the product is registered here, and only between `__enter__` and `__exit__`.

A bare full backward hook wraps a module's output in a view that a later in-place operation may not touch,
so it raises on many modules of stock CNNs (``ReLU(inplace=True)``, ``out += identity``; pytorch#61519).
The *tap* avoids that: the tensor passes through an `nn.Identity` that carries the full backward hook, and
what the model gets is a clone of the tap's output, free to be modified. What the tap saw stays as it was.

The *cut* makes a layer's output a leaf of autograd: what runs before it runs without a graph, so nothing
is kept for backward there, frozen parameters do not matter, and no parameter ever gets a gradient.
"""

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.hooks import RemovableHandle

from explainers.errors import LayerError
from explainers.modules import as_module, match_paths

Kind = Literal["input", "output", "grad_input", "grad_output"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class _Gradients:
    """The gradients of one call, in the structure of the tensors they belong to; None until one arrives."""

    def __init__(self, tensors: Any) -> None:
        leaves, self._spec = tree_flatten(tensors)
        self._leaves: list[Tensor | None] = [None] * len(leaves)

    def receiver(self, index: int) -> Callable[[Tensor | None], None]:
        """Return the function that stores the gradient of leaf `index`."""

        def receive(gradient: Tensor | None) -> None:
            # A copy, for autograd may make the very tensor a leaf's `.grad`, and add to it in the next pass.
            self._leaves[index] = None if gradient is None else gradient.detach().clone()

        return receive

    def value(self) -> Any:
        """Return the gradients as a tensor, None, or the structure of the original."""
        return tree_unflatten(self._leaves, self._spec)


class HookSession:
    """Records what passes through the modules of a model, forward and backward, and then leaves no trace.

    >>> from torch import nn, ones
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(2))
    >>> with HookSession(model) as hooks:
    ...     paths = hooks.record("0")
    ...     model(ones(1, 3, 8, 8))[:, 1].sum().backward()
    >>> hooks.outputs["0"][0].shape, hooks.grad_outputs["0"][0].shape
    (torch.Size([1, 8, 6, 6]), torch.Size([1, 8, 6, 6]))

    Only forward passes of the thread that opened the session are seen, so sessions of several threads
    may share one module. Calling ``module.forward(x)`` instead of ``module(x)`` bypasses every hook.

    Args:
        module: the model, or a `LoadedModel`, whose submodules are to be watched.

    Raises:
        UnsupportedModuleError: the module is scripted, compiled or data-parallel.
    """

    def __init__(self, module: Any) -> None:
        self._module = as_module(module)
        self._modules = dict(self._module.named_modules(remove_duplicate=False))
        self._handles: list[RemovableHandle] = []
        self._thread: int | None = None
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._leaves: list[Any] = []  # tensors and gradient edges
        self._not_ours: list[Tensor] = []  # what the model was called with, and the taps' clones
        self._recorded: set[tuple[str, Kind]] = set()
        self._inputs: dict[str, list[Any]] = {}
        self._outputs: dict[str, list[Any]] = {}
        self._grad_inputs: dict[str, list[_Gradients]] = {}
        self._grad_outputs: dict[str, list[_Gradients]] = {}
        self._grad_mode: bool | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("The session is open already; make another one.")
        self._thread = threading.get_ident()
        self._start_afresh()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._leaves.clear()
        self._not_ours.clear()
        opener, self._thread = self._thread, None
        if self._grad_mode is not None:
            if opener != threading.get_ident():
                raise RuntimeError("Close a session in the thread that opened it: gradient mode belongs to a thread.")
            torch.set_grad_enabled(self._grad_mode)
            self._grad_mode = None

    @property
    def inputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: the argument, or the tuple of arguments (keywords as a last dict)."""
        return self._inputs

    @property
    def outputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: what the module returned, detached from the graph."""
        return self._outputs

    @property
    def grad_inputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: gradients in the structure of `inputs`; None where none flowed."""
        return {path: [call.value() for call in calls] for path, calls in self._grad_inputs.items()}

    @property
    def grad_outputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: gradients in the structure of `outputs`; None where none flowed."""
        return {path: [call.value() for call in calls] for path, calls in self._grad_outputs.items()}

    def record(self, *patterns: str, kinds: Iterable[Kind] = KINDS) -> tuple[str, ...]:
        """Record modules in every forward and backward pass until the session ends.

        What is recorded is made to need a gradient, so frozen models and plain inputs work. Under
        ``torch.no_grad()`` only inputs and outputs are recorded. Of several backward passes through one forward
        pass, the gradients of the last one stand.

        Args:
            patterns: dotted paths (``layer4.0.conv1``) or globs (``features.*``; ``*`` also matches dots).
                The empty string is the model itself.
            kinds: which of input, output, grad_input and grad_output to record.

        Returns:
            The matching paths, in the order in which the model lists its modules.

        Raises:
            LayerError: a pattern that matches nothing; the message lists near matches.
            RuntimeError: the session is not open.
        """
        self._require_open()
        wanted = frozenset(kinds)
        if unknown := wanted - set(KINDS):
            raise ValueError(f"Unknown kinds {sorted(unknown)}; choose from {', '.join(KINDS)}.")
        paths = match_paths(self._modules, patterns)
        for path in paths:
            module = self._modules[path]
            fresh = {kind for kind in wanted if (path, kind) not in self._recorded}
            self._recorded |= {(path, kind) for kind in fresh}
            if fresh & {"input", "grad_input"}:
                self._record_inputs(path, module, fresh)
            if fresh & {"output", "grad_output"}:
                self._record_outputs(path, module, fresh)
        return paths

    def watch(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        """Call `before(module, args)` and `after(module, args, output)` around every module that runs.

        Only the root's own submodules are watched, the root included, and only in this thread; what the
        two return is ignored.
        """
        self._require_open()

        def watch_before(module: nn.Module, args: Any) -> None:
            if self._is_ours():
                before(module, args)

        def watch_after(module: nn.Module, args: Any, output: Any) -> None:
            if self._is_ours():
                after(module, args, output)

        for module in self._module.modules():
            self._handles.append(module.register_forward_pre_hook(watch_before))
            self._handles.append(module.register_forward_hook(watch_after))

    def cut(self, *paths: str) -> None:
        """Make the outputs of these modules leaves of autograd, and run all before them without a graph.

        Gradients computed by `backward` end at these leaves. Made for one forward pass. Where parameters ask for
        gradients, gradient mode is off in this thread until the first of the modules has run; it is put back
        as it was when the session ends.

        Raises:
            LayerError: a path that the model lacks.
        """
        self._require_open()
        matched = match_paths(self._modules, paths)
        if self._grad_mode is None:
            self._grad_mode = torch.is_grad_enabled()
            # Frozen parameters make no graph anyway, and then a model that runs its backbone under
            # `torch.no_grad()` comes out of that block with gradients on.
            torch.set_grad_enabled(not any(value.requires_grad for value in self._module.parameters()))

        kept = {id(value) for value in (*self._module.parameters(), *self._module.buffers())}

        def note_arguments(_module: nn.Module, args: Any) -> None:
            if self._is_ours():
                self._not_ours += [value for value in tree_flatten(args)[0] if isinstance(value, Tensor)]

        def make_leaves(_module: nn.Module, args: Any, output: Any) -> Any:
            if not self._is_ours():
                return None
            torch.set_grad_enabled(True)
            values, spec = tree_flatten(output)
            before_the_cut = not self._leaves
            for index, value in enumerate(values):
                if not _is_differentiable(value):
                    continue
                if before_the_cut or not value.requires_grad:
                    mine = id(value) not in kept and not _is_one_of(value, self._not_ours)
                    leaf, values[index] = _leaf(value, mine and _is_one_of(value, args))
                    self._leaves.append(leaf)
                else:
                    # It may depend on an earlier leaf. The edge stays that of today's value if it is modified in place.
                    self._leaves.append(get_gradient_edge(value))
            return tree_unflatten(values, spec)

        self._handles.append(self._module.register_forward_pre_hook(note_arguments))
        for path in matched:
            self._handles.append(self._modules[path].register_forward_hook(make_leaves, prepend=True))

    def backward(self, score: Tensor) -> None:
        """Run autograd from a scalar score back to the cut and no further; no ``.grad`` is written.

        Args:
            score: a scalar tensor computed from the model's output.

        Raises:
            LayerError: no gradient flows from the score to the layers of the cut.
        """
        if not self._leaves:
            raise LayerError("The layer did not run in this forward pass; choose one that the model uses.")
        if not score.requires_grad:
            raise LayerError(
                "No gradient flows from the logits to the layer: the model switches gradients off, or "
                "detaches, after it. Freeze the parameters (`module.requires_grad_(False)`), or choose a layer "
                "nearer the output."
            )
        torch.autograd.grad(score, self._leaves, allow_unused=True)

    def _require_open(self) -> None:
        if self._thread is None:
            raise RuntimeError("The session is not open; use `with HookSession(module) as hooks:`.")

    def _is_ours(self) -> bool:
        return self._thread == threading.get_ident()

    def _record_inputs(self, path: str, module: nn.Module, kinds: set[Kind]) -> None:
        inputs = self._inputs.setdefault(path, []) if "input" in kinds else None
        gradients = self._grad_inputs.setdefault(path, []) if "grad_input" in kinds else None
        running: list[list[tuple[Tensor, Tensor]]] = []

        # Without keywords it is called for another thread, in the moment in which this session ends.
        def before(_module: nn.Module, args: Any, kwargs: Any = None) -> Any:
            if not self._is_ours():
                return None
            if gradients is not None:
                gradients.append(_Gradients(_arguments(args, kwargs)))
                if torch.is_grad_enabled():
                    leaves, spec = tree_flatten((args, kwargs))
                    tapped, given = _tap_all(leaves, gradients[-1])
                    running.append([(old, new) for old, new in zip(leaves, given, strict=True) if old is not new])
                    self._not_ours += [new for _, new in running[-1]]
                    if inputs is not None:
                        # Whoever else holds the input may yet modify it in place.
                        inputs.append(_copied(_arguments(*tree_unflatten(tapped, spec))))
                    return tree_unflatten(given, spec)
            running.append([])
            if inputs is not None:
                inputs.append(_copied(_arguments(args, kwargs)))
            return None

        def after(_module: nn.Module, _args: Any, _output: Any) -> None:
            # A module that modifies its input in place modified our clone: whoever else holds the original
            # must see the change too, as without hooks.
            if self._is_ours() and running:
                for original, clone in running.pop():
                    if clone._version > 0:
                        original.copy_(clone)

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after))

    def _record_outputs(self, path: str, module: nn.Module, kinds: set[Kind]) -> None:
        outputs = self._outputs.setdefault(path, []) if "output" in kinds else None
        gradients = self._grad_outputs.setdefault(path, []) if "grad_output" in kinds else None

        def after(_module: nn.Module, args: Any, output: Any) -> Any:
            if not self._is_ours():
                return None
            if gradients is not None:
                gradients.append(_Gradients(output))
                if torch.is_grad_enabled():
                    leaves, spec = tree_flatten(output)
                    tapped, given = _tap_all(leaves, gradients[-1])
                    for index, leaf in enumerate(leaves):
                        if _is_differentiable(leaf) and leaf.grad_fn is not None and _is_one_of(leaf, args):
                            # The module returned its input, perhaps modified in place. Whoever else holds that tensor
                            # must keep sharing it with the caller, so it stays, and its own hook reports.
                            self._handles.append(leaf.register_hook(gradients[-1].receiver(index)))
                            tapped[index], given[index] = leaf.clone(), leaf
                    if outputs is not None:
                        outputs.append(_detached(tree_unflatten(tapped, spec)))
                    return tree_unflatten(given, spec)
            if outputs is not None:
                outputs.append(_copied(output))
            return None

        self._handles.append(module.register_forward_hook(after))


def _is_one_of(tensor: Tensor, arguments: Any) -> bool:
    return any(tensor is argument for argument in tree_flatten(arguments)[0])


def _leaf(tensor: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
    """Return a leaf with the values of a tensor, and what to hand on in the tensor's place.

    A tensor that others hold too becomes a copy of the leaf itself, so that all of them depend on it.
    """
    if shared and not tensor._is_view():
        leaf = tensor.detach().clone().requires_grad_()
        return leaf, tensor.detach_().copy_(leaf)
    leaf = tensor.detach().requires_grad_()
    return leaf, leaf


def _tap_all(leaves: list[Any], call: _Gradients) -> tuple[list[Any], list[Any]]:
    """Tap each differentiable tensor; return what the taps saw, and the clones to hand on."""
    tapped = [
        _tap(leaf, call.receiver(index)) if _is_differentiable(leaf) else leaf for index, leaf in enumerate(leaves)
    ]
    given = [new.clone() if new is not old else old for old, new in zip(leaves, tapped, strict=True)]
    return tapped, given


def _tap(tensor: Tensor, receive: Callable[[Tensor | None], None]) -> Tensor:
    tap = nn.Identity()

    def after_backward(_module: nn.Module, _grad_input: Any, grad_output: Any) -> None:
        receive(grad_output[0])

    tap.register_full_backward_hook(after_backward)
    passed: Tensor = tap(_needing_gradient(tensor))
    return passed


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _needing_gradient(tensor: Tensor) -> Tensor:
    if tensor.requires_grad or not _is_differentiable(tensor):
        return tensor
    return tensor.detach().requires_grad_()


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs:
        return (*args, kwargs)
    return args[0] if len(args) == 1 else args


def _detached(value: Any) -> Any:
    return tree_map_only(Tensor, Tensor.detach, value)


def _copied(value: Any) -> Any:
    # Without a tap nothing stands between the record and a later in-place operation: keep a copy.
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)
