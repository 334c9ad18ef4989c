"""Rules for pooling, and for its gradients."""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import inf
from typing import Any

import torch
from torch import fx

from seewhy.explainers.execution.onnx_writer import Rules, UnknownOperationError, Writer, shape_of

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
) -> str:
    return writer.step(
        "MaxPool",
        writer.value(source),
        kernel_shape=kernel,
        strides=stride or kernel,
        pads=[*padding, *padding],
        dilations=dilation,
        ceil_mode=int(ceil),
    )


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
) -> str:
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
    padded = writer.step(
        "Pad", writer.value(source), writer.constant([0, 0, *padding, 0, 0, *after]), writer.constant(-inf)
    )
    pool: Any = indices.args[0]
    largest, upstream, zero = writer.value(pool), writer.value(gradient), writer.constant(0.0)
    parts: dict[tuple[int, ...], list[str]] = {}
    earlier: str | None = None
    lengths = [-(-size // step) for size in sizes]
    for offset in product(*map(range, kernel)):
        ends = [start + (count - 1) * step + 1 for start, count in zip(offset, counts, strict=True)]
        values = writer.step("Slice", padded, *map(writer.constant, ([*offset], ends, [2, 3], [step, step])))
        is_largest = writer.step("Equal", values, largest)
        chosen = is_largest if earlier is None else writer.step("And", is_largest, writer.step("Not", earlier))
        earlier = is_largest if earlier is None else writer.step("Or", earlier, is_largest)
        places = [divmod(start - before, step) for start, before in zip(offset, padding, strict=True)]
        shifts, phase = [place[0] for place in places], tuple(place[1] for place in places)
        margins = [length - count - shift for length, count, shift in zip(lengths, counts, shifts, strict=True)]
        part = writer.step("Where", chosen, upstream, zero)
        parts.setdefault(phase, []).append(writer.step("Pad", part, writer.constant([0, 0, *shifts, 0, 0, *margins])))
    phases = [reduce(lambda *pair: writer.step("Add", *pair), parts[phase]) for phase in sorted(parts)]
    if step == 1:
        return phases[0]
    whole = writer.step("DepthToSpace", writer.step("Concat", *phases, axis=1), blocksize=step)
    return writer.step("Slice", whole, *map(writer.constant, ([0, 0], [*sizes], [2, 3])))


@RULES.of(_aten._adaptive_avg_pool2d.default)
def _adaptive_pool(writer: Writer, source: fx.Node, size: list[int], *, node: fx.Node) -> None:
    if shape_of(source) != shape_of(node):
        raise UnknownOperationError("There is no rule for adaptive pooling to another size.")
    writer.same(node, source)


@RULES.of(_aten._adaptive_avg_pool2d_backward.default)
def _adaptive_pool_backward(writer: Writer, gradient: fx.Node, source: fx.Node, *, node: fx.Node) -> None:
    writer.same(node, gradient)
