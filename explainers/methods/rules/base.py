"""Backward passes by other rules than the chain rule's: operations of a forward pass are replaced as they are called.

While a `Rewriting` is active in a thread, it sees every function that is called with tensors: by modules, functional,
in place, or several times by one module. What a method has a rule for is replaced by an operation of the same value
whose gradient is what the rule says; everything else stays. Ordinary autograd then carries relevance instead of
gradients. Afterwards the whole graph is read: an operation that is neither replaced nor known to be right as it is, is
refused by name, also one that no mode can see (a custom `autograd.Function`, or compiled or scripted code).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import ModelOutputError, UnsupportedOperationError
from seewhy.explainers.hooks.gradient_tap import is_tap

Pull = Callable[[Tensor], tuple[Tensor | None, ...]]
"""Takes what arrives at an operation's output, and returns what goes on to each of its inputs."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a function.

    Attributes:
        name: without the underscores of in-place and operator functions.
        args, kwargs: of the call; parameters among them are detached.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: bool

    def __call__(self, value: Tensor) -> Any:
        """Compute the function, out of place, of another first argument."""
        return self.function(value.clone() if self.writes else value, *self.args[1:], **self.kwargs)

    def apart(self) -> "Operation":
        """Return it without its first argument, for a `Pull`, which must not hold that one (see `replaced`)."""
        return replace(self, args=(None, *self.args[1:]))

    def doubled(self) -> "Operation":
        """Return it with its other arguments in double precision, for a first argument in double precision."""

        def widened(value: Any) -> Any:
            return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

        kwargs = {name: widened(value) for name, value in self.kwargs.items()}
        return replace(self, args=tuple(map(widened, self.args)), kwargs=kwargs)

    def bound(self, *names: str) -> dict[str, Any]:
        """Return the arguments by name, given their order."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}


Handler = Callable[[Operation], Tensor | None]
"""Returns what replaces an operation (see `replaced`), or None to leave it as it is."""


@dataclass(frozen=True, eq=False)
class Rules:
    """How one method goes back through a model.

    Attributes:
        method: its name, for messages.
        handlers: by name of the operation.
        keeps: whether a node of the graph, of this kind, may stay as autograd has it.
    """

    method: str
    handlers: Mapping[str, Handler]
    keeps: Callable[[str, Any], bool]


class _Replaced(torch.autograd.Function):
    """A value computed already, whose backward pass is a function."""

    @staticmethod
    def forward(ctx: Any, output: list[Tensor], pull: Pull, weighted: bool, *_inputs: Any) -> Tensor:
        ctx.pull, ctx.weighted = pull, weighted
        return output[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (None, None, None, *ctx.pull(gradient))


def replaced(output: Tensor, pull: Pull, *inputs: Tensor, weighted: bool = False) -> Tensor:
    """Return the output as one that autograd goes back from by a rule.

    Args:
        output: no view of an input.
        pull: must hold copies of what it needs, for the model may overwrite its tensors later; and no tensor of the
            graph, for what is done in place to it makes the graph lead to the pull, and neither is ever freed.
        inputs: whose gradients `pull` returns.
        weighted: whether the operation has weights (`is_first`).
    """
    found: Tensor = _Replaced.apply([output.detach()], pull, weighted, *inputs)
    return found


def is_first(value: Tensor) -> bool:
    """Whether no operation with weights lies between the picture and a tensor."""
    return not any(getattr(node, "weighted", False) for node in _nodes(value.grad_fn))


class Rewriting(TorchFunctionMode):
    """Replaces operations of this thread by those that follow rules, until `finish`."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules
        self._finished = False
        self._cut = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if self._finished or name in _ACCESS:
            return func(*args, **kwargs)
        # Only what depends on the picture is to need gradients.
        args, kwargs = tree_map_only(nn.Parameter, Tensor.detach, (args, kwargs))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        live = any(tensor.requires_grad for tensor in tensors)
        culprits = [self._cut[tensor] for tensor in tensors if tensor in self._cut and not tensor.requires_grad]
        if live and culprits:
            raise self._unsupported(culprits[0], "whose result goes on without a gradient")
        runs = live and torch.is_grad_enabled()
        result = self._run(func, name, args, kwargs) if runs else func(*args, **kwargs)
        if (live or culprits) and name not in _CONSTANTS:
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and not value.requires_grad:
                    self._cut[value] = culprits[0] if culprits else name
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
        made = None if handler is None else handler(operation)
        if made is not None:
            return args[0].copy_(made) if in_place else made
        # What is done in place to a view has no node of its own in the graph.
        if in_place and base not in _HARMLESS and args[0]._is_view():
            return args[0].copy_(operation(args[0]))
        return function(*args, **kwargs)

    def finish(self, outputs: Tensor) -> None:
        """Replace no more, and check all operations that led to the logits.

        Raises:
            UnsupportedOperationError: one of them has no rule.
            ModelOutputError: no gradient leads from the logits to the input.
        """
        self._finished = True
        if not outputs.requires_grad:
            raise ModelOutputError("No gradient flows from the logits to the input: the model switches it off.")
        for node in _nodes(outputs.grad_fn):
            custom = getattr(node, "_forward_cls", None)
            if custom is _Replaced or is_tap(node):
                continue
            kind = re.sub(r"^.*::|Backward(s|\d*)$", "", node.name())
            if custom is not None:
                raise self._unsupported(custom.__name__, "(an autograd.Function of the model's own)")
            if not self._rules.keeps(kind, node):
                raise self._unsupported(kind.lower())

    def _unsupported(self, operation: str, how: str = "") -> UnsupportedOperationError:
        said = f"{operation!r} {how}".strip()
        return UnsupportedOperationError(
            f"The method {self._rules.method!r} has no rule for the operation {said}, as this model uses it; choose "
            "another method, such as saliency.",
            operation,
        )


def propagate(
    question: Question,
    images: Tensor,
    rules: Rules,
    begin: Callable[[Tensor, Tensor], Tensor] = lambda slopes, outputs: slopes,
    objective: Objective | None = None,
) -> tuple[Tensor, Objective, Tensor]:
    """Return what arrives at the input when the model is gone back through by rules; no parameter gets a gradient.

    Args:
        question: whose module is run.
        images: (R, C, H, W); those of the objective first.
        rules: see `Rules`.
        begin: what starts at the outputs, given the gradients of the score there and the outputs, each
            (R, ...) float32.
        objective: of the rows; None for that of the question's own pictures.

    Returns:
        (R, C, H, W) float32, the objective, and outputs (R, ...) float32.

    Raises:
        UnsupportedOperationError: an operation of the model has no rule.
        ModelOutputError, TargetError: as `Explainer.explain`.
    """
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        with Rewriting(rules) as rewriting:
            outputs = question.run(leaf)
            rewriting.finish(outputs)
        values = outputs.detach().float().requires_grad_()
        objective = objective or question.objective(values[: len(question.images)])
        (slopes,) = torch.autograd.grad(objective.scores(values[: len(objective.targets)]).sum(), values)
        start = begin(slopes, values.detach()).to(outputs.dtype)
        (found,) = torch.autograd.grad(outputs, leaf, start, allow_unused=True)
    if found is None:
        raise ModelOutputError("No gradient flows from the logits to the input: the model detaches it.")
    return found.float(), objective, values.detach()


def only_first_depends(operation: Operation) -> bool:
    """Whether the first argument of an operation depends on the picture, and no other does."""
    first, *rest = tree_leaves((operation.args, operation.kwargs))
    return (
        isinstance(first, Tensor)
        and first.requires_grad
        and not any(isinstance(value, Tensor) and value.requires_grad for value in rest)
    )


def slope_of(operation: Operation, at: Tensor) -> Tensor:
    """Return the derivative of an elementwise function at given values."""
    with torch.enable_grad():
        value = at.detach().requires_grad_()
        (found,) = torch.autograd.grad(operation(value).sum(), value)
    return found


def rectifies(operation: Operation) -> bool:
    """Whether an elementwise function is zero up to zero and the identity a little above (ReLU, ReLU6)."""
    at = torch.tensor([-1e4, -1.0, -1e-3, 0.0, 1e-3, 0.5], dtype=torch.float64)
    try:
        return bool(torch.equal(operation(at), at.clamp_min(0)))
    except RuntimeError:  # bounds that are tensors on another device or of another shape
        return False


def moves_only(kind: str, _node: Any = None) -> bool:
    """Whether an operation only moves, copies or drops values, so that any rule goes back through it unchanged."""
    return kind in _MOVES


def is_linear(kind: str, node: Any) -> bool:
    """Whether an operation is linear, up to a constant, in all that depends on the picture together."""
    if kind in _FACTORS:
        if getattr(node, "_saved_rounding_mode", None) is not None:
            return False
        first, *others = (node.next_functions[place][0] is not None for place in _FACTORS[kind])
        return not any(others) if kind in _FIRST_ONLY else first + sum(others) < 2
    if kind.endswith("BatchNorm"):
        return not getattr(node, "_saved_training", kind == "CudnnBatchNorm")
    return kind in _LINEAR or kind in _MOVES


def _nodes(root: Any) -> Iterator[Any]:
    seen = {None, root}
    waiting = [] if root is None else [root]
    while waiting:
        node = waiting.pop()
        yield node
        for before, _ in node.next_functions:
            if before not in seen:
                seen.add(before)
                waiting.append(before)


_ACCESS = frozenset({"__get__", "__set__", "__delete__", "size", "dim", "stride", "numel", "requires_grad_", "type"})
_CONSTANTS = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
    | {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"}
)
# In place without new values; or, like a copy, of which a view's node in the graph tells enough.
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
    | {"Where"}  # a condition that depends on the picture is refused before, as one without a gradient
)
_LINEAR = frozenset(
    {"Add", "Sub", "Rsub", "Neg", "Mean", "Sum", "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D"}
    | {"MkldnnAdaptiveAvgPool2D", "UpsampleBilinear2D", "UpsampleBicubic2D", "Im2Col", "Col2Im"}
    | {"Cumsum", "UpsampleBilinear2DAa", "UpsampleBicubic2DAa"}
)
# Kinds whose operands are multiplied, and where these are.
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
