"""Surveys: the layers of a model, their order, shapes and kinds, and which of them a CAM should use.

No table lists default layers. The default is the last module to finish, before pooling and the head, whose output is a
grid over the picture and through which all of the picture's influence on the outputs passes: `layer4` of a ResNet,
`features` of a DenseNet, the last rectified convolution of a VGG. A grid is recognised by following the picture through
the model (`provenance.py`), whatever its proportions. Where attention follows the only grid, the patch embedding, it is
the last such module whose tokens of the picture the outputs depend on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from seewhy.explainers.errors import LAYER_LIST, LayerError
from seewhy.explainers.layers.feature_maps import FeatureMaps, GridMaps, TokenMaps
from seewhy.explainers.layers.forward_pass import LayerCall, Pass, cells_of, follow, likely_grid
from seewhy.explainers.layers.layout import COLUMNS, ROWS, Grid, TokenGrid
from seewhy.explainers.layers.provenance import Waypoint

PASSING = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Modules that return their input in evaluation mode."""


@dataclass(frozen=True)
class Layer:
    """One module of a model, in one forward pass of one picture.

    Attributes:
        path: dotted path; empty for the model itself.
        type: class name.
        input_shape, output_shape: shapes in the first call, batch axis included; None if it is not a single tensor.
        parameters: number of scalars in the module's parameters, submodules included.
        calls: number of calls in one forward pass.
        hooks: kinds that can be recorded: input, output, grad_input, grad_output, parameter_grad.
        cam: whether a CAM can use it: it runs once and its output is a grid over the picture, or tokens of it.
        default: whether CAMs use it by default.
        grid: where its output lies in the picture; None if it is not a grid.
        tokens: its output (N, T, C) as tokens of the picture; None if it is none.
        inputs: paths of the modules whose outputs it reads, directly or through functions only; the empty path stands
            for the picture.
        parts: paths of the modules whose outputs it combines into its own, such as the summands of a residual
            block; empty if it contains no modules, or returns the output of a single one.
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
    tokens: TokenGrid | None = None
    inputs: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def maps(self) -> FeatureMaps | None:
        """How its output holds feature maps; None if it holds none."""
        if self.grid is not None:
            return GridMaps(self.grid.axes)
        return None if self.tokens is None else TokenMaps(self.tokens)

    @property
    def channels(self) -> int:
        """Number of feature maps in its output."""
        channel = 2 if self.grid is None else self.grid.axes[0]
        return 0 if self.output_shape is None or self.maps is None else self.output_shape[channel]

    @property
    def cells(self) -> int:
        """Number of positions of the output in the picture; 0 if it is neither a grid nor tokens."""
        return self.tokens.cells if self.tokens is not None else cells_of(self.output_shape, self.grid)


@dataclass(frozen=True)
class Survey:
    """The layers of a model in execution order, and the default layers for CAMs.

    Attributes:
        layers: one entry per module that ran, in the order in which they start.
        default_layers: paths; empty if no layer suits a CAM.
        reason: why `default_layers` is empty; None otherwise.
        branches: paths of layers at the ends of parallel branches, through which the picture's influence bypasses the
            default layer, if that was chosen automatically.
        outputs: shape of the outputs (N, ...) that the task reads; None if it reads none.
    """

    layers: tuple[Layer, ...]
    default_layers: tuple[str, ...]
    reason: str | None
    branches: tuple[str, ...] = ()
    outputs: tuple[int, ...] | None = None

    def reach(self, paths: tuple[str, ...], size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of a map of layers, as fractions of the model's input.

        Args:
            paths: paths of the map's layers.
            size: rows and columns of the map.
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

    @cached_property
    def without_maps(self) -> dict[str, tuple[int, ...] | None]:
        """The output shapes of layers that run once and whose outputs hold no feature maps, by path."""
        return {layer.path: layer.output_shape for layer in self.layers if layer.calls == 1 and not layer.cam}

    @property
    def last_weighted(self) -> tuple[str, ...]:
        """The last module to start that has parameters and runs once, usually the head; empty if there is none."""
        paths = [layer.path for layer in self.layers if layer.path and layer.parameters and layer.calls == 1]
        return tuple(paths[-1:])


def survey_module(
    module: nn.Module,
    image_shape: tuple[int, int, int],
    outputs: Callable[[Any], Tensor],
    layers: tuple[str, ...] = (),
) -> Survey:
    """Run a module once on an empty picture and describe every module in it that ran; see `tasks.pose.survey`.

    Args:
        module: within reach of hooks.
        image_shape: (C, H, W) of the input.
        outputs: reads the outputs (N, ...) from the module's result.
        layers: declared default layers; empty to choose them automatically.

    Raises:
        LayerError: a declared layer that cannot carry a CAM.
    """
    run = follow(module, image_shape, outputs)
    counts = Counter(call.path for call in run.calls)
    reason: str | None = None
    branches: tuple[str, ...] = ()
    if layers:
        by_path = {call.path: call for call in run.calls}
        for path in layers:
            call = by_path.get(path)
            if call is not None and call.provenance is None and call.grid is None:
                call.grid = likely_grid(call, image_shape[1:])
            _check_declared(path, call, counts[path])
    else:
        default, reason = _default_layer(run, counts)
        layers = () if default is None else (default,)
        branches = _branches(run, counts, layers)
    calls = dict[str, list[LayerCall]]()
    for call in sorted(run.calls, key=lambda call: call.started):
        calls.setdefault(call.path, []).append(call)
    described = tuple(_describe(of_layer, layers) for of_layer in calls.values())
    return Survey(described, layers, reason, branches, run.outputs)


def _check_declared(path: str, call: LayerCall | None, count: int) -> None:
    if call is None:
        fault = "not a module that runs in a forward pass"
    elif count > 1:
        fault = f"a module that runs {count} times in a forward pass"
    elif call.grid is None and call.tokens is None:
        output = f"a tensor of shape {call.output_shape}" if call.output_shape else "no single tensor"
        fault = f"not a layer with a grid over the picture: it returns {output}"
    else:
        return
    raise LayerError(f"The declared default layer {path!r} is {fault}; choose one from {LAYER_LIST}.")


def _default_layer(run: Pass, counts: Counter[str]) -> tuple[str | None, str | None]:
    """Return the default layer, or why there is none."""
    usable = [call for call in run.calls if _is_usable(call, counts)]
    grids = [call for call in run.calls if _has_grid(call, counts)]
    if run.is_dense:
        return _end_of_encoder(grids)
    weighted = [call for call in run.calls if call.is_weighted]
    if not weighted:
        return None, "The model has no parameters and therefore no feature layer."
    # A gate, or a convolution that scores positions, has parameters or a grid too, but information flows past it.
    on_the_way = _waypoints(None if run.provenance is None else run.provenance.last)
    head = _head([call for call in weighted if id(call) in on_the_way] or weighted, run)
    candidates = [call for call in grids if head is None or call.finished < head.started]
    if not candidates:
        reason = (
            "No layer before the head has a grid over the picture, so there is no layer for a CAM. Use method=saliency."
        )
        return _last_tokens(run, usable, reason)
    waypoints = [call for call in candidates if id(call) in on_the_way]
    layer = (waypoints or candidates)[-1]
    if _is_patch_embedding(layer, run):
        tokens = [
            call.output_shape
            for call in weighted
            if call.started > layer.finished and call.output_shape is not None and len(call.output_shape) == 3
        ]
        shape = f"of shape {tokens[-1]}" if tokens else "without a grid"
        reason = (
            f"After {layer.path!r} (the patch embedding) this transformer works on sequences of tokens {shape}. Once "
            "attention has mixed the tokens, its outputs depend on none of them, so a CAM has no layer to use. Use "
            "method=legrad, attnlrp or saliency."
        )
        return _last_tokens(run, usable, reason)
    return layer.path, None


def _branches(run: Pass, counts: Counter[str], layers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the last grid of each branch that meets a default layer's, in the order in which they finished."""
    if run.provenance is None or run.is_dense or run.has_boxes:  # their default layers are not meant to hold everything
        return ()
    waypoint: Waypoint | None = run.provenance.last
    branches = run.provenance.branches
    while waypoint is not None and (waypoint.call is None or waypoint.call.path not in layers):
        branches, waypoint = (*branches, *waypoint.branches), waypoint.before
    if waypoint is None:
        return ()
    on_the_way, ends = _waypoints(waypoint), dict[str, int]()
    for end in branches:
        step: Waypoint | None = end
        while step is not None and not _has_grid(step.call, counts):
            step = step.before
        if step is not None and id(step.call) not in on_the_way and not step.is_behind(waypoint):
            ends[step.call.path] = step.number
    return tuple(sorted(ends, key=ends.__getitem__))


def _has_grid(call: LayerCall | None, counts: Counter[str]) -> bool:
    """Whether a CAM can use the result of a call, and it consists of features."""
    return call is not None and _is_usable(call, counts) and call.cells > 1 and not call.pooled


def _is_usable(call: LayerCall, counts: Counter[str]) -> bool:
    return bool(call.path) and counts[call.path] == 1 and not isinstance(call.module, PASSING)


def _last_tokens(run: Pass, usable: Sequence[LayerCall], reason: str) -> tuple[str | None, str | None]:
    """Return the last layer of tokens that make the outputs, or the reason why there is no default layer.

    Attention has mixed its tokens before, so that each knows more than its patch. If the head reads the patches, all of
    the picture's influence passes through the layer. If it reads class or register tokens alone, only what the last
    attention takes from the patches matters: the layer is the normalisation in front of that attention. (In front of a
    normalisation, the features times their gradients would sum to zero, because the score does not depend on the length
    of a token.)
    """
    provenance = run.provenance
    if provenance is None:
        return None, reason
    on_the_way = _waypoints(provenance.mixed if provenance.beside else provenance.last)
    for call in reversed(usable):
        if id(call) in on_the_way and _are_features(call):
            return call.path, None
    return None, reason


def _are_features(call: LayerCall) -> bool:
    """Whether a call returns mixed tokens, and not a wider projection of them, such as keys and values in one."""
    if call.tokens is None or call.tokens.cells < 2 or call.provenance is None or not call.provenance.mixes:
        return False
    before, after = call.input_shape, call.output_shape
    return before is None or after is None or len(before) != 3 or after[2] <= before[2]


def _end_of_encoder(grids: Sequence[LayerCall]) -> tuple[str | None, str | None]:
    """Return the last of the widest layers on the coarsest grid, where an encoder has seen the most context."""
    if not grids:
        return None, "No layer has a grid over the picture, so there is no layer for a CAM."
    fewest = min(call.cells for call in grids)
    coarsest = [call for call in grids if call.cells == fewest]
    widest = max(_channels(call) for call in coarsest)
    return [call for call in coarsest if _channels(call) == widest][-1].path, None


def _channels(call: LayerCall) -> int:
    """Return the number of channels of a grid."""
    return 0 if call.output_shape is None or call.grid is None else call.output_shape[call.grid.axes[0]]


def _head(weighted: Sequence[LayerCall], run: Pass) -> LayerCall | None:
    """Return the last layer with parameters, if it makes scores; None if it makes features that pooling sums up.

    A layer behind pooling or flattening makes scores, and so does a layer from which a detector reads boxes. In front
    of pooling, only a linear map of each position to as many channels as there are scores does (SqueezeNet). It does
    not if a module around it also returns the results of other layers with parameters, as a stage of features does, or
    if an identity has replaced the head. A single layer is explained, whatever it makes.
    """
    last = max(weighted, key=lambda call: call.started)
    if not last.is_spread or run.has_boxes:
        return last
    channels = _channels(last) or (last.output_shape or (0,))[-1]
    if not _is_linear_in_places(last.module) or channels != run.scores or len(weighted) == 1:
        return None
    for call in run.calls:
        if call.is_spread and call.finished > last.finished:
            if any(call.started < layer.started < last.started for layer in weighted):
                return None
        elif call.started > last.finished and type(call.module) is nn.Identity:
            return None
    return last


def _is_linear_in_places(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return set(module.kernel_size) == {1}
    return isinstance(module, nn.Linear)


def _waypoints(last: Waypoint | None) -> set[int]:
    """Return the ids of the calls of a waypoint and of all before it."""
    waypoint, calls = last, set()
    while waypoint is not None:
        calls.add(id(waypoint.call))
        waypoint = waypoint.before
    return calls


def _is_patch_embedding(layer: LayerCall, run: Pass) -> bool:
    """Whether a grid is a transformer's patch embedding, rather than features.

    The cells of a patch embedding see little more than their own patch (their receptive field is at most two steps
    wide), and more attention follows than convolutions came before; or they see no more than their patch, and any
    attention follows.
    """
    if layer.grid is None or layer.provenance is None:
        return False
    mixes = max(call.provenance.mixes for call in run.calls if call.provenance is not None) - layer.provenance.mixes
    patches = max(field / step if step else 1.0 for field, step in zip(layer.grid.field, layer.grid.step, strict=True))
    return (patches <= 1 and mixes > 0) or (patches <= 2 and mixes > layer.provenance.kernels)


def _describe(calls: Sequence[LayerCall], default: Iterable[str]) -> Layer:
    call, count = calls[0], len(calls)
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
        cam=count == 1 and max(call.cells, call.tokens.cells if call.tokens else 0) > 1,
        default=call.path in default,
        grid=call.grid,
        tokens=call.tokens,
        inputs=_paths(call.inputs for call in calls),
        parts=_paths(call.parts for call in calls),
    )


def _paths(origins: Iterable[Iterable[LayerCall | None]]) -> tuple[str, ...]:
    """Return the paths of calls, each once, in the order in which they finished; the empty path for the picture."""
    finished = {origin.path if origin else "": origin.finished if origin else 0 for each in origins for origin in each}
    return tuple(sorted(finished, key=finished.__getitem__))
