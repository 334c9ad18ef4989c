"""Sessions: every hook of the product is registered through one, and lives between `__enter__` and `__exit__`.

A session has a *call site* at each hooked module: it runs the user's hooks in the order of registration, taps tensors
whose gradients are needed, and records the module's final inputs and outputs.

The *cut* makes a layer's output a leaf of autograd. Modules before it run without a graph: autograd keeps nothing of
them, frozen parameters do not matter, and no parameter gets a gradient.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from seewhy.explainers.errors import InvalidArgumentError, LayerError, UnsuitableModelError, UnsupportedModuleError
from seewhy.explainers.hooks.call_site import CallSite
from seewhy.explainers.hooks.evaluation import CHECKPOINTED, is_checkpointed, without_checkpointing
from seewhy.explainers.hooks.gradient_tap import edges_behind_taps, is_differentiable
from seewhy.explainers.hooks.kinds import CALL_KINDS, KINDS, Kind
from seewhy.explainers.hooks.leaves import Leaves
from seewhy.explainers.hooks.parameters import ParameterSite
from seewhy.explainers.hooks.records import Call, Records, recorded_arguments
from seewhy.explainers.hooks.registry import HookHandle, Registry
from seewhy.explainers.hooks.selection import (
    ModuleSelector,
    as_module,
    first_names,
    match_modules,
    match_parameters,
    named_parameters,
    out_of_reach,
)
from seewhy.explainers.hooks.user_hooks import Hook, callable_with, listed


class HookSession:
    """Runs hooks in the modules of a model, forward and backward, records tensors, and leaves no trace.

    >>> from torch import nn, ones
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(2))
    >>> with HookSession(model) as hooks:
    ...     paths = hooks.record("0")
    ...     handle = hooks.after_forward(lambda module, args, output: 2 * output, nn.Flatten)
    ...     model(ones(1, 3, 8, 8))[:, 1].sum().backward()
    >>> hooks.outputs["0"][0].shape, hooks.grad_outputs["0"][0].shape
    (torch.Size([1, 8, 6, 6]), torch.Size([1, 8, 6, 6]))

    Modules are chosen by dotted path (``layer4.0.conv1``; the empty string is the model itself), glob (``features.*``;
    ``*`` also matches dots), type (``nn.Conv2d``) or predicate (a function of the module). Several hooks of one kind on
    one module run in the order of registration, each with the result of the one before it. Frozen models and plain
    inputs work: hooked and recorded tensors are made to require a gradient.

    A session sees only forward passes of the thread that opened it, so sessions of several threads may share a module.
    Calling ``module.forward(x)`` instead of ``module(x)`` bypasses every hook.

    Args:
        module: the model, an `nn.Module` or a `LoadedModel`.

    Raises:
        UnsupportedModuleError: the module is scripted, compiled or data-parallel.

    Attributes:
        modules: all modules by path; a module with several names is listed under each.
    """

    def __init__(self, module: Any) -> None:
        self._module = as_module(module)
        self.modules: Mapping[str, nn.Module] = dict(self._module.named_modules(remove_duplicate=False))
        self._unreachable = out_of_reach(self.modules)
        self._registry = Registry()
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._sites: dict[int, CallSite] = {}
        self._parameters: dict[int, ParameterSite] = {}
        self._keys = count()
        self._leaves = Leaves(self._registry, self._module, self._sites)

    def __enter__(self) -> Self:
        if self._registry.is_open:
            raise RuntimeError("The session is already open; create another one.")
        self._registry.open()
        self._start_afresh()
        self._unchecked = without_checkpointing(self._module)
        self._unchecked.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._registry.explain(error)
        self._unchecked.__exit__(None, None, None)
        self._registry.remove_hooks()
        for site in self._sites.values():
            site.close()
        self._sites.clear()
        for parameter in self._parameters.values():
            parameter.close()
        self._parameters.clear()
        self._registry.close()
        self._leaves.close()  # last, because it raises in a wrong thread, and everything else must be undone by then

    @property
    def state(self) -> str:
        """The type of the module, and whether the session is open, for people."""
        return f"{type(self._module).__name__}, {'open' if self._registry.is_open else 'closed'}"

    def __repr__(self) -> str:
        sites = [site.path for site in self._sites.values() if any(site.hooks.values())]
        places = [*sites, *(site.name for site in self._parameters.values() if site.hooks)]
        hooks = f"; hooks at {listed(places)}" if places else ""
        paths = dict.fromkeys(path for records in self._registry.records.values() for path in records)
        records = f"; records of {listed([*paths])}" if paths else ""
        return f"HookSession({self.state}{hooks}{records})"

    def alone(self) -> AbstractContextManager[None]:
        """Hide this thread's forward passes from all other sessions."""
        return self._registry.alone()

    @property
    def inputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: the only argument, or a tuple of all (keywords as a last dict), detached."""
        return self._registry.records["input"]

    @property
    def outputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: the module's output after all hooks, detached."""
        return self._registry.records["output"]

    @property
    def grad_inputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: gradients in the structure of `inputs`; None where no gradient flowed."""
        records = self._registry.records["grad_input"]
        return Records(
            {
                path: [recorded_arguments(*call.arguments(call.leaves)) for call in calls]
                for path, calls in records.items()
            }
        )

    @property
    def grad_outputs(self) -> dict[str, list[Any]]:
        """Per path, one entry per call: gradients in the structure of `outputs`; None where no gradient flowed."""
        records = self._registry.records["grad_output"]
        return Records({path: [call.value() for call in calls] for path, calls in records.items()})

    @property
    def records(self) -> dict[Kind, dict[str, list[Any]]]:
        """`inputs`, `outputs`, `grad_inputs` and `grad_outputs` by kind."""
        return dict(zip(CALL_KINDS, (self.inputs, self.outputs, self.grad_inputs, self.grad_outputs), strict=True))

    @property
    def parameter_grads(self) -> dict[str, dict[str, Tensor | None]]:
        """Per path and parameter name, the gradient summed over all calls; None where no gradient flowed."""
        return self._registry.parameter_grads

    @property
    def current(self) -> Call | None:
        """The call whose hook is running; None outside hooks and in hooks of parameters."""
        return self._registry.call

    def before_forward(
        self, hook: Hook, *where: ModuleSelector, with_kwargs: bool = False, shared: bool = False, prepend: bool = False
    ) -> HookHandle:
        """Run `hook(module, args)` before the modules run; its result replaces the arguments.

        Args:
            hook: returns None to observe, a tuple of arguments, or the only argument.
            where: paths, globs, types or predicates.
            with_kwargs: call `hook(module, args, kwargs)` instead, which returns None or a pair (args, kwargs).
            shared: repeat the module's in-place changes of the hook's result on the original argument, whose other
                holders then see them as without the hook. (Whatever autograd saves of the original must be a copy.)
            prepend: run it before this session's other hooks of this kind at the modules, not after them.

        Raises:
            LayerError: a part of `where` matches nothing; the message lists near matches.
            RuntimeError: the session is not open.
        """
        function = callable_with(hook, "before_forward", "module, args, kwargs" if with_kwargs else "module, args")
        return self._add("before_forward", function, (function, with_kwargs, shared), where, prepend)

    def after_forward(
        self,
        hook: Hook,
        *where: ModuleSelector,
        with_kwargs: bool = False,
        prepend: bool = False,
        always_call: bool = False,
    ) -> HookHandle:
        """Run `hook(module, args, output)` after the modules run; its result replaces the output.

        Args:
            hook: returns None to observe, or the output that replaces the module's.
            where, prepend: as for `before_forward`.
            with_kwargs: call `hook(module, args, kwargs, output)` instead.
            always_call: run the hook even if the module, or a hook before this one, raises; then `output` is None, or
                the module's. An exception of such a hook itself becomes a warning.

        Raises:
            LayerError, RuntimeError: as in `before_forward`.
        """
        arguments = "module, args, kwargs, output" if with_kwargs else "module, args, output"
        function = callable_with(hook, "after_forward", arguments)
        return self._add("after_forward", function, (function, with_kwargs, always_call), where, prepend, always_call)

    def full_backward_pre(self, hook: Hook, *where: ModuleSelector, prepend: bool = False) -> HookHandle:
        """Run `hook(module, grad_output)` once per call, when the gradients of its outputs are known.

        `grad_output` is a tuple with one entry per output, in their structure, None where no gradient flows. The hook
        returns None, a tuple like it, or its only gradient, which then flows into the module's backward pass. Hooks of
        `output_gradient` run before. For an input that the module returns unchanged the hook runs once more.

        Raises:
            LayerError, RuntimeError: as in `before_forward`.
        """
        function = callable_with(hook, "full_backward_pre", "module, grad_output")
        return self._add("full_backward_pre", function, function, where, prepend)

    def full_backward(self, hook: Hook, *where: ModuleSelector, prepend: bool = False) -> HookHandle:
        """Run `hook(module, grad_input, grad_output)` once per call, when the gradients of its inputs are known.

        Both are tuples: `grad_input` has one entry per argument (keywords as a last dict), `grad_output` one per
        output, in the structure of these, None where no gradient flows. The hook returns None, a tuple like
        `grad_input`, or its only gradient, which then flows on. If no argument can have a gradient, the hook runs when
        the gradients of the outputs are known.

        Raises:
            LayerError, RuntimeError: as in `before_forward`.
        """
        function = callable_with(hook, "full_backward", "module, grad_input, grad_output")
        return self._add("full_backward", function, function, where, prepend)

    def output_gradient(self, hook: Hook, *where: ModuleSelector, prepend: bool = False) -> HookHandle:
        """Run `hook(gradient)` on the gradient of each tensor that the modules return, as `Tensor.register_hook` does.

        Its result replaces the gradient before the module's backward pass.

        Raises:
            LayerError, RuntimeError: as in `before_forward`.
        """
        function = callable_with(hook, "output_gradient", "gradient")
        return self._add("output_gradient", function, function, where, prepend)

    def parameter_gradient(self, hook: Hook, *where: ModuleSelector) -> HookHandle:
        """Run `hook(gradient)` on the gradient of parameters; its result replaces the gradient.

        A frozen parameter requires a gradient until the session ends, and is then frozen again, without ``.grad``. The
        hook runs once per backward pass, with the sum over all uses of the parameter. On CUDA it also sees backward
        passes of other threads.

        Args:
            hook: returns None to observe, or a gradient of the same shape.
            where: names or globs of parameters (``conv1.weight``, ``*.bias``); or types or predicates of the modules
                that hold them.

        Raises:
            LayerError: a part of `where` matches nothing.
            RuntimeError: the session is not open.
        """
        self._require_open()
        function = callable_with(hook, "parameter_gradient", "gradient")
        parameters = named_parameters(self.modules, where)
        names = match_parameters(parameters, self.modules, where)
        key = next(self._keys)
        undo: list[Callable[[], object]] = []
        for site in dict.fromkeys(self._parameter_site(name, parameters[name]) for name in names):
            site.hooks[key] = function
            undo.append(partial(site.hooks.pop, key, None))
        return HookHandle("parameter_gradient", function, names, undo)

    def record(self, *where: ModuleSelector, kinds: Iterable[Kind] = CALL_KINDS) -> tuple[str, ...]:
        """Record modules in every forward and backward pass until the session ends.

        A record holds the module's arguments and output after all hooks of this session. Under ``torch.no_grad()`` only
        inputs and outputs are recorded. After several backward passes through one forward pass, the gradients are those
        of the last.

        Args:
            where: paths, globs, types or predicates.
            kinds: one or more of input, output, grad_input, grad_output and parameter_grad. The last makes frozen
                parameters require a gradient until the session ends.

        Returns:
            The matching paths, in the model's order.

        Raises:
            LayerError: a part of `where` matches nothing; the message lists near matches.
            RuntimeError: the session is not open.
            InvalidArgumentError: an unknown kind.
        """
        self._require_open()
        names: frozenset[Any] = frozenset([kinds] if isinstance(kinds, str) else kinds)
        if unknown := names - set(KINDS):
            choices = f"choose from {', '.join(KINDS)}"
            raise InvalidArgumentError(f"Unknown kinds {sorted(map(str, unknown))}; {choices}.", field="kinds")
        paths = match_modules(self.modules, where, self._unreachable)
        for path in paths:
            for kind in names & set(CALL_KINDS):
                self._site(path).records[path, kind] = self._registry.records[kind].setdefault(path, [])
            if "parameter_grad" in names and path not in self.parameter_grads:
                self._record_parameters(path)
        return paths

    def cut(self, *paths: str) -> None:
        """Make the outputs of these modules leaves of autograd, and run everything before them without a graph.

        `backward` ends at these leaves. A cut is for one forward pass. If any parameter requires a gradient, gradient
        mode is off in this thread until the first of the modules has run; the end of the session restores it.

        Raises:
            LayerError: the model does not have this path.
            RuntimeError: the session is not open.
        """
        self._require_open()
        matched = match_modules(self.modules, paths, self._unreachable)
        self._leaves.make(*(self.modules[path] for path in matched))

    def backward(self, score: Tensor, retain_graph: bool = False) -> None:
        """Run autograd from a scalar score back to the cut, or else to all hooks. No ``.grad`` is written.

        Args:
            score: a scalar tensor computed from the model's output.
            retain_graph: whether to keep the graph for another backward pass.

        Raises:
            LayerError: no hooked module ran.
            UnsuitableModelError: no gradient flows from the score to the cut.
            UnsupportedModuleError: the model uses gradient checkpointing that supports `score.backward()` alone.
            ValueError: the score is not a scalar.
            TypeError: the score is not a tensor.
        """
        if not isinstance(score, Tensor):
            kind = type(score).__name__
            raise TypeError(f"backward takes the score, not a {kind}; use full_backward to register a hook.")
        if score.numel() != 1:
            raise ValueError(f"Expected a scalar score, got the shape {tuple(score.shape)}; pick or sum logits.")
        parameters = [site.parameter for site in self._parameters.values()]
        cut = self._leaves.is_cut
        ran = bool(self._leaves.ends) if cut else bool(parameters) or any(site.ran for site in self._sites.values())
        if not ran:
            raise LayerError(
                "The layer did not run in this forward pass; choose one that the model uses. (Calling "
                "`module.forward(x)` directly bypasses hooks.)"
            )
        # Explicit ends instead of `score.backward()`, so that no parameter gets a `.grad`.
        ends = [*(self._leaves.ends if cut else edges_behind_taps(score)), *parameters]
        if cut and not score.requires_grad:
            raise UnsuitableModelError(
                "No gradient flows from the logits to the layer: gradients are off (`torch.no_grad()`), or the model "
                "disables them after the layer (as gradient checkpointing with use_reentrant=True does) or detaches "
                "its output. "
                "Freeze the parameters (`module.requires_grad_(False)`), turn gradient checkpointing off "
                "(`model.set_grad_checkpointing(False)` in timm), or choose a layer nearer the output."
            )
        if not (score.requires_grad and ends):
            return  # nothing recorded has a gradient: the records hold None
        try:
            torch.autograd.grad(score, ends, allow_unused=True, retain_graph=retain_graph)
        except RuntimeError as error:
            if is_checkpointed(error):
                raise UnsupportedModuleError(CHECKPOINTED) from error
            raise

    def _require_open(self) -> None:
        if not self._registry.is_open:
            raise RuntimeError("The session is not open; use `with HookSession(module) as hooks:`.")

    def _site(self, path: str) -> CallSite:
        module = self.modules[path]
        site = self._sites.get(id(module))  # one for all names of a module, or its hooks would run several times
        if site is None:
            name = first_names(self.modules, [path])[0]
            site = self._sites[id(module)] = CallSite(self._registry, name, module)
        return site

    def _add(
        self,
        kind: str,
        hook: Hook,
        entry: Any,
        where: tuple[ModuleSelector, ...],
        prepend: bool,
        always_call: bool = False,
    ) -> HookHandle:
        """Register a hook, whose entry a call site keeps among those of its kind."""
        self._require_open()
        key = next(self._keys)  # numbers, because the same hook may be registered twice
        paths = match_modules(self.modules, where, self._unreachable)
        undo: list[Callable[[], object]] = []
        for site in dict.fromkeys(self._site(path) for path in paths):
            hooks: OrderedDict[int, Any] = site.hooks[kind]
            hooks[key] = entry
            if prepend:
                hooks.move_to_end(key, last=False)
            undo.append(partial(hooks.pop, key, None))
            if always_call:
                site.watch_failures()
        return HookHandle(kind, hook, paths, undo)

    def _parameter_site(self, name: str, parameter: Tensor) -> ParameterSite:
        site = self._parameters.get(id(parameter))
        if site is None:
            if isinstance(parameter, nn.UninitializedParameter):
                raise LayerError(f"The parameter {name!r} has no shape yet; run one forward pass first.")
            site = self._parameters[id(parameter)] = ParameterSite(self._registry, name, parameter)
        return site

    def _record_parameters(self, path: str) -> None:
        gradients: dict[str, Tensor | None] = {}
        self.parameter_grads[path] = gradients
        for name, parameter in self.modules[path].named_parameters(recurse=False):
            if is_differentiable(parameter):
                gradients[name] = None
                self._parameter_site(f"{path}.{name}".lstrip("."), parameter).records.append((gradients, name))
