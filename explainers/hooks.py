"""Every hook of the product is registered here, and only between `__enter__` and `__exit__`.

A session has one *site* at each module where something is to happen: it runs the user's hooks in the order in which
they were registered, taps what needs gradients, and records what the module finally got and finally handed on.

The *cut* makes a layer's output a leaf of autograd: what runs before it runs without a graph, so nothing
is kept for backward there, frozen parameters do not matter, and no parameter ever gets a gradient.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from explainers.errors import LayerError
from explainers.modules import Where, as_module, match_modules, match_parameters
from explainers.taps import Gradients, copied, is_differentiable, is_one_of, leaf_of, tap

Kind = Literal["input", "output", "grad_input", "grad_output", "parameter_grad"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CALL_KINDS: tuple[Kind, ...] = KINDS[:4]
"""What each call of a module has; the gradient of a parameter is one for all calls."""

Hook = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Call:
    """The call of a module that a running hook belongs to.

    Attributes:
        path: of the module; the first one, if it has several names.
        module: the module itself.
        number: 0 for the module's first call since the session opened, and so on.
    """

    path: str
    module: nn.Module
    number: int


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


class HookSession:
    """Runs hooks in the modules of a model, forward and backward, records what passes, and then leaves no trace.

    >>> from torch import nn, ones
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(2))
    >>> with HookSession(model) as hooks:
    ...     paths = hooks.record("0")
    ...     handle = hooks.after_forward(lambda module, args, output: 2 * output, nn.Flatten)
    ...     model(ones(1, 3, 8, 8))[:, 1].sum().backward()
    >>> hooks.outputs["0"][0].shape, hooks.grad_outputs["0"][0].shape
    (torch.Size([1, 8, 6, 6]), torch.Size([1, 8, 6, 6]))

    Modules are chosen by dotted path (``layer4.0.conv1``; the empty string is the model itself), glob
    (``features.*``; ``*`` also matches dots), type (``nn.Conv2d``) or predicate (a function of the module). Several
    hooks of one kind on one module run in the order of registration, each with what the one before it returned.
    Frozen models and plain inputs work: what is hooked or recorded is made to need a gradient.

    Only forward passes of the thread that opened the session are seen, so sessions of several threads
    may share one module. Calling ``module.forward(x)`` instead of ``module(x)`` bypasses every hook.

    Args:
        module: the model, or a `LoadedModel`, whose submodules are meant.

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
        self._sites: dict[int, _Site] = {}
        self._keys = count()
        self._current: Call | None = None
        self._is_cut = False
        self._leaves: list[Any] = []  # of the cut: tensors and gradient edges
        self._sources: list[Tensor] = []  # leaves that taps made
        self._not_ours: list[Tensor] = []  # what the model was called with, and the taps' copies
        self._thawed: dict[str, Tensor] = {}  # parameters with hooks
        self._inputs: dict[str, list[Any]] = {}
        self._outputs: dict[str, list[Any]] = {}
        self._grad_inputs: dict[str, list[Gradients]] = {}
        self._grad_outputs: dict[str, list[Gradients]] = {}
        self._parameter_grads: dict[str, dict[str, Tensor | None]] = {}
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
        for site in self._sites.values():
            site.close()
        self._sites.clear()
        while self._thawed:
            _freeze(self._thawed.popitem()[1])
        self._leaves.clear()
        self._sources.clear()
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
        """Per path, one entry per call: what the module handed on, detached from the graph."""
        return self._outputs

    @property
    def grad_inputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: gradients in the structure of `inputs`; None where none flowed."""
        return {path: [_arguments(*call.value()) for call in calls] for path, calls in self._grad_inputs.items()}

    @property
    def grad_outputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: gradients in the structure of `outputs`; None where none flowed."""
        return {path: [call.value() for call in calls] for path, calls in self._grad_outputs.items()}

    @property
    def parameter_grads(self) -> dict[str, dict[str, Tensor | None]]:
        """Per path and name of the module's own parameters, the gradient of all calls together; None if none flowed."""
        return self._parameter_grads

    @property
    def current(self) -> Call | None:
        """The call whose hook is running at this moment; None outside hooks and in hooks of parameters."""
        return self._current

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Every module by path, under each of its names."""
        return self._modules

    def before_forward(self, hook: Hook, *where: Where, with_kwargs: bool = False) -> HookHandle:
        """Run `hook(module, args)` before the modules do; what it returns replaces the arguments.

        Args:
            hook: returns None to observe, a tuple of arguments, or the only argument.
            where: paths, globs, types or predicates.
            with_kwargs: call `hook(module, args, kwargs)` instead, which returns None or a pair (args, kwargs).

        Raises:
            LayerError: something in `where` that matches nothing; the message lists near matches.
            RuntimeError: the session is not open.
        """
        return self._add("before", (hook, with_kwargs), where)

    def after_forward(self, hook: Hook, *where: Where, with_kwargs: bool = False) -> HookHandle:
        """Run `hook(module, args, output)` after the modules; what it returns replaces the output.

        Args and errors are those of `before_forward`; with keywords it is `hook(module, args, kwargs, output)`.
        """
        return self._add("after", (hook, with_kwargs), where)

    def full_backward(self, hook: Hook, *where: Where) -> HookHandle:
        """Run `hook(module, grad_input, grad_output)` once per call, when the gradients of its input are known.

        Both are tuples: `grad_input` has one entry per argument (keywords as a last dict), `grad_output` one per
        output, in the structure of these, with None where no gradient flows. What the hook returns, a tuple like
        `grad_input` or its only gradient, flows on in its place. Where no argument can have a gradient, the hook
        runs when the gradient of the output is known. Errors are those of `before_forward`.
        """
        return self._add("backward", hook, where)

    def output_gradient(self, hook: Hook, *where: Where) -> HookHandle:
        """Run `hook(gradient)`, as `Tensor.register_hook` does, on the gradient of each tensor that the modules return.

        What it returns replaces the gradient before the module's own backward pass. Errors are those of
        `before_forward`.
        """
        return self._add("gradient", hook, where)

    def parameter_gradient(self, hook: Hook, *where: Where) -> HookHandle:
        """Run `hook(gradient)` on the gradient of parameters; what it returns replaces the gradient.

        A frozen parameter needs a gradient as long as the session lasts, and then is frozen again, without ``.grad``.
        The hook runs once per backward pass, with the sum over all uses of the parameter. It belongs to the parameter:
        on CUDA it also sees backward passes that other threads start.

        Args:
            hook: returns None to observe, or the gradient that replaces it.
            where: names or globs of parameters (``conv1.weight``, ``*.bias``); or types or predicates of modules,
                whose own parameters are meant.

        Raises:
            LayerError: something in `where` that matches nothing.
            RuntimeError: the session is not open.
        """
        self._require_open()
        named = dict(self._module.named_parameters(remove_duplicate=False))
        names = match_parameters(named, self._modules, where)
        unique = {id(named[name]): name for name in reversed(names)}
        handles = [self._hook_parameter(name, named[name], hook) for name in reversed(unique.values())]
        return HookHandle(names, [handle.remove for handle in handles])

    def record(self, *where: Where, kinds: Iterable[Kind] = CALL_KINDS) -> tuple[str, ...]:
        """Record modules in every forward and backward pass until the session ends.

        A record holds what the module finally got and finally handed on, after all hooks of this session. Under
        ``torch.no_grad()`` only inputs and outputs are recorded. Of several backward passes through one forward
        pass, the gradients of the last one stand.

        Args:
            where: paths, globs, types or predicates.
            kinds: which of input, output, grad_input, grad_output and parameter_grad to record; the last makes
                frozen parameters need a gradient as long as the session lasts.

        Returns:
            The matching paths, in the order in which the model lists its modules.

        Raises:
            LayerError: something in `where` that matches nothing; the message lists near matches.
            RuntimeError: the session is not open.
        """
        self._require_open()
        wanted = frozenset(kinds)
        if unknown := wanted - set(KINDS):
            raise ValueError(f"Unknown kinds {sorted(unknown)}; choose from {', '.join(KINDS)}.")
        paths = match_modules(self._modules, where)
        for path in paths:
            if wanted & set(CALL_KINDS):
                self._site(path).recorded.setdefault(path, set()).update(wanted)
            for kind, records in self._records.items():
                if kind in wanted:
                    records.setdefault(path, [])
            if "parameter_grad" in wanted and path not in self._parameter_grads:
                self._record_parameters(path)
        return paths

    def cut(self, *paths: str) -> None:
        """Make the outputs of these modules leaves of autograd, and run all before them without a graph.

        Gradients computed by `backward` end at these leaves. Made for one forward pass. Where parameters ask for
        gradients, gradient mode is off in this thread until the first of the modules has run; it is put back
        as it was when the session ends.

        Raises:
            LayerError: a path that the model lacks.
        """
        self._require_open()
        matched = match_modules(self._modules, paths)
        self._is_cut = True
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
                if not is_differentiable(value):
                    continue
                if before_the_cut or not value.requires_grad:
                    mine = id(value) not in kept and not is_one_of(value, self._not_ours)
                    leaf, values[index] = leaf_of(value, mine and is_one_of(value, args))
                    self._leaves.append(leaf)
                else:
                    # It may depend on an earlier leaf. The edge stays that of today's value if it is modified in place.
                    self._leaves.append(get_gradient_edge(value))
            return tree_unflatten(values, spec)

        self._handles.append(self._module.register_forward_pre_hook(note_arguments))
        for path in matched:
            self._handles.append(self._modules[path].register_forward_hook(make_leaves, prepend=True))

    def backward(self, score: Tensor) -> None:
        """Run autograd from a scalar score back to the cut, or through all that is hooked; no ``.grad`` is written.

        Args:
            score: a scalar tensor computed from the model's output.

        Raises:
            LayerError: no gradient flows from the score to what is hooked.
        """
        if self._is_cut:
            ends = [*self._leaves, *self._thawed.values()] if self._leaves else []
        else:
            ends = [*self._sources, *(value for value in self._module.parameters() if value.requires_grad)]
        if not ends:
            raise LayerError(
                "The layer did not run in this forward pass; choose one that the model uses. (A module whose "
                "`forward` is called directly, as in `module.forward(x)`, bypasses its hooks.)"
            )
        if not score.requires_grad:
            raise LayerError(
                "No gradient flows from the logits to the layer: the model switches gradients off, or "
                "detaches, after it. Freeze the parameters (`module.requires_grad_(False)`), or choose a layer "
                "nearer the output."
            )
        torch.autograd.grad(score, ends, allow_unused=True)

    @property
    def _records(self) -> dict[Kind, dict[str, list[Any]]]:
        return {
            "input": self._inputs,
            "output": self._outputs,
            "grad_input": self._grad_inputs,
            "grad_output": self._grad_outputs,
        }

    def _require_open(self) -> None:
        if self._thread is None:
            raise RuntimeError("The session is not open; use `with HookSession(module) as hooks:`.")

    def _is_ours(self) -> bool:
        return self._thread == threading.get_ident()

    def _site(self, path: str) -> "_Site":
        module = self._modules[path]
        site = self._sites.get(id(module))
        if site is None:
            site = self._sites[id(module)] = _Site(self, path, module)
            # Before the site's own hooks run, those of an outer session have; after, a cut's (it is put first).
            self._handles.append(module.register_forward_pre_hook(site.enter, with_kwargs=True))
            self._handles.append(module.register_forward_hook(site.leave))
        return site

    def _add(self, kind: str, hook: Any, where: tuple[Where, ...]) -> HookHandle:
        self._require_open()
        key = next(self._keys)
        paths = match_modules(self._modules, where)
        undo: list[Callable[[], object]] = []
        for site in dict.fromkeys(self._site(path) for path in paths):
            hooks: dict[int, Any] = getattr(site, kind)
            hooks[key] = hook
            undo.append(lambda hooks=hooks: hooks.pop(key, None))  # type: ignore[misc]
        return HookHandle(paths, undo)

    def _hook_parameter(self, name: str, parameter: Tensor, hook: Hook) -> RemovableHandle:
        if name not in self._thawed:
            self._thawed[name] = parameter
            _thaw(parameter)

        def arrived(gradient: Tensor) -> Tensor | None:
            # On CPU the backward pass runs in the thread that started it, on CUDA in one of the device's.
            if self._thread is None or (gradient.device.type == "cpu" and not self._is_ours()):
                return None
            replaced = hook(gradient)
            return None if replaced is None else _checked(replaced, gradient)

        return self._hook_tensor(parameter, arrived)

    def _hook_tensor(self, tensor: Tensor, hook: Hook) -> RemovableHandle:
        handle: RemovableHandle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        self._handles.append(handle)
        return handle

    def _record_parameters(self, path: str) -> None:
        found: dict[str, Tensor | None] = {}
        self._parameter_grads[path] = found
        for name, parameter in self._modules[path].named_parameters(recurse=False):
            if not is_differentiable(parameter):
                continue
            found[name] = None

            def keep(gradient: Tensor, name: str = name) -> None:
                found[name] = gradient.detach().clone()

            self._hook_parameter(f"{path}.{name}".lstrip("."), parameter, keep)


class _Site:
    """What a session does at one module: the user's hooks by kind, in the order of registration, and the records."""

    def __init__(self, session: HookSession, path: str, module: nn.Module) -> None:
        self.before: dict[int, tuple[Hook, bool]] = {}
        self.after: dict[int, tuple[Hook, bool]] = {}
        self.backward: dict[int, Hook] = {}
        self.gradient: dict[int, Hook] = {}
        self.recorded: dict[str, set[Kind]] = {}
        self._session = session
        self._path = path
        self._module = module
        self._calls = 0
        self._running: list[_Running] = []

    def close(self) -> None:
        """Forget the hooks, and the tensors of calls that an exception ended."""
        for hooks in (self.before, self.after, self.backward, self.gradient):
            hooks.clear()
        for running in self._running:
            running.tapped.clear()
        self._running.clear()

    # Without keywords it is called for another thread, in the moment in which the session ends.
    def enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        """Run the hooks before the module; tap and record its arguments."""
        if not self._session._is_ours():
            return None
        call = Call(self._path, module, self._calls)
        self._calls += 1
        for hook, with_kwargs in tuple(self.before.values()):
            args, kwargs = self._prepared(call, hook, with_kwargs, args, kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        running = _Running(call, kwargs, Gradients((args, kwargs)))
        self._running.append(running)
        given = leaves
        if (self.backward or self._records("grad_input")) and torch.is_grad_enabled():
            given = self._tap_inputs(running, leaves)
        self._keep("input", lambda: copied(_arguments(args, kwargs)))
        self._keep("grad_input", lambda: running.grad_input)
        return tree_unflatten(given, spec)

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Run the hooks after the module; tap and record its output."""
        if not self._session._is_ours() or not self._running:
            return None
        running = self._running[-1]
        for hook, with_kwargs in tuple(self.after.values()):
            given = (args, running.kwargs) if with_kwargs else (args,)
            replaced = self._run(running.call, hook, module, *given, output)
            output = output if replaced is None else replaced
        # A module that modifies its input in place modified our copy: whoever else holds the original must see the
        # change too, as without hooks.
        for original, given_to_it, version in running.tapped:
            if given_to_it._version > version:
                original.copy_(given_to_it)
        self._running.pop()
        running.tapped.clear()  # the graph refers to this call, and must not to itself
        leaves, spec = tree_flatten(output)
        running.grad_output = Gradients(output)
        wanted = self.backward or self.gradient or self._records("grad_output")
        given_on = leaves
        if wanted and torch.is_grad_enabled():
            given_on, leaves = self._tap_outputs(running, leaves, args)
            self._keep("output", lambda: tree_unflatten([_detached(leaf) for leaf in leaves], spec))
        else:
            self._keep("output", lambda: copied(output))
        self._keep("grad_output", lambda: running.grad_output)
        return tree_unflatten(given_on, spec)

    def _tap_inputs(self, running: "_Running", leaves: list[Any]) -> list[Any]:
        indices = [index for index, leaf in enumerate(leaves) if is_differentiable(leaf)]
        running.awaits_input = bool(indices)
        width = len(leaves)

        def arrived(gradients: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
            found: list[Tensor | None] = [None] * width
            for index, gradient in zip(indices, gradients, strict=True):
                found[index] = gradient
            found = self._run_backward(running, found)
            return [found[index] for index in indices]

        copies, sources = tap([leaves[index] for index in indices], arrived)
        self._session._sources += sources
        self._session._not_ours += copies
        given = list(leaves)
        for index, copy in zip(indices, copies, strict=True):
            given[index] = copy
            running.tapped.append((leaves[index], copy, copy._version))
        return given

    def _tap_outputs(self, running: "_Running", leaves: list[Any], args: Any) -> tuple[list[Any], list[Any]]:
        """Return what to hand on, and what to record."""
        given, recorded = list(leaves), list(leaves)
        indices = []
        for index, leaf in enumerate(leaves):
            if not is_differentiable(leaf):
                continue
            if leaf.grad_fn is not None and is_one_of(leaf, args):
                # The module returned its input, perhaps modified in place. Whoever else holds that tensor
                # must keep sharing it with the caller, so it stays, and its own hook reports.
                self._session._hook_tensor(leaf, partial(self._run_gradient, running, index))
                recorded[index] = leaf.clone()
            else:
                indices.append(index)
                if leaf._is_view():
                    recorded[index] = leaf.clone()

        def arrived(gradients: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
            onward = [self._run_gradient(running, *one) for one in zip(indices, gradients, strict=True)]
            if not running.awaits_input:
                self._run_backward(running, running.grad_input.leaves)
            return onward

        copies, sources = tap([leaves[index] for index in indices], arrived)
        self._session._sources += sources
        for index, copy in zip(indices, copies, strict=True):
            given[index] = copy
        return given, recorded

    def _run(self, call: Call, hook: Hook, *args: Any) -> Any:
        outer, self._session._current = self._session._current, call
        try:
            return hook(*args)
        finally:
            self._session._current = outer

    def _prepared(self, call: Call, hook: Hook, with_kwargs: bool, args: Any, kwargs: Any) -> tuple[Any, Any]:
        replaced = self._run(call, hook, call.module, *((args, kwargs) if with_kwargs else (args,)))
        if replaced is None:
            return args, kwargs
        if not with_kwargs:
            return (replaced if isinstance(replaced, tuple) else (replaced,)), kwargs
        if not (isinstance(replaced, tuple) and len(replaced) == 2):
            raise ValueError(f"A hook before {call.path!r} must return None or a pair (args, kwargs).")
        return replaced

    def _run_gradient(self, running: "_Running", index: int, gradient: Tensor | None) -> Tensor | None:
        if gradient is not None:
            for hook in tuple(self.gradient.values()):
                replaced = self._run(running.call, hook, gradient)
                gradient = gradient if replaced is None else _checked(replaced, gradient)
        running.grad_output.put(index, gradient)
        return gradient

    def _run_backward(self, running: "_Running", gradients: list[Tensor | None]) -> list[Tensor | None]:
        for hook in tuple(self.backward.values()):
            args, kwargs = running.grad_input.of(gradients)
            grad_input = (*args, kwargs) if kwargs else args
            grad_output = running.grad_output.value()
            grad_output = grad_output if isinstance(grad_output, tuple) else (grad_output,)
            replaced = self._run(running.call, hook, running.call.module, grad_input, grad_output)
            if replaced is not None:
                values = tree_flatten(replaced)[0]
                if len(values) != len(gradients):
                    raise ValueError(
                        f"The full backward hook of {running.call.path!r} returned {len(values)} gradients for "
                        f"{len(gradients)} inputs; return a tuple like grad_input, or None."
                    )
                gradients = [_checked(new, old) for new, old in zip(values, gradients, strict=True)]
        for index, gradient in enumerate(gradients):
            running.grad_input.put(index, gradient)
        return gradients

    def _records(self, kind: Kind) -> bool:
        return any(kind in kinds for kinds in self.recorded.values())

    def _keep(self, kind: Kind, make: Callable[[], Any]) -> None:
        """Append to the record of this kind, under each name of the module."""
        paths = [path for path, kinds in self.recorded.items() if kind in kinds]
        if paths:
            value = make()
            for path in paths:
                self._session._records[kind][path].append(value)


class _Running:
    """A call from its start to the last of its gradients."""

    def __init__(self, call: Call, kwargs: Any, grad_input: Gradients) -> None:
        self.call = call
        self.kwargs = kwargs
        self.grad_input = grad_input
        self.grad_output = grad_input  # until the output is known
        self.awaits_input = False
        self.tapped: list[tuple[Tensor, Tensor, int]] = []


_thawed: "WeakIdKeyDictionary" = WeakIdKeyDictionary()
_thawed_lock = threading.Lock()


def _thaw(parameter: Tensor) -> None:
    """Make a parameter need a gradient until as many calls of `_freeze` have undone it."""
    with _thawed_lock:
        if parameter in _thawed:
            _thawed[parameter] += 1
        elif not parameter.requires_grad:
            _thawed[parameter] = 1
            parameter.requires_grad_()


def _freeze(parameter: Tensor) -> None:
    with _thawed_lock:
        if parameter in _thawed:
            _thawed[parameter] -= 1
            if not _thawed[parameter]:
                del _thawed[parameter]
                parameter.requires_grad_(False)
                parameter.grad = None


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    if kwargs:
        return (*args, kwargs)
    return args[0] if len(args) == 1 else args


def _checked(replaced: Any, gradient: Tensor | None) -> Tensor | None:
    """Return a hook's gradient if it fits the one that it replaces."""
    if replaced is None and gradient is None:
        return None
    shape = None if gradient is None else tuple(gradient.shape)
    if not (replaced is None or isinstance(replaced, Tensor)) or (
        isinstance(replaced, Tensor) and gradient is not None and replaced.shape != gradient.shape
    ):
        found = tuple(replaced.shape) if isinstance(replaced, Tensor) else type(replaced).__name__
        raise ValueError(f"A hook returned {found} for a gradient of shape {shape}; return one of that shape, or None.")
    return replaced


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf
