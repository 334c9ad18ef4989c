"""The rules: the effect of each operation of PyTorch on a layout. Operations that keep or scale shapes need no rule.

A rule takes the layout of its only tensor (`layout_rule`) or a function from tensors to their layouts (`rule`), the
operation's result, and its arguments as PyTorch's dispatcher passes them, which leaves out trailing defaults.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from seewhy.explainers.layers.effects import Effect, Layouts, aten, default_effect, layout_rule, rule
from seewhy.explainers.layers.layout import Axis, Layout, broadcast, contracted, plain, reshaped, resized, windowed


def _each(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values if len(values) == count else values[:1] * count


@layout_rule("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", "cudnn_convolution")
def _convolution(
    layout: Layout,
    result: Tensor,
    weight: Tensor,
    _bias: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool = False,
    *_: Any,
) -> Effect | None:
    if len(layout.axes) != result.ndim:
        return None
    kernel = list(weight.shape[2:])
    steps, pads, gaps = (_each(value, len(kernel)) for value in (stride, padding, dilation))
    channels = layout.axes[1]
    if transposed is True:
        slid = resized(layout, result.shape) or layout
    else:
        slid = windowed(layout, result.shape, kernel, steps, pads, gaps)
    # New channels; positions among the old ones, as of an MLP that mixes tokens, are summed up.
    slid = slid.with_axis(1, plain(result.shape[1]))
    return Effect(contracted(slid, channels), kernel=max(kernel, default=1) > 1, mixes=channels.of_picture)


@layout_rule("max_pool2d_with_indices", "max_pool2d", "max_pool3d_with_indices", "max_pool1d", kernel=True)
def _max_pool(
    layout: Layout, result: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, *_: Any
) -> Layout:
    dimensions = len(kernel) if isinstance(kernel, list | tuple) else 2
    size = _each(kernel, dimensions)
    steps = _each(stride, dimensions) if stride else size
    return windowed(layout, result.shape, size, steps, _each(padding, dimensions), _each(dilation, dimensions))


@layout_rule("avg_pool2d", "avg_pool1d", "avg_pool3d", kernel=True)
def _avg_pool(layout: Layout, result: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, *_: Any) -> Layout:
    return _max_pool(layout, result, kernel, stride, padding)


@layout_rule("view", "_unsafe_view", "_reshape_alias", "reshape", "_reshape_copy", "view_copy", "flatten", "unflatten")
def _view(layout: Layout, result: Tensor, *_: Any) -> Layout | None:
    return reshaped(layout, result.shape)


@layout_rule("permute", "permute_copy")
def _permute(layout: Layout, _result: Tensor, order: Sequence[int]) -> Layout:
    return layout.with_axes([layout.axes[index] for index in order])


@layout_rule("transpose", "transpose_copy", "transpose_", "swapaxes")
def _transpose(layout: Layout, _result: Tensor, first: int, second: int) -> Layout:
    return layout.with_axis(first, layout.axes[second]).with_axis(second, layout.axes[first])


@layout_rule("t", "t_", "t_copy")
def _t(layout: Layout, _result: Tensor) -> Layout:
    return layout.with_axes(layout.axes[::-1])


@layout_rule("unsqueeze", "unsqueeze_", "unsqueeze_copy")
def _unsqueeze(layout: Layout, result: Tensor, index: int) -> Layout:
    return _inserted(layout, index % result.ndim, 1)


def _inserted(layout: Layout, place: int, size: int) -> Layout:
    return layout.with_axes([*layout.axes[:place], plain(size), *layout.axes[place:]])


@layout_rule("squeeze", "squeeze_", "squeeze_copy")
def _squeeze(layout: Layout, _result: Tensor, index: int | Sequence[int] | None = None) -> Layout:
    count = len(layout.axes)
    indices = range(count) if index is None else [index] if isinstance(index, int) else index
    candidates = {number % count for number in indices}
    return layout.with_axes(
        [axis for place, axis in enumerate(layout.axes) if place not in candidates or axis.size != 1]
    )


@layout_rule("expand", "expand_copy", "repeat")
def _expand(layout: Layout, result: Tensor, *_: Any, **__: Any) -> Layout | None:
    return broadcast([layout], result.shape)


@layout_rule("select", "select_copy")
def _select(layout: Layout, _result: Tensor, index: int, position: int = 0, *_: Any) -> Effect:
    axes = list(layout.axes)
    axis = axes.pop(index)
    return Effect(layout.with_axes(axes), pools=True, beside=axis.is_beside(position % axis.size, 1))


@layout_rule("slice", "slice_copy")
def _slice(
    layout: Layout, result: Tensor, index: int = 0, start: int | None = None, _end: int | None = None, step: int = 1
) -> Effect:
    axis = layout.axes[index]
    first = 0 if start is None else min(max(start + axis.size if start < 0 else start, 0), axis.size)
    count = result.shape[index]
    beside = axis.is_beside(first, (count - 1) * step + 1)
    return Effect(_part(layout, index, first, count, step), beside=beside)


def _part(layout: Layout, index: int, first: int, size: int, step: int = 1) -> Layout:
    """Return the layout of a part of an axis: `size` positions from `first` on, `step` apart."""
    axis = layout.axes[index]
    if axis.size == size and step == 1:
        return layout
    if (line := axis.line) is not None:
        return layout.with_axis(index, line.spread(size, step)).shift(line.along, first * line.step)
    inside = axis.size - axis.before - axis.after
    # A slice that drops only class tokens keeps the positions of the picture.
    if step == 1 and axis.spatial and first <= axis.before and axis.before + inside <= first + size:
        before = axis.before - first
        return layout.with_axis(index, Axis(axis.factors, before, size - before - inside))
    return layout.with_axis(index, plain(size))


def pieces(layout: Layout | None, results: Sequence[Tensor], index: int) -> list[Layout | None]:
    """Return the layouts of the pieces that a tensor is split into along an axis."""
    parts: list[Layout | None] = []
    first = 0
    for result in results:
        size = result.shape[index]
        parts.append(layout and _part(layout, index, first, size))
        first += size
    return parts


@rule("cat", "concat", "concatenate")
def _cat(layouts: Layouts, result: Tensor, tensors: Sequence[Tensor], index: int = 0) -> Effect:
    parts = [layouts(tensor) for tensor in tensors]
    joined = [part for part in parts if part is not None and len(part.axes) == result.ndim]
    layout = broadcast(joined, [*result.shape[: index % result.ndim], 0, *result.shape[index % result.ndim + 1 :]])
    if layout is None:
        return Effect(None)
    axis = plain(result.shape[index])
    placed = [number for number, part in enumerate(parts) if part is not None and part.axes[index].spatial]
    if len(placed) == 1:
        # Class tokens beside the positions of one tensor.
        (number,) = placed
        inner = joined[[part is parts[number] for part in joined].index(True)].axes[index]
        sizes = [tensor.shape[index] for tensor in tensors]
        axis = Axis(inner.factors, inner.before + sum(sizes[:number]), inner.after + sum(sizes[number + 1 :]))
    elif placed:
        lines = [part.axes[index].line for part in joined]
        first = lines[0]
        if first is not None and all(line and line[::2] == first[::2] for line in lines):
            # Parts of the picture side by side, perhaps rolled; or an axis padded with parts of itself.
            axis = first.spread(result.shape[index])
            start = min((part.start for part in joined), key=sum)
            layout = layout._replace(start=start, exact=False)
    return Effect(layout.with_axis(index, axis))


@rule("stack")
def _stack(layouts: Layouts, result: Tensor, tensors: Sequence[Tensor], index: int = 0) -> Effect:
    layout = next((layout for tensor in tensors if (layout := layouts(tensor)) is not None), None)
    return Effect(layout and _inserted(layout, index % result.ndim, len(tensors)))


@layout_rule(
    "constant_pad_nd",
    "pad",
    *(f"{kind}_pad{count}d" for kind in ("reflection", "replication") for count in (1, 2, 3)),
)
def _pad(layout: Layout, result: Tensor, sizes: Sequence[int], *_: Any) -> Layout:
    for number, (before, after) in enumerate(zip(sizes[::2], sizes[1::2], strict=True), 1):
        axis = layout.axes[-number]
        if (line := axis.line) is not None:
            padded = line.spread(result.shape[-number])
            layout = layout.shift(line.along, -before * line.step)
        elif axis.spatial and before >= 0 and after >= 0:
            padded = Axis(axis.factors, axis.before + before, axis.after + after)
        else:
            padded = plain(result.shape[-number])
        layout = layout.with_axis(-number, padded)
    return layout


@layout_rule("unfold")
def _unfold(layout: Layout, result: Tensor, index: int, size: int, step: int) -> Layout:
    line = layout.axes[index].line
    window = plain(size) if line is None else line.spread(size)
    axis = plain(result.shape[index]) if line is None else line.spread(result.shape[index], step)
    return layout.with_axes([*layout.with_axis(index, axis).axes, window])


@layout_rule("im2col", kernel=True)
def _im2col(layout: Layout, result: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Layout | None:
    if len(layout.axes) != 4:
        return None
    size, gaps, pads, steps = (_each(value, 2) for value in (kernel, dilation, padding, stride))
    counts = [
        (length + 2 * pad - gap * (side - 1) - 1) // step + 1
        for length, side, gap, pad, step in zip(layout.shape[2:], size, gaps, pads, steps, strict=True)
    ]
    slid = windowed(layout, (*layout.shape[:2], *counts), size, steps, pads, gaps)
    return slid.with_axes([slid.axes[0], plain(result.shape[1]), Axis(slid.axes[2].factors + slid.axes[3].factors)])


@layout_rule("col2im")
def _col2im(layout: Layout, result: Tensor, *_: Any) -> Layout | None:
    factors = layout.axes[-1].factors
    if len(factors) != 2 or result.ndim != 4:
        return None
    coarse = layout.with_axes([layout.axes[0], plain(result.shape[1]), *(Axis((factor,)) for factor in factors)])
    return resized(coarse, result.shape)


@layout_rule(
    "mean", "sum", "amax", "amin", "max", "min", "var", "std", "prod", "logsumexp", "norm", "linalg_vector_norm"
)
def _reduction(layout: Layout, result: Tensor, *arguments: Any, **_: Any) -> Effect:
    count = len(layout.axes)
    if result.ndim == count:
        return Effect(resized(layout, result.shape))
    # The axes are an integer or a list; `norm` has its order before them.
    lists = [value for value in arguments if isinstance(value, list | tuple)]
    axes = lists[0] if lists else [value for value in arguments[:1] if isinstance(value, int)]
    reduced = {index % count for index in axes}
    if count - len(reduced) != result.ndim:
        return Effect(None, pools=True)
    return Effect(
        layout.with_axes([axis for index, axis in enumerate(layout.axes) if index not in reduced]), pools=True
    )


def _product(left: Layout | None, right: Layout | None, result: Tensor) -> Effect:
    """Return the effect of a product of matrices (..., n, k) and (..., k, m)."""
    base = left or right
    if base is None:
        return Effect(None)
    inner = left.axes[-1] if left is not None else plain(1)
    if right is not None and not inner.spatial:
        inner = right.axes[-2]
    axes = [plain(size) for size in result.shape]
    for source, matrix in ((left, -2), (right, -1)):
        if source is not None:
            axes[matrix] = source.axes[matrix]
            for index in range(result.ndim - 2):
                axes[index] = axes[index] if axes[index].spatial else source.axes[index]
    # Start and field are those of the factor whose positions remain in the result.
    if right is not None and right.axes[-1].spatial and not (left is not None and left.axes[-2].spatial):
        base = right
    return Effect(contracted(base.with_axes(axes), inner), mixes=inner.size > 1 and inner.of_picture, pools=True)


@rule("mm", "bmm", "matmul")
def _mm(layouts: Layouts, result: Tensor, left: Tensor, right: Tensor, *_: Any) -> Effect:
    if not left.ndim == right.ndim == result.ndim:
        return default_effect(layouts, result, (left, right))
    return _product(layouts(left), layouts(right), result)


@rule("addmm", "baddbmm", "addbmm")
def _addmm(layouts: Layouts, result: Tensor, _bias: Tensor, left: Tensor, right: Tensor, *_: Any, **__: Any) -> Effect:
    return _mm(layouts, result, left, right)


@layout_rule("linear")
def _linear(layout: Layout, result: Tensor, *_: Any) -> Effect:
    return _product(layout, None, result)


@rule(
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def _attention(
    layouts: Layouts, result: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> Effect:
    base, keys = layouts(query), layouts(key) or layouts(value)
    mixes = keys is not None and keys.axes[-2].spatial
    if base is None or base.shape[:-1] != tuple(result.shape[:-1]):
        return Effect(None, mixes=mixes)
    layout = base.with_axis(-1, plain(result.shape[-1]))
    return Effect(contracted(layout, keys.axes[-2]) if keys is not None else layout, mixes=mixes)


@layout_rule("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
def _fused_encoder(layout: Layout, result: Tensor, *_: Any, **__: Any) -> Effect | None:
    if layout.shape != tuple(result.shape):
        return None
    return Effect(contracted(layout, layout.axes[1]), mixes=layout.axes[1].spatial)


SPLITS = {aten.split, aten.split_with_sizes, aten.unsafe_split, aten.chunk, aten.split_copy, aten.tensor_split}
"""Operations that cut their first argument into pieces, along the axis in their third argument, by default 0."""

JOINS = {aten.cat, aten.concat, aten.concatenate, aten.stack}
"""Operations that put tensors side by side."""

SUMS = {aten.add, aten.add_, aten.sub, aten.sub_}
"""Operations that add tensors, such as a block's shortcut to its residual."""
