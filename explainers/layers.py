"""What the layers of a model are: their order, shapes and kinds, and which of them a CAM should use.

The default layer is found, not listed: it is the last module, in the order in which modules finish, whose
output still is a grid over the picture, before pooling and before the head (the last module with parameters).
That is `layer4` of a ResNet, `features` of a DenseNet, the rectified last convolution of a VGG.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from explainers.errors import LayerError
from explainers.hooks import HookSession
from explainers.modules import as_module, evaluation_mode

_POOLING = (
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.LPPool2d,
    nn.FractionalMaxPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)
PASSING = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Modules that in evaluation mode hand on what they get."""


@dataclass(frozen=True)
class Layer:
    """One module of a model, as seen in one forward pass of one picture.

    Attributes:
        path: dotted path; empty for the model itself.
        type: class name.
        input_shape, output_shape: of the first call, batch axis included; None where it is no single tensor.
        parameters: number of scalars in the module's parameters, submodules included.
        calls: how often the module runs in one forward pass.
        hooks: what can be recorded of it: input, output, grad_input, grad_output, parameter_grad.
        cam: whether a CAM can use it: it runs once and its output is a grid over the picture.
        default: whether CAMs use it unless told otherwise.
    """

    path: str
    type: str
    input_shape: tuple[int, ...] | None
    output_shape: tuple[int, ...] | None
    parameters: int
    calls: int
    hooks: tuple[str, ...]
    cam: bool
    default: bool


@dataclass(frozen=True)
class Survey:
    """The layers of a model in the order in which they start, and the default layers for CAMs.

    Attributes:
        layers: one entry per module that ran, in execution order.
        default_layers: paths, empty where no CAM layer was found.
        reason: why `default_layers` is empty; None otherwise.
    """

    layers: tuple[Layer, ...]
    default_layers: tuple[str, ...]
    reason: str | None

    @property
    def last_weighted(self) -> tuple[str, ...]:
        """The last module to start that has parameters and runs once, in most models the head; or none."""
        found = [layer.path for layer in self.layers if layer.path and layer.parameters and layer.calls == 1]
        return tuple(found[-1:])


@dataclass
class _Call:
    path: str
    module: nn.Module
    started: int
    finished: int = -1
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    differentiable: bool = False
    pooled: bool = False

    @property
    def is_weighted_leaf(self) -> bool:
        """Whether no other module ran inside this call, and the module has parameters."""
        alone = self.finished == self.started + 1
        return alone and next(self.module.parameters(recurse=False), None) is not None


def survey(model: object, image_shape: tuple[int, int, int], layers: tuple[str, ...] = ()) -> Survey:
    """Run the model once on an empty picture and describe every module that ran.

    A model on the ``meta`` device is surveyed without any arithmetic.

    Args:
        model: an `nn.Module` or a `LoadedModel`.
        image_shape: (C, H, W) of the input.
        layers: the default layers, where they are declared and need not be found.

    Raises:
        LayerError: a declared layer that cannot carry a CAM.
    """
    module = as_module(model)
    calls = _trace(module, image_shape)
    reason = None
    if layers:
        known = {call.path: call for call in calls}
        for path in layers:
            if path not in known or not _grid(known[path].output_shape, image_shape[1:]):
                raise LayerError(f"The declared default layer {path!r} is no layer with a grid; see `seewhy layers`.")
    else:
        found, reason = _default_layer(calls, image_shape[1:])
        layers = (found,) if found is not None else ()
    counts = Counter(call.path for call in calls)
    first: dict[str, _Call] = {}
    for call in sorted(calls, key=lambda call: call.started):
        first.setdefault(call.path, call)
    among_tokens = _among_tokens(calls)
    rows = tuple(
        _describe(call, counts[call.path], image_shape[1:], layers, call.path in among_tokens)
        for call in first.values()
    )
    return Survey(rows, layers, reason)


def grid_axes(shape: tuple[int, ...], image_size: tuple[int, int]) -> tuple[int, int, int] | None:
    """Return the axes of channels, rows and columns in a feature map's shape, or None if it has none.

    A grid has the picture's proportions, up to a cell of rounding. A map is channels-first, as PyTorch's
    convolutions make it, unless only the channels-last reading has them, with more channels than cells to a side
    (Swin Transformers keep (N, H, W, C) between their blocks).

    Args:
        shape: of the feature map, batch axis first.
        image_size: (H, W) of the input.
    """
    if len(shape) != 4:
        return None
    _, first, second, third = shape
    if _proportional((second, third), image_size):
        return (1, 2, 3)
    if _proportional((first, second), image_size) and third > max(first, second):
        return (3, 1, 2)
    return None


def _proportional(grid: tuple[int, int], image_size: tuple[int, int]) -> bool:
    rows, columns = grid
    height, width = image_size
    if rows > height or columns > width:
        return False
    # Strides round each side by itself, so only a square picture has an exactly square grid.
    return rows == columns if height == width else abs(columns - rows * width / height) <= max(1.0, width / height)


def _grid(shape: tuple[int, ...] | None, image_size: tuple[int, int]) -> tuple[int, int] | None:
    axes = grid_axes(shape, image_size) if shape else None
    return (shape[axes[1]], shape[axes[2]]) if shape and axes else None


def _trace(module: nn.Module, image_shape: tuple[int, int, int]) -> list[_Call]:
    """Return every module call in the order in which the calls finished."""
    paths = {part: path for path, part in module.named_modules()}
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else torch.float32
    image = torch.zeros((1, *image_shape), device=device, dtype=dtype)
    calls: list[_Call] = []
    running: list[_Call] = []
    clock = 0
    # The output of the last pooling module, which a container may return as its own.
    pooled: Tensor | None = None

    def before(part: nn.Module, args: tuple[object, ...]) -> None:
        nonlocal clock
        clock += 1
        running.append(_Call(paths[part], part, started=clock, input_shape=_shape(args)))

    def after(part: nn.Module, _args: object, output: object) -> None:
        nonlocal clock, pooled
        clock += 1
        call = running.pop()
        call.finished = clock
        call.output_shape = _shape(output)
        call.differentiable = isinstance(output, Tensor) and output.is_floating_point()
        call.pooled = output is pooled or isinstance(part, _POOLING) or "Pool" in type(part).__name__
        pooled = output if call.pooled and isinstance(output, Tensor) else None
        calls.append(call)

    with evaluation_mode(module), HookSession(module) as hooks, torch.inference_mode(False), torch.no_grad():
        hooks.before_forward(before, nn.Module)
        hooks.after_forward(after, nn.Module)
        module(image)
    return calls


def _shape(value: object) -> tuple[int, ...] | None:
    tensors = [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]
    return tuple(tensors[0].shape) if len(tensors) == 1 else None


def _default_layer(calls: list[_Call], image_size: tuple[int, int]) -> tuple[str | None, str | None]:
    counts = Counter(call.path for call in calls)
    weighted = [call for call in calls if call.is_weighted_leaf]
    if not weighted:
        return None, "The model has no parameters, so no layer of features."
    head = weighted[-1]
    # A model whose head is its only convolution (global pooling right after it) explains at that head.
    before_head = [call for call in calls if call.finished < head.started] or [head]
    among_tokens = _among_tokens(calls)
    candidates = [
        call
        for call in before_head
        if counts[call.path] == 1
        and not call.pooled
        and not isinstance(call.module, PASSING)
        and (grid := _grid(call.output_shape, image_size)) is not None
        and min(grid) > 1
        and call.path not in among_tokens
    ]
    if not candidates:
        return (
            None,
            "No layer before the head keeps a grid over the picture, so there is nothing for a CAM to weigh. Use "
            "method=saliency.",
        )
    chosen = candidates[-1]
    on_grid = [call for call in weighted if call.started <= chosen.finished and len(call.output_shape or ()) == 4]
    tokens = [
        call
        for call in weighted
        if call.started > chosen.finished and call.output_shape is not None and len(call.output_shape) == 3
    ]
    if len(tokens) >= len(on_grid):
        return None, (
            f"After {chosen.path!r} (the patch embedding) this transformer works on sequences of tokens of "
            f"shape {tokens[-1].output_shape}, not on a grid; a CAM has no layer to use. Use method=saliency."
        )
    return chosen.path, None


def _among_tokens(calls: list[_Call]) -> set[str]:
    """Return the paths inside blocks that return tokens (N, L, C): a tensor of four axes there is attention."""
    blocks = [call for call in calls if len(call.output_shape or ()) == 3]
    return {
        call.path
        for call in calls
        if any(block.started < call.started and call.finished < block.finished for block in blocks)
    }


def _describe(
    call: _Call, count: int, image_size: tuple[int, int], default: tuple[str, ...], among_tokens: bool
) -> Layer:
    parameters = sum(parameter.numel() for parameter in call.module.parameters())
    hooks = ["input", "output"]
    if call.differentiable:
        hooks += ["grad_input", "grad_output"]
    if next(call.module.parameters(recurse=False), None) is not None:
        hooks += ["parameter_grad"]
    grid = _grid(call.output_shape, image_size)
    return Layer(
        path=call.path,
        type=type(call.module).__name__,
        input_shape=call.input_shape,
        output_shape=call.output_shape,
        parameters=parameters,
        calls=count,
        hooks=tuple(hooks),
        cam=count == 1
        and call.differentiable
        and not among_tokens
        and call.output_shape is not None
        and call.output_shape[0] == 1
        and grid is not None
        and max(grid) > 1,
        default=call.path in default,
    )
