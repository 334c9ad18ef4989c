"""Rules for activations, arithmetic, shapes, linear maps, and pooling and its gradients."""

import operator
from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import inf
from typing import Any

import torch
from torch import Tensor, fx

from seewhy.explainers.execution.openvino_writer import Rules, UnknownOperationError, Writer, shape_of

RULES = Rules()

_aten = torch.ops.aten


@RULES.of(_aten.detach.default, _aten.alias.default, _aten.clone.default)
def _copy(writer: Writer, source: fx.Node, *, node: fx.Node, memory_format: Any = None) -> None:
    writer.same(node, source)


@RULES.of(_aten.copy.default)
def _copied(writer: Writer, target: fx.Node, source: fx.Node, *, node: fx.Node) -> None:
    writer.same(node, source)


@RULES.of(_aten.empty.memory_format, _aten.new_zeros.default)
def _no_value(writer: Writer, *_: Any, node: fx.Node, **__: Any) -> None:
    """Memory that other operations fill or ignore."""


@RULES.of(operator.getitem)
def _result(writer: Writer, source: fx.Node, index: int, *, node: fx.Node) -> None:
    if index == 0:
        writer.same(node, source)


@RULES.of(_aten.relu.default)
def _relu(writer: Writer, source: fx.Node, *, node: fx.Node) -> Any:
    return writer.ops.relu(writer.value(source))


@RULES.of(_aten.threshold_backward.default)
def _relu_backward(writer: Writer, gradient: fx.Node, result: fx.Node, bound: float, *, node: fx.Node) -> Any:
    return writer.masked(writer.value(gradient), writer.ops.greater(writer.value(result), writer.value(bound)))


@RULES.of(_aten.hardtanh.default)
def _clip(writer: Writer, source: fx.Node, low: float = -1.0, high: float = 1.0, *, node: fx.Node) -> Any:
    result = writer.ops.clamp(writer.value(source), low, high)
    writer.clipped[source, low, high] = result
    return result


@RULES.of(_aten.hardtanh_backward.default)
def _clip_backward(
    writer: Writer, gradient: fx.Node, source: fx.Node, low: float, high: float, *, node: fx.Node
) -> Any:
    # Computed from the result, which a convolution also yields; the source would be one more tensor.
    value = writer.clipped.get((source, low, high), writer.value(source))
    above = writer.masked(writer.value(gradient), writer.ops.greater(value, writer.value(low)))
    return writer.masked(above, writer.ops.less(value, writer.value(high)))


@RULES.of(_aten.add.Tensor)
def _add(writer: Writer, first: fx.Node, second: fx.Node | float, *, node: fx.Node, alpha: float = 1) -> Any:
    if alpha != 1:
        raise UnknownOperationError("There is no rule for weighted sums.")
    return writer.ops.add(writer.value(first), writer.value(second))


@RULES.of(_aten.mul.Tensor, _aten.mul.Scalar)
def _multiply(writer: Writer, first: fx.Node, second: fx.Node | float, *, node: fx.Node) -> Any:
    return writer.ops.multiply(writer.value(first), writer.value(second))


@RULES.of(_aten.div.Tensor, _aten.div.Scalar)
def _divide(writer: Writer, first: fx.Node, second: fx.Node | float, *, node: fx.Node) -> Any:
    return writer.ops.divide(writer.value(first), writer.value(second))


@RULES.of(_aten.cat.default)
def _concatenate(writer: Writer, parts: list[fx.Node], dim: int = 0, *, node: fx.Node) -> Any:
    return writer.ops.concat(list(map(writer.value, parts)), dim)


@RULES.of(_aten.slice.Tensor)
def _slice(
    writer: Writer, source: fx.Node, dim: int = 0, start: int = 0, end: int = 2**62, step: int = 1, *, node: fx.Node
) -> Any:
    return writer.ops.slice(writer.value(source), *(writer.constant([value]) for value in (start, end, step, dim)))


@RULES.of(_aten.slice_backward.default)
def _slice_backward(
    writer: Writer, gradient: fx.Node, sizes: list[int], dim: int, start: int, end: int, step: int, *, node: fx.Node
) -> Any:
    if step != 1:
        raise UnknownOperationError("There is no rule for slices with gaps.")
    before, after = [0] * len(sizes), [0] * len(sizes)
    first, last, _ = slice(start, end).indices(sizes[dim])  # either may count from the end
    before[dim], after[dim] = first, sizes[dim] - last
    return writer.padded(writer.value(gradient), before, after)


@RULES.of(_aten.constant_pad_nd.default)
def _pad(writer: Writer, source: fx.Node, margins: list[int], value: float = 0.0, *, node: fx.Node) -> Any:
    before, after = margins[::2][::-1], margins[1::2][::-1]
    fixed = [0] * (len(shape_of(source)) - len(before))
    return writer.padded(writer.value(source), [*fixed, *before], [*fixed, *after], float(value))


@RULES.of(_aten.mean.dim, _aten.sum.dim_IntList)
def _reduce(writer: Writer, source: fx.Node, dims: list[int], keepdim: bool = False, *, node: fx.Node) -> Any:
    if not dims or any(dim % len(shape_of(source)) == 0 for dim in dims):
        raise UnknownOperationError("There is no rule for sums over pictures.")
    reduced = writer.ops.reduce_mean if node.target is _aten.mean.dim else writer.ops.reduce_sum
    return reduced(writer.value(source), writer.constant(dims), keepdim)


@RULES.of(
    _aten.view.default, _aten._unsafe_view.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default
)
def _reshape(writer: Writer, source: fx.Node, *_: Any, node: fx.Node) -> Any:
    return writer.reshaped(writer.value(source), shape_of(node))


@RULES.of(_aten.as_strided.default)
def _as_strided(writer: Writer, source: fx.Node, *_: Any, node: fx.Node) -> Any:
    values: tuple[Tensor, Tensor] = source.meta["val"], node.meta["val"]
    if not all(value.is_contiguous() for value in values) or values[0].numel() != values[1].numel():
        raise UnknownOperationError("There is no rule for parts of memory.")
    return writer.reshaped(writer.value(source), values[1].shape) if source in writer.values else None


@RULES.of(_aten.as_strided_scatter.default)
def _as_strided_scatter(writer: Writer, target: fx.Node, source: fx.Node, *_: Any, node: fx.Node) -> Any:
    if source.meta["val"].numel() != node.meta["val"].numel() or not source.meta["val"].is_contiguous():
        raise UnknownOperationError("There is no rule for parts of memory.")
    return writer.reshaped(writer.value(source), shape_of(node))


@RULES.of(_aten.expand.default)
def _expand(writer: Writer, source: fx.Node, *_: Any, node: fx.Node) -> Any:
    shape = writer.constant([1, *shape_of(node)[1:]])
    return writer.ops.broadcast(writer.value(source), shape, broadcast_spec="BIDIRECTIONAL")


@RULES.of(_aten.t.default)
def _transpose(writer: Writer, source: fx.Node, *, node: fx.Node) -> None:
    writer.constants[node] = writer.tensor(source).t()


@RULES.of(_aten.mm.default)
def _product(writer: Writer, first: fx.Node, second: fx.Node, *, node: fx.Node) -> Any:
    return writer.ops.matmul(writer.value(first), writer.constant(writer.tensor(second)), False, False)


@RULES.of(_aten.addmm.default)
def _linear(writer: Writer, bias: fx.Node, first: fx.Node, second: fx.Node, *, node: fx.Node) -> Any:
    return writer.ops.add(_product(writer, first, second, node=node), writer.constant(writer.tensor(bias)))


@RULES.of(_aten.max_pool2d_with_indices.default)
def _max_pool(
    writer: Writer,
    source: fx.Node,
    kernel: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil: bool = False,
    *,
    node: fx.Node,
) -> Any:
    pooled = writer.ops.max_pool(
        writer.value(source),
        [*(stride or kernel)],
        [*dilation],
        [*padding],
        [*padding],
        kernel,
        "ceil_torch" if ceil else "floor",  # in PyTorch no window starts in the padding after the last entry
    )
    return pooled.output(0)


@RULES.of(_aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(
    writer: Writer,
    gradient: fx.Node,
    source: fx.Node,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
    indices: fx.Node,
    *,
    node: fx.Node,
) -> Any:
    """The gradient of a window goes to the first of its largest values, as in PyTorch.

    Runtimes are slow at the places of these values. Instead, the values at one offset within all windows are compared
    with the largest ones. Offsets that differ by multiples of the stride belong to the same rows and columns, which are
    interleaved with the others at the end.
    """
    step = (stride or kernel)[0]
    if {*dilation} != {1} or {*(stride or kernel)} != {step} or step > min(kernel):
        raise UnknownOperationError("There is no rule for pooling with gaps, or with unequal strides.")
    sizes, counts = shape_of(source)[2:], shape_of(gradient)[2:]
    after = [
        max(0, (count - 1) * step + length - before - size)
        for count, length, before, size in zip(counts, kernel, padding, sizes, strict=True)
    ]
    ops = writer.ops
    padded = writer.padded(writer.value(source), [0, 0, *padding], [0, 0, *after], -inf)
    pool: Any = indices.args[0]
    largest, upstream = writer.value(pool), writer.value(gradient)
    parts: dict[tuple[int, ...], list[Any]] = {}
    earlier: Any = None
    lengths = [-(-size // step) for size in sizes]
    for offset in product(*map(range, kernel)):
        ends = [start + (count - 1) * step + 1 for start, count in zip(offset, counts, strict=True)]
        values = ops.slice(padded, *map(writer.constant, ([*offset], ends, [step, step], [2, 3])))
        is_largest = ops.equal(values, largest)
        is_winner = is_largest if earlier is None else ops.logical_and(is_largest, ops.logical_not(earlier))
        earlier = is_largest if earlier is None else ops.logical_or(earlier, is_largest)
        places = [divmod(start - before, step) for start, before in zip(offset, padding, strict=True)]
        shifts, phase = [place[0] for place in places], tuple(place[1] for place in places)
        margins = [length - count - shift for length, count, shift in zip(lengths, counts, shifts, strict=True)]
        part = writer.padded(writer.masked(upstream, is_winner), [0, 0, *shifts], [0, 0, *margins])
        parts.setdefault(phase, []).append(part)
    phases = [reduce(ops.add, parts[phase]) for phase in sorted(parts)]
    if step == 1:
        return phases[0]
    whole = ops.depth_to_space(ops.concat(phases, 1), "blocks_first", step)
    return ops.slice(whole, *map(writer.constant, ([0, 0], [*sizes], [1, 1], [2, 3])))


@RULES.of(_aten._adaptive_avg_pool2d.default)
def _adaptive_pool(writer: Writer, source: fx.Node, size: list[int], *, node: fx.Node) -> None:
    if shape_of(source) != shape_of(node):
        raise UnknownOperationError("There is no rule for adaptive pooling to another size.")
    writer.same(node, source)


@RULES.of(_aten._adaptive_avg_pool2d_backward.default)
def _adaptive_pool_backward(writer: Writer, gradient: fx.Node, source: fx.Node, *, node: fx.Node) -> None:
    writer.same(node, gradient)
