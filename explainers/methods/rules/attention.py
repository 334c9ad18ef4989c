"""The rules of AttnLRP: relevance through softmax, products of two activations, normalisation and activations."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seewhy.explainers.methods.rules.base import Handler, Operation, Rules, only_first_depends, replaced
from seewhy.explainers.methods.rules.relevance import Composite, identity_rule, relevance_rules

ELEMENTWISE = (
    *("relu", "relu6", "leaky_relu", "prelu", "rrelu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max"),
    *("elu", "selu", "celu", "silu", "gelu", "mish", "softplus", "sigmoid", "tanh", "hardswish", "hardsigmoid"),
    *("softsign", "logsigmoid", "hardshrink", "softshrink", "tanhshrink", "erf", "exp", "square", "abs", "sin", "cos"),
)
"""Functions of one value, which pass all relevance on (the identity rule)."""


def attention_rules(method: str, composite: Composite, epsilon: float) -> Rules:
    """Return the rules of a composite, and those of AttnLRP for other operations of transformers; for one pass only.

    Args:
        method: its name, for messages.
        composite: rules for linear operations.
        epsilon: added to the denominators of the other rules.
    """
    rules = relevance_rules(method, composite)
    products = dict.fromkeys(("matmul", "bmm", "mm"), partial(_product, epsilon, 0))
    handlers: dict[str, Handler] = {
        **rules.handlers,
        **dict.fromkeys((*ELEMENTWISE, "normalize", "rms_norm"), identity_rule),
        **products,
        "einsum": partial(_product, epsilon, 1),
        "softmax": _softmax,
        **dict.fromkeys(("layer_norm", "group_norm", "instance_norm"), partial(_normalised, epsilon)),
        "glu": _half_gated,
        "mul": partial(_gate, rules.handlers["mul"]),
        "div": partial(_ratio, rules.handlers["div"]),
    }
    return replace(rules, handlers=handlers)


def softmax_relevance(scores: Tensor, probabilities: Tensor, relevance: Tensor, axis: int) -> Tensor:
    """Return the relevance of scores, given that of their softmax: x_i (R_i - s_i Σ_j R_j); 0 where masked."""
    shares = relevance - probabilities * relevance.sum(dim=axis, keepdim=True)
    return torch.where(torch.isfinite(scores), scores, 0.0) * shares


def product_relevance(
    apply: Callable[..., Tensor], factors: tuple[Tensor, ...], output: Tensor, relevance: Tensor, epsilon: float
) -> tuple[Tensor, ...]:
    """Return the relevance of the factors of a linear function, or of one of two arguments that is linear in each.

    Each factor gets an even part of the relevance, and shares it by contribution.
    """
    with torch.enable_grad():
        leaves = [factor.detach().float().requires_grad_() for factor in factors]
        result = apply(*leaves)
        parts = len(factors) * (output + torch.where(output < 0, -epsilon, epsilon))
        gradients = torch.autograd.grad(result, leaves, (relevance / parts).to(result))
    return tuple(leaf.detach() * gradient for leaf, gradient in zip(leaves, gradients, strict=True))


def _softmax(operation: Operation) -> Tensor | None:
    if not only_first_depends(operation):
        return None
    arguments = operation.bound("input", "dim")
    scores, axis = arguments["input"], arguments["dim"]
    output = operation(scores.detach())
    inputs, copy = scores.detach().clone(), output.clone()

    def backward(relevance: Tensor) -> tuple[Tensor]:
        return (softmax_relevance(inputs.float(), copy.float(), relevance.float(), axis),)

    return replaced(output, backward, scores)


def _product(epsilon: float, place: int, operation: Operation) -> Tensor | None:
    """A matrix product or sum of products of two tensors, which follow `place` other arguments."""
    before, factors, more = operation.args[:place], operation.args[place : place + 2], operation.args[place + 2 :]
    if len(factors) < 2 or more or not all(isinstance(factor, Tensor) for factor in factors) or operation.kwargs:
        return None
    inputs = [factor for factor in factors if factor.requires_grad]
    depends = [factor.requires_grad for factor in factors]
    copies = [factor.detach().clone() for factor in factors]
    output = operation.function(*before, *copies)
    result = output.clone()

    def apply(*values: Tensor) -> Tensor:
        queue = iter(values)
        operands = [next(queue) if is_input else copy.float() for is_input, copy in zip(depends, copies, strict=True)]
        product: Tensor = operation.function(*before, *operands)
        return product

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        values = tuple(copy for is_input, copy in zip(depends, copies, strict=True) if is_input)
        return product_relevance(apply, values, result.float(), relevance.float(), epsilon)

    return replaced(output, backward, *inputs)


def linear_part(operation: Operation) -> Callable[[Tensor], Tensor] | None:
    """Return a normalisation of one tensor without its shift, its deviation held constant; None where it is not one.

    Args:
        operation: `layer_norm`, `group_norm` or `instance_norm`.
    """
    if not only_first_depends(operation):
        return None
    if operation.name == "layer_norm":
        return _of_layers(operation)
    if operation.name == "group_norm":
        return _of_groups(operation.bound("input", "num_groups", "weight", "bias", "eps"))
    # By keywords, as `functional` calls it: `torch.instance_norm` has another order.
    if len(operation.args) > 1 or not operation.kwargs.get("use_input_stats", True):
        return None
    values = operation.args[0]
    return _of_groups({"input": values, "num_groups": values.shape[1], **operation.kwargs})


def _of_layers(operation: Operation) -> Callable[[Tensor], Tensor]:
    arguments = operation.bound("input", "normalized_shape", "weight", "bias", "eps")
    values, weight = arguments["input"].detach().float(), arguments.get("weight")
    axes = tuple(range(-len(arguments["normalized_shape"]), 0))
    factor = (values.var(dim=axes, correction=0, keepdim=True) + arguments.get("eps", 1e-5)).rsqrt()
    factor = factor if weight is None else factor * weight.float()
    return lambda inputs: (inputs - inputs.mean(dim=axes, keepdim=True)) * factor


def _of_groups(arguments: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    values, groups, weight = arguments["input"].detach().float(), arguments["num_groups"], arguments.get("weight")
    deviations = values.reshape(len(values), groups, -1).var(dim=2, correction=0, keepdim=True)
    factor = (deviations + arguments.get("eps", 1e-5)).rsqrt()
    shape = (1, -1, *[1] * (values.ndim - 2))
    slopes = torch.ones_like(values[0, 0]) if weight is None else weight.float().reshape(shape)

    def apply(inputs: Tensor) -> Tensor:
        grouped = inputs.reshape(len(inputs), groups, -1)
        centred: Tensor = (grouped - grouped.mean(dim=2, keepdim=True)) * factor
        return centred.reshape(inputs.shape) * slopes

    return apply


def _normalised(epsilon: float, operation: Operation) -> Tensor | None:
    """A normalisation, whose deviation is a constant: then it is linear, with a bias."""
    apply = linear_part(operation)
    if apply is None:
        return None
    values = operation.args[0]
    output = operation(values.detach())
    inputs, copy = values.detach().clone(), output.clone()

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        return product_relevance(apply, (inputs,), copy.float(), relevance.float(), epsilon)

    return replaced(output, backward, values)


def _two(operation: Operation) -> tuple[Tensor, Tensor] | None:
    """Return the operands of an elementwise operation, if both depend on the picture."""
    arguments = operation.bound("input", "other")
    first, second = arguments.get("input"), arguments.get("other")
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return None
    return (first, second) if first.requires_grad and second.requires_grad else None


def _gate(scaled: Handler, operation: Operation) -> Tensor | None:
    """A product of two activations: each gets half the relevance (the uniform rule)."""
    factors = _two(operation)
    if factors is None:
        return scaled(operation)
    shapes = [factor.shape for factor in factors]

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        return tuple((relevance / 2).sum_to_size(shape) for shape in shapes)

    return replaced(operation.function(*(factor.detach() for factor in factors)), backward, *factors)


def _half_gated(operation: Operation) -> Tensor | None:
    """A product of one half of the channels and a function of the other: each half gets half the relevance."""
    if not only_first_depends(operation):
        return None
    arguments = operation.bound("input", "dim")
    values, axis = arguments["input"], arguments.get("dim", -1)

    def backward(relevance: Tensor) -> tuple[Tensor]:
        return (torch.cat([relevance / 2] * 2, dim=axis),)

    return replaced(operation(values.detach()), backward, values)


def _ratio(scaled: Handler, operation: Operation) -> Tensor | None:
    """A quotient of two activations is a normalisation: the dividend gets all relevance."""
    operands = _two(operation)
    if operands is None or operation.kwargs.get("rounding_mode") is not None:
        return scaled(operation)
    shape = operands[0].shape
    output = operation.function(*(operand.detach() for operand in operands))
    return replaced(output, lambda relevance: (relevance.sum_to_size(shape),), operands[0])
