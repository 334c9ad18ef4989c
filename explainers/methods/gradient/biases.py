"""Biases: the part of a module's output that does not scale with its input, explicit or implicit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.errors import LayerError
from seewhy.explainers.hooks.attention import DefinedAttention

HOMOGENEOUS = frozenset(
    {
        nn.ReLU,
        nn.LeakyReLU,
        nn.PReLU,
        nn.Identity,
        nn.Flatten,
        nn.Dropout,
        nn.Dropout2d,
        nn.MaxPool2d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool2d,
        nn.AdaptiveMaxPool2d,
    }
)
"""Types of modules f with f(az) = a f(z) for every positive a, which have no bias of either kind."""

_ELEMENTWISE = frozenset(
    {
        *(nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.SiLU, nn.GELU, nn.Mish, nn.Sigmoid, nn.Tanh),
        *(nn.ELU, nn.CELU, nn.SELU, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Threshold),
        *(nn.Hardshrink, nn.Softshrink),
    }
)
_NORMS = frozenset({nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d})
_AFFINE = frozenset({nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d})


def implicit_bias(part: nn.Module, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return f(z) - J z, the constant of the tangent of a module f at its input z, where its Jacobian is J.

    J z is computed by backward passes alone: forward-mode differentiation keeps its state in the process, and not in
    the thread.

    Args:
        part: in evaluation mode; neither it nor its parameters change.
        value: z, (N, ...).

    Returns:
        The bias (N, ...) at each position of the output; and the sum of the magnitudes of the two values whose
        difference it is, which bounds its rounding; None if it is not a difference, or one in double precision.

    Raises:
        LayerError: PyTorch cannot differentiate the module twice.
    """
    if type(part) in _NORMS and isinstance(part.running_mean, Tensor):
        return _of_norm(part, value), None
    if type(part) in _AFFINE:
        with torch.no_grad():
            constant = part.forward(torch.zeros_like(value[:1]))
        return constant.expand(len(value), *constant.shape[1:]), None
    # A module without tensors runs in any precision, and in double precision the difference is free of rounding. Only
    # PyTorch's own modules surely hold no tensors besides parameters and buffers.
    exact = (
        value.device.type != "mps"
        and all(type(inner).__module__.startswith("torch.nn.") for inner in part.modules())
        and not any(True for _ in part.parameters())
        and not any(True for _ in part.buffers())
    )
    if exact:
        value = value.double()
    output, tangent = (_of_elementwise if type(part) in _ELEMENTWISE else _twice)(part, value.detach())
    if exact:
        return output - tangent, None
    return (output - tangent).float(), output.abs().float() + tangent.abs().float()


def _of_norm(part: Any, value: Tensor) -> Tensor:
    """Return the shift of a batch normalisation by its running statistics."""
    shift: Tensor = -part.running_mean.double() * (part.running_var.double() + part.eps).rsqrt()
    if part.weight is not None:
        shift = shift * part.weight.detach().double()
    if part.bias is not None:
        shift = shift + part.bias.detach().double()
    return shift.view(1, -1, *[1] * (value.ndim - 2)).expand_as(value)


def _of_elementwise(part: nn.Module, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(z) and J z of a function whose Jacobian is diagonal: one backward pass gives all its slopes."""
    with torch.enable_grad():
        leaf = value.requires_grad_()
        output = part.forward(leaf.clone())
        (slopes,) = torch.autograd.grad(output.sum(), leaf)
    return output.detach(), slopes * leaf.detach()


def _twice(part: nn.Module, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(z) and J z by two backward passes.

    The first computes u J for a differentiable u. This is linear in u, so its backward pass, started with z, gives J z.
    The value of u does not matter: it is zero.
    """
    with torch.enable_grad(), _TwiceDifferentiable():
        leaf = value.requires_grad_()
        output = part.forward(leaf.clone())
        weights = torch.zeros_like(output, requires_grad=True)
        tangent = None
        try:
            if output.requires_grad:
                (vjp,) = torch.autograd.grad(output, leaf, weights, create_graph=True, allow_unused=True)
                if vjp is not None and vjp.requires_grad:
                    (tangent,) = torch.autograd.grad(vjp, weights, leaf.detach(), allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented" not in str(error) and "twice" not in str(error):
                raise
            raise LayerError(
                f"PyTorch cannot differentiate {type(part).__name__} twice, so FullGrad cannot determine its bias; "
                "use integrated gradients or another method."
            ) from error
    return output.detach(), torch.zeros_like(output) if tangent is None else tangent.detach()


class _TwiceDifferentiable(DefinedAttention):
    """Replaces functions without a second derivative in PyTorch, fused attention too, by equal ones with one."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.hardsigmoid:
            return _hardsigmoid(*args, **(kwargs or {}))
        if function is functional.multi_head_attention_forward:
            kwargs = {**(kwargs or {}), "need_weights": True}  # with added keys it runs as it is, fused without these
        return super().__torch_function__(function, types, args, kwargs)


def _hardsigmoid(values: Tensor, inplace: bool = False) -> Tensor:
    output = functional.relu6(values + 3) / 6
    return values.copy_(output) if inplace else output
