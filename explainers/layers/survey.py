"""What the layers of a model are: their order, shapes and kinds, and which of them a CAM should use.

The default layer is found, not listed: it is the last module, in the order in which modules finish, whose output still
is a grid over the picture and which all that the logits know of the picture has passed through, before pooling and
before the head. That is `layer4` of a ResNet, `features` of a DenseNet, the rectified last convolution of a VGG. What
is a grid is known from following the picture through the model (`provenance.py`), whatever its proportions.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from seewhy.explainers.errors import LayerError, ModelOutputError
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.selection import as_module, logits_of, out_of_reach
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.layout import COLUMNS, ROWS, Grid
from seewhy.explainers.layers.provenance import Provenance, Tracker, Waypoint
from seewhy.explainers.process_wide import exclusive

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
        grid: where its output lies in the picture; None where that is no grid.
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
    grid: Grid | None

    @property
    def cells(self) -> int:
        """How many positions its output has in the picture; 0 where that is no grid."""
        return _cells(self.output_shape, self.grid)


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

    def reach(self, paths: tuple[str, ...], size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of a map of layers, as fractions of what the model saw.

        Args:
            paths: of the layers that the map was made of.
            size: its rows and columns.
        """
        whole = (0.0, 0.0, 1.0, 1.0)
        (layer,) = [layer for layer in self.layers if (layer.path,) == paths] or (None,)
        shape = self.layers[0].input_shape if self.layers else None
        if layer is None or layer.grid is None or layer.output_shape is None or shape is None or len(shape) != 4:
            return whole
        _, rows, columns = layer.grid.axes
        if (layer.output_shape[rows], layer.output_shape[columns]) != size or shape[2:] == size:
            return whole
        top, bottom = layer.grid.reach(ROWS, size[0], shape[2])
        left, right = layer.grid.reach(COLUMNS, size[1], shape[3])
        return left, top, right, bottom

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
    provenance: Provenance | None = None
    grid: Grid | None = None

    @property
    def is_weighted_leaf(self) -> bool:
        """Whether no other module ran inside this call, and the module has parameters."""
        return self.finished == self.started + 1 and next(_own_parameters(self.module), None) is not None

    @property
    def cells(self) -> int:
        """How many positions the output has in the picture; 0 where it is no grid."""
        return _cells(self.output_shape, self.grid)


@dataclass
class _Pass:
    """One forward pass.

    Attributes:
        calls: of modules, in the order in which they finished.
        classes: how many logits there are; None where there are none.
        provenance: of the logits.
    """

    calls: list[_Call]
    classes: int | None
    provenance: Provenance | None


def survey(model: object, image_shape: tuple[int, int, int], layers: tuple[str, ...] = ()) -> Survey:
    """Run the model once on an empty picture and describe every module that ran.

    A model on the ``meta`` device is surveyed without any arithmetic. Compiled and scripted submodules, where hooks do
    not reach, are neither listed nor touched, and what parametrises weights counts as part of its module.

    Args:
        model: an `nn.Module` or a `LoadedModel`.
        image_shape: (C, H, W) of the input.
        layers: the default layers, where they are declared and need not be found.

    Raises:
        LayerError: a declared layer that cannot carry a CAM.
    """
    module = as_module(model)
    run = _run(module, image_shape)
    counts = Counter(call.path for call in run.calls)
    reason = None
    if layers:
        by_path = {call.path: call for call in run.calls}
        for path in layers:
            call = by_path.get(path)
            if call is not None and call.provenance is None and call.grid is None:
                call.grid = _likely_grid(call, image_shape[1:])
            _check_declared(path, call, counts[path])
    else:
        chosen, reason = _default_layer(run, counts)
        layers = (chosen,) if chosen is not None else ()
    first: dict[str, _Call] = {}
    for call in sorted(run.calls, key=lambda call: call.started):
        first.setdefault(call.path, call)
    rows = tuple(_describe(call, counts[call.path], layers) for call in first.values())
    return Survey(rows, layers, reason)


def _check_declared(path: str, call: _Call | None, count: int) -> None:
    if call is None:
        why = "no module that runs in a forward pass"
    elif count > 1:
        why = f"a module that runs {count} times in a forward pass"
    elif call.grid is None:
        what = f"a tensor of shape {call.output_shape}" if call.output_shape else "no single tensor"
        why = f"no layer with a grid over the picture: it returns {what}"
    else:
        return
    raise LayerError(f"The declared default layer {path!r} is {why}; see `seewhy layers`.")


def grid_axes(shape: tuple[int, ...], image_size: tuple[int, int]) -> tuple[int, int, int] | None:
    """Return the axes of channels, rows and columns in a feature map of which the shape is all that is known.

    None if it has none. A grid here has the picture's proportions, up to a cell of rounding. A map is channels-first,
    as PyTorch's convolutions make it, unless only the channels-last reading has them, with more channels than cells to
    a side (Swin Transformers keep (N, H, W, C) between their blocks).

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


def _run(module: nn.Module, image_shape: tuple[int, int, int]) -> _Pass:
    """Run the module on an empty picture, and follow it."""
    paths = {part: path for path, part in _reachable(module)}
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else torch.float32
    calls: list[_Call] = []
    running: list[_Call] = []
    clock = 0
    # The output of the last pooling module, which a container may return as its own.
    pooled: Tensor | None = None

    def before(part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        nonlocal clock
        clock += 1
        running.append(_Call(paths[part], part, started=clock, input_shape=_shape(args) or _shape((args, kwargs))))

    def after(part: nn.Module, args: object, kwargs: dict[str, object], output: object) -> None:
        nonlocal clock, pooled
        clock += 1
        call = running.pop()
        while call.module is not part:  # it raised an exception, which the model caught
            call = running.pop()
        call.finished = clock
        call.output_shape = _shape(output)
        call.differentiable = isinstance(output, Tensor) and output.is_floating_point()
        call.pooled = output is pooled or isinstance(part, _POOLING) or "Pool" in type(part).__name__
        pooled = output if call.pooled and isinstance(output, Tensor) else None
        results = _tensors(output)
        if tracker.adopt(results, _tensors((args, kwargs))):
            # The picture went out of sight in here, such as into NumPy; what ran after that is known by shape only.
            for inner in calls:
                if inner.started > call.started and inner.provenance is None:
                    inner.grid = _likely_grid(inner, image_shape[1:])
        if len(results) == 1:
            tracker.pass_through(results[0], call)
            call.provenance = tracker.of(results[0])
            call.grid = _grid(call, image_shape[1:])
        calls.append(call)

    with (
        evaluation_mode(module),
        HookSession(module) as hooks,
        hooks.alone(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        image = torch.zeros((1, *image_shape), device=device, dtype=dtype)
        hooks.before_forward(before, paths.__contains__, with_kwargs=True)
        hooks.after_forward(after, paths.__contains__, with_kwargs=True)
        with exclusive(), Tracker(image) as tracker:
            output = module(image)
    try:
        logits = logits_of(output)
    except ModelOutputError:  # a model whose outputs say nothing of classes has layers all the same
        return _Pass(calls, None, None)
    return _Pass(calls, logits.shape[1], tracker.of(logits))


def _reachable(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a module with their paths, each once, but for those inside what hooks cannot reach.

    Nor those that parametrise the weights of another: they run whenever that reads its weights.
    """
    unreachable = out_of_reach(dict(module.named_modules(remove_duplicate=False)))
    hidden: set[nn.Module] = set()
    for path, part in module.named_modules():
        if path in unreachable or part in hidden:
            continue
        if parametrize.is_parametrized(part) and isinstance(part.parametrizations, nn.Module):
            hidden.update(part.parametrizations.modules())
        yield path, part


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module by itself, and what its parametrised ones are computed from."""
    yield from module.parameters(recurse=False)
    if parametrize.is_parametrized(module) and isinstance(module.parametrizations, nn.Module):
        yield from module.parametrizations.parameters()


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _shape(value: object) -> tuple[int, ...] | None:
    tensors = _tensors(value)
    return tuple(tensors[0].shape) if len(tensors) == 1 else None


def _cells(shape: tuple[int, ...] | None, grid: Grid | None) -> int:
    return 0 if shape is None or grid is None else shape[grid.axes[1]] * shape[grid.axes[2]]


def _grid(call: _Call, image_size: tuple[int, int]) -> Grid | None:
    """Return where the output of a call lies in the picture; None if it is no feature map (N, C, h, w) of one picture.

    Where the picture was lost from sight, the shape tells.
    """
    if call.provenance is None:
        return None
    if call.provenance.lost:
        return _likely_grid(call, image_size)
    layout = call.provenance.layout
    return layout.grid if layout is not None and _may_be_grid(call) else None


def _likely_grid(call: _Call, image_size: tuple[int, int]) -> Grid | None:
    """Return where an output lies if it has the picture's proportions, or else is what convolutions return."""
    shape = call.output_shape
    if shape is None or not _may_be_grid(call):
        return None
    axes = grid_axes(shape, image_size) or (1, 2, 3)
    down, across = (length / shape[axis] for length, axis in zip(image_size, axes[1:], strict=True))
    return Grid(axes, (down / 2, across / 2), (down, across), (torch.inf, torch.inf), exact=False)


def _may_be_grid(call: _Call) -> bool:
    shape = call.output_shape
    return shape is not None and len(shape) == 4 and shape[0] == 1 and call.differentiable


def _default_layer(run: _Pass, counts: Counter[str]) -> tuple[str | None, str | None]:
    """Return the default layer, or why there is none."""
    weighted = [call for call in run.calls if call.is_weighted_leaf]
    if not weighted:
        return None, "The model has no parameters, so no layer of features."
    candidates = [
        call
        for call in _before_head(run, weighted[-1])
        if counts[call.path] == 1 and not call.pooled and not isinstance(call.module, PASSING) and call.cells > 1
    ]
    if not candidates:
        return (
            None,
            "No layer before the head keeps a grid over the picture, so there is nothing for a CAM to weigh. Use "
            "method=saliency.",
        )
    on_the_way = _waypoints(run.provenance)
    passed = [call for call in candidates if id(call) in on_the_way]
    chosen = (passed or candidates)[-1]
    if _is_patch_embedding(chosen, run):
        tokens = [
            call.output_shape
            for call in weighted
            if call.started > chosen.finished and call.output_shape is not None and len(call.output_shape) == 3
        ]
        shape = f"of shape {tokens[-1]}" if tokens else "without a grid"
        return None, (
            f"After {chosen.path!r} (the patch embedding) this transformer works on sequences of tokens {shape}, not "
            "on a grid; a CAM has no layer to use. Use method=saliency."
        )
    return chosen.path, None


def _before_head(run: _Pass, last: _Call) -> list[_Call]:
    """Return the calls that finished before the head, which is the last one with parameters.

    It is none where it returns features: a grid with other channels than classes. A model whose head is its only
    convolution (global pooling right after it) explains at that head.
    """
    if last.cells > 1 and last.grid is not None and last.output_shape is not None:
        channels = last.output_shape[last.grid.axes[0]]
        if channels != run.classes:
            return run.calls
    return [call for call in run.calls if call.finished < last.started] or [last]


def _waypoints(provenance: Provenance | None) -> set[int]:
    """Return the identities of the calls whose outputs all that a tensor knows of the picture has passed through."""
    waypoint: Waypoint | None = provenance.last if provenance is not None else None
    found = set()
    while waypoint is not None:
        found.add(id(waypoint.call))
        waypoint = waypoint.before
    return found


def _is_patch_embedding(chosen: _Call, run: _Pass) -> bool:
    """Whether a grid is what a transformer makes its tokens of, rather than features.

    Its cells then see little more than their own patch (the receptive field is at most two steps wide), and attention
    looks at the tokens more often than convolutions have looked at the picture; or they see nothing more at all.
    """
    if chosen.grid is None or chosen.provenance is None:
        return False
    mixes = max(call.provenance.mixes for call in run.calls if call.provenance is not None) - chosen.provenance.mixes
    patches = max(
        field / step if step else 1.0 for field, step in zip(chosen.grid.field, chosen.grid.step, strict=True)
    )
    return (patches <= 1 and mixes > 0) or (patches <= 2 and mixes > chosen.provenance.kernels)


def _describe(call: _Call, count: int, default: Iterable[str]) -> Layer:
    hooks = ["input", "output"]
    if call.differentiable:
        hooks += ["grad_input", "grad_output"]
    if next(call.module.parameters(recurse=False), None) is not None:
        hooks += ["parameter_grad"]
    return Layer(
        path=call.path,
        type=type(call.module).__name__,
        input_shape=call.input_shape,
        output_shape=call.output_shape,
        parameters=sum(parameter.numel() for parameter in call.module.parameters()),
        calls=count,
        hooks=tuple(hooks),
        cam=count == 1 and call.cells > 1,
        default=call.path in default,
        grid=call.grid,
    )
