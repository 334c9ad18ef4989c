"""Rules for convolutions and batch normalisation, and for their gradients.

Convolutions absorb batch normalisation, in both directions. The gradient of a convolution with stride 1 is a
convolution with the flipped kernel, which is faster than a transposed one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from seewhy.explainers.execution.openvino_writer import Rules, UnknownOperationError, Writer, of_channels, shape_of

RULES = Rules()

_aten = torch.ops.aten


class _Form(NamedTuple):
    """The form of a convolution, in ATen's order of arguments."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


def _form_of(arguments: tuple[Any, ...]) -> _Form:
    form = _Form(*arguments)
    if form.transposed:
        raise UnknownOperationError("There is no rule for transposed convolutions.")
    return form


@RULES.of(_aten.convolution.default)
def _convolution(
    writer: Writer, source: fx.Node, weight: fx.Node, bias: fx.Node | None, *arguments: Any, node: fx.Node
) -> Any:
    form = _form_of(arguments)
    kernel = writer.tensor(weight)
    offset = None if bias is None else writer.tensor(bias)
    norm = _norm_after(node)
    if norm is not None:
        statistics: Any = norm.args[1:]
        factor, shift = _affine(writer, *statistics)
        kernel = kernel * factor[:, None, None, None]
        offset = shift if offset is None else shift + offset * factor
    result = _convolved(writer, writer.value(source), kernel, form, (form.padding, form.padding))
    return result if offset is None else writer.ops.add(result, writer.constant(offset[:, None, None]))


@RULES.of(_aten.convolution_backward.default)
def _convolution_backward(
    writer: Writer, gradient: fx.Node, source: fx.Node, weight: fx.Node, _: Any, *arguments: Any, node: fx.Node
) -> Any:
    form = _form_of(arguments[:-1])  # the last one tells which gradients are needed
    kernel = writer.tensor(weight)
    factor = writer.factors.get(gradient)
    if factor is not None:
        kernel = kernel * factor[:, None, None, None]
    value = writer.value(gradient) if factor is None else writer.values[gradient]
    # Nothing is computed for entries that padding before the convolution has added.
    crop, (left, right, top, bottom) = _crop_of(node)
    size = shape_of(source)
    height, width = size[2] + top + bottom, size[3] + left + right
    before = [form.padding[0] - top, form.padding[1] - left]
    reach = [step * (length - 1) for step, length in zip(form.dilation, kernel.shape[2:], strict=True)]
    counts = shape_of(gradient)[2:]
    after = [
        (counts[axis] - 1) * form.stride[axis] + reach[axis] + 1 - before[axis] - length
        for axis, length in enumerate((height, width))
    ]
    if form.stride == [1, 1] and all(0 <= pads[axis] <= reach[axis] for pads in (before, after) for axis in (0, 1)):
        turned = kernel.reshape(form.groups, -1, *kernel.shape[1:]).transpose(1, 2).flip(3, 4).flatten(0, 1)
        ends = [[reach[axis] - pads[axis] for axis in (0, 1)] for pads in (before, after)]
        result = _convolved(writer, value, turned, form, ends)
    else:
        grouped = form.groups > 1
        transposed = writer.ops.group_convolution_backprop_data if grouped else writer.ops.convolution_backprop_data
        result = transposed(
            value,
            writer.constant(kernel.reshape(form.groups, -1, *kernel.shape[1:]) if grouped else kernel),
            form.stride,
            pads_begin=before,
            pads_end=[max(pad, 0) for pad in after],
            dilations=form.dilation,
            auto_pad="EXPLICIT",
            output_padding=[max(-pad, 0) for pad in after],
        )
    if crop is not None:
        writer.values[crop] = result
    return result


def _convolved(writer: Writer, value: Any, kernel: Tensor, form: _Form, pads: Sequence[Sequence[int]]) -> Any:
    """Return a value convolved with a kernel, padded before and after."""
    if form.groups == 1:
        return writer.ops.convolution(value, writer.constant(kernel), form.stride, *pads, form.dilation)
    grouped = writer.constant(kernel.reshape(form.groups, -1, *kernel.shape[1:]))
    return writer.ops.group_convolution(value, grouped, form.stride, *pads, form.dilation)


def _crop_of(node: fx.Node) -> tuple[fx.Node | None, Sequence[int]]:
    """Return the step that crops the gradient of a convolution's input, because that was padded; None without one.

    Returns:
        The step, if nothing else reads the gradient; and its padding left, right, above and below, at most 0.
    """
    (gradient,) = [user for user in node.users if user.args[1] == 0]
    users = list(gradient.users)
    if len(users) == 1 and users[0].target is _aten.constant_pad_nd.default:
        margins: Any = users[0].args[1]
        if max(margins) <= 0 and len(margins) <= 4:
            return users[0], (*margins, 0, 0)[:4]
    return None, (0, 0, 0, 0)


def _norm_after(node: fx.Node) -> fx.Node | None:
    """Return the batch normalisation that alone reads a convolution's result."""
    readers = [user for user in node.users if user.target is not _aten.native_batch_norm_backward.default]
    return readers[0] if len(readers) == 1 and readers[0].target is _aten.native_batch_norm.default else None


def _affine(
    writer: Writer,
    weight: fx.Node | None,
    bias: fx.Node | None,
    mean: fx.Node,
    variance: fx.Node,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Return the factors and offsets (C,) of a batch normalisation."""
    if training:
        raise UnknownOperationError("There is no rule for batch normalisation by the batch's statistics.")
    factor = torch.rsqrt(writer.tensor(variance) + epsilon)
    if weight is not None:
        factor = factor * writer.tensor(weight)
    offset = -writer.tensor(mean) * factor
    return factor, offset if bias is None else offset + writer.tensor(bias)


@RULES.of(_aten.native_batch_norm.default)
def _batch_norm(writer: Writer, source: fx.Node, *arguments: Any, node: fx.Node) -> Any:
    if source.target is _aten.convolution.default and _norm_after(source) is node:
        return writer.values[source]
    factor, offset = (of_channels(values, node) for values in _affine(writer, *arguments))
    scaled = writer.ops.multiply(writer.value(source), writer.constant(factor))
    return writer.ops.add(scaled, writer.constant(offset))


@RULES.of(_aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    writer: Writer,
    gradient: fx.Node,
    source: fx.Node,
    weight: fx.Node | None,
    mean: fx.Node,
    variance: fx.Node,
    saved_mean: Any,
    saved_deviation: Any,
    training: bool,
    epsilon: float,
    mask: Any,
    *,
    node: fx.Node,
) -> Any:
    factor, _ = _affine(writer, weight, None, mean, variance, training, 0.0, epsilon)
    writer.factors[node] = factor
    return writer.value(gradient)
