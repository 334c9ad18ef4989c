"""What each operation of PyTorch makes of a layout; those that keep shapes, or scale them, need no rule of their own.

A rule takes a function from tensors to their layouts, the operation's result, and its arguments as PyTorch's
dispatcher passes them (positional ones that have their default may be missing).
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from seewhy.explainers.layers.effects import Effect, Layouts, aten, default_effect, rule
from seewhy.explainers.layers.layout import (
    Axis,
    Factor,
    Layout,
    broadcast,
    contracted,
    plain,
    reshaped,
    resized,
    windowed,
)


def _layout_of(layouts: Layouts, *tensors: Any) -> Layout | None:
    return next((layout for tensor in tensors if (layout := layouts(tensor)) is not None), None)


def _each(value: int | Sequence[int], count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values if len(values) == count else values[:1] * count


@rule("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", "cudnn_convolution")
def _convolution(
    layouts: Layouts,
    result: Tensor,
    images: Tensor,
    weight: Tensor,
    _bias: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool = False,
    *_: Any,
) -> Effect:
    layout = layouts(images)
    if layout is None:
        return Effect(None)
    if len(layout.axes) != result.ndim:
        return Effect(None)
    kernel = list(weight.shape[2:])
    steps, pads, gaps = (_each(value, len(kernel)) for value in (stride, padding, dilation))
    channels = layout.axes[1]
    if transposed is True:
        slid = resized(layout, result.shape) or layout
    else:
        slid = windowed(layout, result.shape, kernel, steps, pads, gaps)
    slid = slid.with_axis(1, plain(result.shape[1]))
    mixes = channels.spatial and all(factor.along is not None for factor in channels.factors)
    return Effect(contracted(slid, channels), kernel=max(kernel, default=1) > 1, mixes=mixes)


@rule("max_pool2d_with_indices", "max_pool2d", "max_pool3d_with_indices", "max_pool1d")
def _max_pool(
    layouts: Layouts,
    result: Tensor,
    images: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    *_: Any,
) -> Effect:
    return _pool(layouts, result, images, kernel, stride, padding, dilation)


@rule("avg_pool2d", "avg_pool1d", "avg_pool3d")
def _avg_pool(
    layouts: Layouts, result: Tensor, images: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, *_: Any
) -> Effect:
    return _pool(layouts, result, images, kernel, stride, padding, 1)


def _pool(
    layouts: Layouts, result: Tensor, images: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Effect:
    layout = layouts(images)
    if layout is None:
        return Effect(None)
    dimensions = len(kernel) if isinstance(kernel, list | tuple) else 2
    size = _each(kernel, dimensions)
    steps = _each(stride, dimensions) if stride else size
    pads, gaps = _each(padding, dimensions), _each(dilation, dimensions)
    return Effect(windowed(layout, result.shape, size, steps, pads, gaps), kernel=True)


@rule("view", "_unsafe_view", "_reshape_alias", "reshape", "_reshape_copy", "view_copy", "flatten", "unflatten")
def _view(layouts: Layouts, result: Tensor, tensor: Tensor, *_: Any) -> Effect:
    layout = layouts(tensor)
    return Effect(layout and reshaped(layout, result.shape))


@rule("permute", "permute_copy")
def _permute(layouts: Layouts, _result: Tensor, tensor: Tensor, order: Sequence[int]) -> Effect:
    layout = layouts(tensor)
    return Effect(layout and layout.with_axes([layout.axes[index] for index in order]))


@rule("transpose", "transpose_copy", "transpose_", "swapaxes")
def _transpose(layouts: Layouts, _result: Tensor, tensor: Tensor, first: int, second: int) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    axes = list(layout.axes)
    axes[first], axes[second] = axes[second], axes[first]
    return Effect(layout.with_axes(axes))


@rule("t", "t_", "t_copy")
def _t(layouts: Layouts, _result: Tensor, tensor: Tensor) -> Effect:
    layout = layouts(tensor)
    return Effect(layout and layout.with_axes(layout.axes[::-1]))


@rule("unsqueeze", "unsqueeze_", "unsqueeze_copy")
def _unsqueeze(layouts: Layouts, result: Tensor, tensor: Tensor, index: int) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    axes = list(layout.axes)
    axes.insert(index % result.ndim, plain(1))
    return Effect(layout.with_axes(axes))


@rule("squeeze", "squeeze_", "squeeze_copy")
def _squeeze(layouts: Layouts, _result: Tensor, tensor: Tensor, index: int | Sequence[int] | None = None) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    count = len(layout.axes)
    indices = range(count) if index is None else [index] if isinstance(index, int) else index
    squeezed = {number % count for number in indices}
    axes = [axis for number, axis in enumerate(layout.axes) if number not in squeezed or axis.size != 1]
    return Effect(layout.with_axes(axes))


@rule("expand", "expand_copy", "repeat")
def _expand(layouts: Layouts, result: Tensor, tensor: Tensor, *_: Any, **__: Any) -> Effect:
    layout = layouts(tensor)
    return Effect(layout and broadcast([layout], result.shape))


@rule("select", "select_copy")
def _select(layouts: Layouts, _result: Tensor, tensor: Tensor, index: int, *_: Any) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    axes = list(layout.axes)
    del axes[index]
    return Effect(layout.with_axes(axes), spent=True)


@rule("slice", "slice_copy")
def _slice(
    layouts: Layouts,
    result: Tensor,
    tensor: Tensor,
    index: int = 0,
    start: int | None = None,
    _end: int | None = None,
    step: int = 1,
) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    size = layout.axes[index].size
    first = 0 if start is None else min(max(start + size if start < 0 else start, 0), size)
    return Effect(_part(layout, index, first, result.shape[index], step))


def _part(layout: Layout, index: int, first: int, size: int, step: int = 1) -> Layout:
    """Return the layout of some positions of an axis: `size` of them from the first on, `step` apart."""
    axis = layout.axes[index]
    if axis.size == size and step == 1:
        return layout
    single = axis.single
    if single is not None and single.along is not None:
        cut = Axis((Factor(single.along, size, single.step * step),))
        return layout.with_axis(index, cut).moved(single.along, first * single.step)
    inside = axis.size - axis.before - axis.after
    if step == 1 and axis.spatial and first <= axis.before and axis.before + inside <= first + size:
        before = axis.before - first
        return layout.with_axis(index, Axis(axis.factors, before, size - before - inside))
    return layout.with_axis(index, plain(size))


def pieces(layouts: Layouts, results: Sequence[Tensor], tensor: Tensor, index: int) -> list[Layout | None]:
    """Return the layouts of the pieces that a tensor is split into along an axis."""
    layout = layouts(tensor)
    parts: list[Layout | None] = []
    first = 0
    for result in results:
        size = result.shape[index]
        parts.append(layout and _part(layout, index, first, size))
        first += size
    return parts


@rule("cat", "concat", "concatenate")
def _cat(layouts: Layouts, result: Tensor, tensors: Sequence[Tensor], index: int = 0) -> Effect:
    known = [layouts(tensor) for tensor in tensors]
    joined = [part for part in known if part is not None and len(part.axes) == result.ndim]
    if not joined:
        return Effect(None)
    layout = broadcast(joined, [*result.shape[: index % result.ndim], 0, *result.shape[index % result.ndim + 1 :]])
    if layout is None:
        return Effect(None)
    axis = plain(result.shape[index])
    placed = [number for number, part in enumerate(known) if part is not None and part.axes[index].spatial]
    if len(placed) == 1:
        (number,) = placed
        inner = joined[[part is known[number] for part in joined].index(True)].axes[index]
        sizes = [tensor.shape[index] for tensor in tensors]
        axis = Axis(inner.factors, inner.before + sum(sizes[:number]), inner.after + sum(sizes[number + 1 :]))
    elif placed:
        singles = [part.axes[index].single for part in joined]
        first = singles[0]
        if first is not None and all(single and single[::2] == first[::2] for single in singles):
            # Parts side by side, perhaps rolled; or the axis, padded with parts of itself.
            axis = Axis((Factor(first.along, result.shape[index], first.step),))
            start = min((part.start for part in joined), key=sum)
            layout = layout._replace(start=start, exact=False)
    return Effect(layout.with_axis(index, axis))


@rule("stack")
def _stack(layouts: Layouts, result: Tensor, tensors: Sequence[Tensor], index: int = 0) -> Effect:
    layout = _layout_of(layouts, *tensors)
    if layout is None:
        return Effect(None)
    axes = list(layout.axes)
    axes.insert(index % result.ndim, plain(len(tensors)))
    return Effect(layout.with_axes(axes))


@rule(
    "constant_pad_nd",
    "pad",
    *(f"{kind}_pad{count}d" for kind in ("reflection", "replication") for count in (1, 2, 3)),
)
def _pad(layouts: Layouts, result: Tensor, tensor: Tensor, sizes: Sequence[int], *_: Any) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    for number, (before, after) in enumerate(zip(sizes[::2], sizes[1::2], strict=True), 1):
        axis = layout.axes[-number]
        single = axis.single
        if single is not None and single.along is not None:
            padded = Axis((Factor(single.along, result.shape[-number], single.step),))
            layout = layout.moved(single.along, -before * single.step)
        elif axis.spatial and before >= 0 and after >= 0:
            padded = Axis(axis.factors, axis.before + before, axis.after + after)
        else:
            padded = plain(result.shape[-number])
        layout = layout.with_axis(len(layout.axes) - number, padded)
    return Effect(layout)


@rule("unfold")
def _unfold(layouts: Layouts, result: Tensor, tensor: Tensor, index: int, size: int, step: int) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    single = layout.axes[index].single
    if single is None or single.along is None:
        window, axis = plain(size), plain(result.shape[index])
    else:
        window = Axis((Factor(single.along, size, single.step),))
        axis = Axis((Factor(single.along, result.shape[index], single.step * step),))
    return Effect(layout.with_axes([*layout.with_axis(index, axis).axes, window]))


@rule("im2col")
def _im2col(
    layouts: Layouts, result: Tensor, images: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Effect:
    layout = layouts(images)
    if layout is None or len(layout.axes) != 4:
        return Effect(None)
    size, gaps, pads, steps = (_each(value, 2) for value in (kernel, dilation, padding, stride))
    counts = [
        (length + 2 * pad - gap * (side - 1) - 1) // step + 1
        for length, side, gap, pad, step in zip(images.shape[2:], size, gaps, pads, steps, strict=True)
    ]
    slid = windowed(layout, (*images.shape[:2], *counts), size, steps, pads, gaps)
    factors = slid.axes[2].factors + slid.axes[3].factors
    return Effect(slid.with_axes([slid.axes[0], plain(result.shape[1]), Axis(factors)]), kernel=True)


@rule("col2im")
def _col2im(layouts: Layouts, result: Tensor, columns: Tensor, *_: Any) -> Effect:
    layout = layouts(columns)
    if layout is None:
        return Effect(None)
    factors = layout.axes[-1].factors
    if len(factors) != 2 or result.ndim != 4:
        return Effect(None)
    coarse = layout.with_axes([layout.axes[0], plain(result.shape[1]), *(Axis((factor,)) for factor in factors)])
    return Effect(resized(coarse, result.shape))


@rule("mean", "sum", "amax", "amin", "max", "min", "var", "std", "prod", "logsumexp", "norm", "linalg_vector_norm")
def _reduction(layouts: Layouts, result: Tensor, tensor: Tensor, *arguments: Any, **_: Any) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
    if result.ndim == tensor.ndim:
        return Effect(resized(layout, result.shape))
    # The axes are an integer or a list of them; of `norm` the order stands before them.
    lists = [value for value in arguments if isinstance(value, list | tuple)]
    axes = lists[0] if lists else [value for value in arguments[:1] if isinstance(value, int)]
    reduced = {index % tensor.ndim for index in axes}
    if tensor.ndim - len(reduced) != result.ndim:
        return Effect(None, spent=True)
    remaining = [axis for index, axis in enumerate(layout.axes) if index not in reduced]
    return Effect(layout.with_axes(remaining), spent=True)


def _product(left: Layout | None, right: Layout | None, result: Tensor) -> Effect:
    """Return what a product of matrices (..., n, k) and (..., k, m) does."""
    inner = left.axes[-1] if left is not None else right.axes[-2] if right is not None else plain(1)
    if right is not None and not inner.spatial:
        inner = right.axes[-2]
    axes = [plain(size) for size in result.shape]
    for source, matrix in ((left, -2), (right, -1)):
        if source is not None:
            axes[matrix] = source.axes[matrix]
            for index in range(result.ndim - 2):
                axes[index] = axes[index] if axes[index].spatial else source.axes[index]
    base = next((layout for layout in (left, right) if layout is not None), None)
    if base is None:
        return Effect(None)
    for layout in (left, right):
        if layout is not None and layout.axes[-2 if layout is left else -1].spatial:
            base = layout
            break
    pure = inner.size > 1 and inner.spatial and all(factor.along is not None for factor in inner.factors)
    return Effect(contracted(base.with_axes(axes), inner), mixes=pure, spent=True)


@rule("mm", "bmm", "matmul")
def _mm(layouts: Layouts, result: Tensor, left: Tensor, right: Tensor, *_: Any) -> Effect:
    if not left.ndim == right.ndim == result.ndim:
        return default_effect(layouts, result, (left, right))
    return _product(layouts(left), layouts(right), result)


@rule("addmm", "baddbmm", "addbmm")
def _addmm(layouts: Layouts, result: Tensor, _bias: Tensor, left: Tensor, right: Tensor, *_: Any, **__: Any) -> Effect:
    return _mm(layouts, result, left, right)


@rule("linear")
def _linear(layouts: Layouts, result: Tensor, tensor: Tensor, *_: Any) -> Effect:
    layout = layouts(tensor)
    if layout is None:
        return Effect(None)
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
    layout = base.with_axis(result.ndim - 1, plain(result.shape[-1]))
    return Effect(contracted(layout, keys.axes[-2]) if keys is not None else layout, mixes=mixes)


@rule("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
def _fused_encoder(layouts: Layouts, result: Tensor, tensor: Tensor, *_: Any, **__: Any) -> Effect:
    layout = layouts(tensor)
    if layout is None or layout.shape != tuple(result.shape):
        return Effect(None)
    return Effect(contracted(layout, layout.axes[1]), mixes=layout.axes[1].spatial)


SPLITS = {aten.split, aten.split_with_sizes, aten.unsafe_split, aten.chunk, aten.split_copy, aten.tensor_split}
"""Operations whose results are pieces of their first argument, along the axis that is their third or the first."""

JOINS = {aten.cat, aten.concat, aten.concatenate, aten.stack}
"""Operations that put tensors side by side."""

SUMS = {aten.add, aten.add_, aten.sub, aten.sub_}
"""Operations that add tensors up, such as a block's residual to what it was given."""
