"""The graph cut: a model in two parts, before and after a layer, that run separately.

Hooks and gradients are needed at a layer and after it. The part before needs neither, and can run on an accelerator.
The model is traced with `torch.fx`. A module that cannot be traced stays whole; a model that cannot be traced is not
cut.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, fx, nn

from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.process_wide import exclusive


class UncuttableError(Exception):
    """The model cannot be cut at these layers; run it whole."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A model in two parts that share its parameters.

    Attributes:
        layer: path of the first of the layers to run.
        prefix: from images (N, C, H, W) to a tuple of tensors: the layer's output, and others that the suffix needs.
        suffix: from these to the model's output. Its modules keep their paths, and at the path of `layer` stands one
            that returns a view of its input, so that hooks see what they would see in the model.
    """

    layer: str
    prefix: fx.GraphModule
    suffix: fx.GraphModule


class _Tracer(fx.Tracer):
    """Traces through all modules except the given ones, torch's own, and those that cannot be traced.

    Tracing replaces `nn.Module.__call__` and `nn.Module.__getattr__` for the whole process, so calls of other threads,
    which run models meanwhile, are passed through. Functions of `math` are not replaced: `torch.fx` replaces them in
    whichever thread calls a module, and they would stay replaced if that happened as the trace ends. A module that
    passes a traced value to them stays whole.
    """

    def __init__(self, whole: Iterable[nn.Module]) -> None:
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]  # the annotation demands one module
        self._whole = set(whole)
        self._thread = get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self._whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        traced, depth = len(self.graph.nodes), len(self.module_stack)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if m in self._whole:
                raise
            # It cannot be traced: erase its steps, and keep it as a single step.
            self._whole.add(m)
            for step in reversed(list(self.graph.nodes)[traced:]):
                self.graph.erase_node(step)
            while len(self.module_stack) > depth:  # the base class leaves a module that raises on its stack
                self.module_stack.popitem()
            return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


class LayerView(nn.Module):
    """Stands at the layer's path in a suffix; its output is a new tensor with the layer's values."""

    def forward(self, values: Tensor) -> Tensor:
        """Return the same values in the same memory."""
        return values.view_as(values)


class _Values(fx.Interpreter):
    """Runs a graph, and records which of its nodes hold a tensor."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.tensors: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.tensors.add(n)
        return value


def cut_before(module: nn.Module, paths: Sequence[str], images: Tensor) -> Cut:
    """Cut a model at the first of some layers that runs.

    Args:
        module: in evaluation mode.
        paths: dotted paths of modules, none inside another, each of which runs once.
        images: (N, C, H, W), of the size and dtype that it will get.

    Raises:
        UncuttableError: the model cannot be traced, or one of the layers is not a single step of the trace.
    """
    with evaluation_mode(module), torch.no_grad():
        traced = _traced(module, [module.get_submodule(path) for path in paths])
        steps = list(traced.graph.nodes)
        places = {path: [step for step in steps if step.op == "call_module" and step.target == path] for path in paths}
        if any(len(calls) != 1 for calls in places.values()):
            raise UncuttableError(f"{', '.join(paths)} do not each run exactly once, one after another.")
        first = min((calls[0] for calls in places.values()), key=steps.index)
        values = _Values(traced)
        try:
            values.run(images.clone())
        except Exception as error:
            raise UncuttableError(f"The trace does not run: {error}") from error
        if first not in values.tensors:
            raise UncuttableError(f"{first.target} returns no tensor.")
        return _split(traced, first, values.tensors)


def _traced(module: nn.Module, whole: Iterable[nn.Module]) -> fx.GraphModule:
    tracer = _Tracer(whole)
    try:
        with exclusive():
            graph = tracer.trace(module)
    except Exception as error:  # the model's code gets proxies where it expects tensors
        raise UncuttableError(f"It cannot be traced: {error}") from error
    return fx.GraphModule(module, graph)


def _split(traced: fx.GraphModule, first: fx.Node, tensors: set[fx.Node]) -> Cut:
    """Split a trace after a step."""
    steps = list(traced.graph.nodes)
    place = steps.index(first) + 1
    before, after = steps[:place], steps[place:]
    inputs = [step for step in before if step.op == "placeholder"]
    if len([step for step in steps if step.op == "placeholder"]) != 1 or len(inputs) != 1:
        raise UncuttableError("It takes more than one argument.")
    interface, again = _interface(before, after, first, tensors)

    front = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for step in before:
        copies[step] = front.node_copy(step, copies.__getitem__)
    front.output(tuple(copies[step] for step in interface))

    back = fx.Graph()
    copies = {step: back.placeholder(f"value_{number}") for number, step in enumerate(interface)}
    path = str(first.target)
    # The layer's output passes through a module at the layer's path, where hooks look for the layer.
    copies[first] = back.call_module(path, (copies[first],))
    for step in (*(step for step in before if step in again), *after):
        copies[step] = back.node_copy(step, copies.__getitem__)
    prefix = fx.GraphModule(targets_of(traced, front), front)
    suffix = fx.GraphModule({**targets_of(traced, back), path: LayerView()}, back)
    prefix.training = suffix.training = False  # only of the two graphs, because they share the model's modules
    return Cut(path, prefix, suffix)


def _interface(
    before: list[fx.Node], after: list[fx.Node], first: fx.Node, tensors: set[fx.Node]
) -> tuple[list[fx.Node], set[fx.Node]]:
    """Return the tensors that the suffix gets, `first` first, and the steps of the prefix that it repeats.

    Only tensors are handed over. Sizes and tuples cannot be, and the steps from tensors to them are cheap to repeat.
    """
    prefix = set(before)
    interface, again = {first: None}, set[fx.Node]()
    # Walk back from all that the suffix reads, until every path ends at a tensor of the prefix.
    stack = [value for step in after for value in step.all_input_nodes if value in prefix]
    while stack:
        step = stack.pop()
        if step in interface or step in again:
            continue
        if step in tensors and step.op != "get_attr":
            interface[step] = None
        elif step.op == "call_module" or step.op == "placeholder":
            raise UncuttableError(f"{step.target} returns several tensors, or none, which are used after the layer.")
        else:
            again.add(step)
            stack += step.all_input_nodes
    return list(interface), again


def targets_of(traced: fx.GraphModule, graph: fx.Graph | None = None) -> dict[str, Any]:
    """Return the modules and tensors of a trace that a graph (by default its own) refers to, by path."""
    paths = [str(step.target) for step in (graph or traced.graph).nodes if step.op in ("call_module", "get_attr")]
    return {path: attrgetter(path)(traced) for path in paths}
