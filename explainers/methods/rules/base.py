"""Backward passes by other rules than the derivative: operations of a forward pass are replaced as they are called.

An active `Rewriting` sees every function that its thread calls with tensors: by modules, functional, in place, or
several times by one module. If the method has a rule for the operation, a node with the same value takes its place,
whose backward pass is the rule, so that autograd carries relevance instead of gradients. Afterwards the whole graph is
checked: an operation without a rule is refused by name unless its derivative is right. So are operations that no mode
sees (a custom `autograd.Function`, compiled or scripted code): a map is never silently wrong.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ModelOutputError, UnsupportedOperationError
from seewhy.explainers.hooks.attention import DefinedAttention
from seewhy.explainers.hooks.gradient_tap import is_tap
from seewhy.explainers.hooks.selection import opaque_parts

RelevanceSign = Annotated[
    Sign, Field(description="Relevance for and against the class, for it only, or its magnitude.")
]

Backward = Callable[[Tensor], tuple[Tensor | None, ...]]
"""The backward pass of one operation: takes the relevance of its output, and returns that of each of its inputs."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a function.

    Attributes:
        name: without the underscores of in-place and operator functions.
        function: as it is called.
        args, kwargs: arguments of the call; parameters among them are detached.
        writes: whether it modifies its first argument in place.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: bool

    def __call__(self, value: Tensor) -> Any:
        """Return the function's value for another first argument, which stays as it is."""
        return self.function(value.clone() if self.writes else value, *self.args[1:], **self.kwargs)

    def apart(self) -> "Operation":
        """Return the operation without its first argument, which a `Backward` must not hold; see `replaced`."""
        return replace(self, args=(None, *self.args[1:]))

    def doubled(self) -> "Operation":
        """Return the operation for a first argument in double precision, with its other arguments in double too."""

        def widen(value: Any) -> Any:
            return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

        kwargs = {name: widen(value) for name, value in self.kwargs.items()}
        return replace(self, args=tuple(map(widen, self.args)), kwargs=kwargs)

    def bound(self, *names: str) -> dict[str, Any]:
        """Return the arguments by name; `names` are those of the positional ones, in their order."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}


Handler = Callable[[Operation], Tensor | None]
"""Returns a replacement of an operation's output (see `replaced`), or None to leave the operation as it is."""


@dataclass(frozen=True, eq=False)
class Rules:
    """The backward pass of one method.

    Attributes:
        method: its name, for messages.
        handlers: by name of the operation.
        keeps: whether a node of autograd is right for the method, given its kind and itself.
        constants: functions whose results the method holds constant: the backward pass ends there.
    """

    method: str
    handlers: Mapping[str, Handler]
    keeps: Callable[[str, Any], bool]
    constants: frozenset[str] = frozenset()


class _RuleFunction(torch.autograd.Function):
    """A computed value with another backward pass."""

    @staticmethod
    def forward(ctx: Any, output: list[Tensor], backward: Backward, weighted: bool, *_inputs: Any) -> Tensor:
        # The output is in a list, because autograd would count a tensor argument as an input.
        ctx.rule, ctx.weighted = backward, weighted
        return output[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (None, None, None, *ctx.rule(gradient))


def replaced(output: Tensor, backward: Backward, *inputs: Tensor, weighted: bool = False) -> Tensor:
    """Return the output of an operation with another backward pass.

    Args:
        output: no view of an input.
        backward: must hold copies of the tensors that it needs, because the model may overwrite its own. It must hold
            no tensor of the graph: after an in-place operation on one, graph and `backward` would refer to each other,
            a cycle that is never freed.
        inputs: the tensors whose relevance `backward` returns.
        weighted: whether the operation has weights (`is_first`).
    """
    tensor: Tensor = _RuleFunction.apply([output.detach()], backward, weighted, *inputs)
    return tensor


def is_first(value: Tensor) -> bool:
    """Whether no operation with weights lies between the picture and a tensor."""
    return not any(getattr(node, "weighted", False) for node in _nodes(value.grad_fn))


class Rewriting(TorchFunctionMode):
    """Replaces the operations of this thread by those that follow rules, until `finish`.

    Args:
        rules: see `Rules`.
        module: the model, whose parts that no mode sees are named in errors.
    """

    def __init__(self, rules: Rules, module: nn.Module) -> None:
        super().__init__()
        self._rules = rules
        self._module = module
        self._finished = False
        # Tensors that depend on the picture but require no gradient, each with the operation that detached it.
        self._detached = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if self._finished or name in _ACCESS:
            value = func(*args, **kwargs)
            # `weight.T` is a parameter like any other.
            is_view = not self._finished and isinstance(args[0], nn.Parameter) and isinstance(value, Tensor)
            return value.detach() if is_view and value.requires_grad else value
        # Parameters are detached, so that exactly the tensors that depend on the picture require a gradient.
        args, kwargs = tree_map_only(nn.Parameter, Tensor.detach, (args, kwargs))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        depends = any(tensor.requires_grad for tensor in tensors)
        culprits = [
            self._detached[tensor] for tensor in tensors if tensor in self._detached and not tensor.requires_grad
        ]
        # A detached tensor (an index, a comparison) does no harm by itself. Combined with one that has a gradient, it
        # would silently lose a part of the relevance.
        if depends and culprits:
            raise self._unsupported(culprits[0], "whose result has no gradient")
        runs = depends and torch.is_grad_enabled()
        if runs and name in self._rules.constants:
            return func(*tree_map_only(Tensor, Tensor.detach, args), **tree_map_only(Tensor, Tensor.detach, kwargs))
        result = self._run(func, name, args, kwargs) if runs else func(*args, **kwargs)
        if (depends or culprits) and name not in _CONSTANTS:
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and not value.requires_grad:
                    self._detached[value] = culprits[0] if culprits else name
        return result

    def _run(self, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        base = re.sub(r"^__i(?=add|mul|sub|truediv|div)|^_+|_+$", "", name)
        base = _SYNONYMS.get(base, base)
        if not args and "input" in kwargs:
            kwargs = dict(kwargs)
            args = (kwargs.pop("input"),)
        writes = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        in_place = writes or bool(kwargs.get("inplace"))
        if kwargs.get("out") is not None:
            raise self._unsupported(base, "with the argument `out`")
        plain = {**kwargs, "inplace": False} if "inplace" in kwargs else kwargs
        operation = Operation(base, function, args, plain, writes)
        handler = self._rules.handlers.get(base)
        output = None if handler is None else handler(operation)
        if output is not None:
            return args[0].copy_(output) if in_place else output
        # An in-place operation on a view has no node in the graph, so `finish` would miss it: run it out of place.
        if in_place and base not in _HARMLESS and args[0]._is_view():
            return args[0].copy_(operation(args[0]))
        return function(*args, **kwargs)

    def finish(self, outputs: Tensor) -> None:
        """Stop replacing operations, and check all operations behind the outputs.

        Raises:
            UnsupportedOperationError: one of them has no rule.
            ModelOutputError: no gradient leads from the outputs to the input.
        """
        self._finished = True
        if not outputs.requires_grad:
            names = " or ".join(sorted(self._rules.constants))
            ends = f", or ends in {names}, which {self._rules.method!r} holds constant; remove it" if names else ""
            raise ModelOutputError(f"No gradient flows from the logits to the input: the model switches it off{ends}.")
        for node in _nodes(outputs.grad_fn):
            custom = getattr(node, "_forward_cls", None)
            if custom is _RuleFunction or is_tap(node):
                continue
            kind = re.sub(r"^.*::|Backward(s|\d*)$", "", node.name())
            if custom is not None:
                raise self._unsupported(custom.__name__, "(an autograd.Function of the model's own)")
            if not self._rules.keeps(kind, node):
                raise self._unsupported(kind.lower())

    def _unsupported(self, operation: str, how: str = "") -> UnsupportedOperationError:
        use = f"{operation!r} {how}".strip()
        return UnsupportedOperationError(
            f"The method {self._rules.method!r} has no rule for the operation {use}, as this model uses it; choose "
            f"another method, such as saliency.{opaque_parts(self._module)}",
            operation,
        )


def propagate(
    question: Question,
    images: Tensor,
    rules: Rules,
    begin: Callable[[Tensor, Tensor], Tensor] = lambda slopes, outputs: slopes,
    objective: Objective | None = None,
) -> tuple[Tensor, Objective, Tensor]:
    """Return the relevance of the input after a backward pass by rules; no parameter gets a gradient.

    Args:
        question: its module runs.
        images: (R, C, H, W); those of the question first, unless an objective is given.
        rules: see `Rules`.
        begin: returns the relevance of the outputs, given the score's gradients by the outputs, and the outputs; all
            (R, ...) float32.
        objective: objective of all rows; None for that of the question's images.

    Returns:
        Relevance (R, C, H, W) float32, the objective, and outputs (R, ...) float32.

    Raises:
        UnsupportedOperationError: an operation of the model has no rule.
        ModelOutputError, TargetError: as in `Explainer.explain`.
    """
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        # Fused attention hides its operations: computed by its definition, each of them meets its rule.
        with Rewriting(rules, question.module) as rewriting, DefinedAttention():
            outputs = question.run(leaf)
            rewriting.finish(outputs)
        values = outputs.detach().float().requires_grad_()
        objective = objective or question.objective(values[: len(question.images)])
        (slopes,) = torch.autograd.grad(objective.scores(values[: len(objective.targets)]).sum(), values)
        start = begin(slopes, values.detach()).to(outputs.dtype)
        (relevance,) = torch.autograd.grad(outputs, leaf, start, allow_unused=True)
    if relevance is None:
        raise ModelOutputError("No gradient flows from the logits to the input: the model detaches it.")
    return relevance.float(), objective, values.detach()


def only_first_depends(operation: Operation) -> bool:
    """Whether the first argument of an operation depends on the picture, and no other does."""
    first, *leaves = tree_leaves((operation.args, operation.kwargs))
    return (
        isinstance(first, Tensor)
        and first.requires_grad
        and not any(isinstance(value, Tensor) and value.requires_grad for value in leaves)
    )


def slope_of(operation: Operation, at: Tensor) -> Tensor:
    """Return the derivative of an elementwise function at values."""
    with torch.enable_grad():
        value = at.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(operation(value).sum(), value)
    return slopes


def rectifies(operation: Operation) -> bool:
    """Whether an elementwise function is zero up to zero and the identity a little above (ReLU, ReLU6)."""
    at = torch.tensor([-1e4, -1.0, -1e-3, 0.0, 1e-3, 0.5], dtype=torch.float64)
    try:
        return bool(torch.equal(operation(at), at.clamp_min(0)))
    except RuntimeError:  # bounds that are tensors on another device or of another shape
        return False


def moves_only(kind: str, _node: Any = None) -> bool:
    """Whether an operation only moves, copies or drops values, so that its gradient suits any rule."""
    return kind in _MOVES


def is_linear(kind: str, node: Any) -> bool:
    """Whether an operation is jointly linear, up to a constant, in all operands that depend on the picture."""
    if kind in _FACTORS:
        if getattr(node, "_saved_rounding_mode", None) is not None:
            return False
        first, *second = (node.next_functions[place][0] is not None for place in _FACTORS[kind])
        return not any(second) if kind in _FIRST_ONLY else first + sum(second) < 2
    if kind.endswith("BatchNorm"):
        return not getattr(node, "_saved_training", kind == "CudnnBatchNorm")
    return kind in _LINEAR or kind in _MOVES


def _nodes(root: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, each once, beginning with its last one; nothing for no graph."""
    visited = {None, root}
    stack = [] if root is None else [root]
    while stack:
        node = stack.pop()
        yield node
        for before, _ in node.next_functions:
            if before not in visited:
                visited.add(before)
                stack.append(before)


_ACCESS = frozenset({"__get__", "__set__", "__delete__", "size", "dim", "stride", "numel", "requires_grad_", "type"})
_CONSTANTS = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
    | {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"}
)
# These move values in place without computing any, so a view needs no node for them.
_HARMLESS = frozenset(
    {"copy", "detach", "squeeze", "unsqueeze", "transpose", "swapaxes", "swapdims", "t", "resize", "as_strided"}
)
_SYNONYMS = {
    "radd": "add",
    "rmul": "mul",
    "subtract": "sub",
    "multiply": "mul",
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "negative": "neg",
    "clip": "clamp",
    "setitem": "copy",
}
_MOVES = frozenset(
    {"AccumulateGrad", "Alias", "AsStrided", "Cat", "Clone", "ConstantPadNd", "Copy", "CopySlices", "Expand", "Flip"}
    | {"Gather", "Index", "IndexSelect", "Permute", "PixelShuffle", "PixelUnshuffle", "ReflectionPad1D", "Repeat"}
    | {"ReflectionPad2D", "ReplicationPad1D", "ReplicationPad2D", "ReshapeAlias", "Roll", "Select", "Slice", "Split"}
    | {"SplitWithSizes", "Squeeze", "Stack", "T", "ToCopy", "Transpose", "Unbind", "Unsqueeze", "UnsafeSplit"}
    | {"UnsafeView", "Unfold", "UpsampleNearest2D", "UpsampleNearestExact2D", "View", "Diagonal", "SafeSplit"}
    | {"Im2Col", "Where"}  # a condition that depends on the picture has no gradient, and is refused earlier
)
_LINEAR = frozenset(
    {"Add", "Sub", "Rsub", "Neg", "Mean", "Sum", "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D"}
    | {"MkldnnAdaptiveAvgPool2D", "UpsampleBilinear2D", "UpsampleBicubic2D", "Col2Im"}
    | {"Cumsum", "UpsampleBilinear2DAa", "UpsampleBicubic2DAa"}
)
# Kinds that multiply operands, and the places of the operands.
_FACTORS: dict[str, tuple[int, ...]] = {
    "Mul": (0, 1),
    "Mm": (0, 1),
    "Mv": (0, 1),
    "Bmm": (0, 1),
    "Dot": (0, 1),
    "Addmm": (1, 2),
    "Addmv": (1, 2),
    "Baddbmm": (1, 2),
    "Div": (0, 1),
    "Linear": (0, 1),
    "Convolution": (0, 1),
    "ConvolutionOverrideable": (0, 1),
    "CudnnConvolution": (0, 1),
    "MkldnnConvolution": (0, 1),
}
_FIRST_ONLY = frozenset({"Div"})
