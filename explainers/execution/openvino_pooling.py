"""Rules for pooling, and for its gradients."""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import inf
from typing import Any

import torch
from torch import fx

from seewhy.explainers.execution.openvino_writer import Rules, UnknownOperationError, Writer, shape_of

RULES = Rules()

_aten = torch.ops.aten


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
        chosen = is_largest if earlier is None else ops.logical_and(is_largest, ops.logical_not(earlier))
        earlier = is_largest if earlier is None else ops.logical_or(earlier, is_largest)
        places = [divmod(start - before, step) for start, before in zip(offset, padding, strict=True)]
        shifts, phase = [place[0] for place in places], tuple(place[1] for place in places)
        margins = [length - count - shift for length, count, shift in zip(lengths, counts, shifts, strict=True)]
        part = writer.padded(writer.masked(upstream, chosen), [0, 0, *shifts], [0, 0, *margins])
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
