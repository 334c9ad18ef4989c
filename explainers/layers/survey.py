"""What the layers of a model are: their order, shapes and kinds, and which of them a CAM should use.

The default layer is found, not listed: it is the last module, in the order in which modules finish, whose output still
is a grid over the picture and which all that the logits know of the picture has passed through, before pooling and
before the head. That is `layer4` of a ResNet, `features` of a DenseNet, the rectified last convolution of a VGG. What
is a grid is known from following the picture through the model (`provenance.py`), whatever its proportions.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from seewhy.explainers.errors import LayerError
from seewhy.explainers.hooks.selection import as_module
from seewhy.explainers.layers.forward_pass import LayerCall, Pass, cells_of, follow, likely_grid
from seewhy.explainers.layers.layout import COLUMNS, ROWS, Grid
from seewhy.explainers.layers.provenance import Provenance, Waypoint

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
        default: whether CAMs use it by default.
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
        return cells_of(self.output_shape, self.grid)


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
        paths = [layer.path for layer in self.layers if layer.path and layer.parameters and layer.calls == 1]
        return tuple(paths[-1:])


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
    run = follow(module, image_shape)
    counts = Counter(call.path for call in run.calls)
    reason = None
    if layers:
        by_path = {call.path: call for call in run.calls}
        for path in layers:
            call = by_path.get(path)
            if call is not None and call.provenance is None and call.grid is None:
                call.grid = likely_grid(call, image_shape[1:])
            _check_declared(path, call, counts[path])
    else:
        chosen, reason = _default_layer(run, counts)
        layers = (chosen,) if chosen is not None else ()
    first: dict[str, LayerCall] = {}
    for call in sorted(run.calls, key=lambda call: call.started):
        first.setdefault(call.path, call)
    described = tuple(_describe(call, counts[call.path], layers) for call in first.values())
    return Survey(described, layers, reason)


def _check_declared(path: str, call: LayerCall | None, count: int) -> None:
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


def _default_layer(run: Pass, counts: Counter[str]) -> tuple[str | None, str | None]:
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


def _before_head(run: Pass, last: LayerCall) -> list[LayerCall]:
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
    calls = set()
    while waypoint is not None:
        calls.add(id(waypoint.call))
        waypoint = waypoint.before
    return calls


def _is_patch_embedding(chosen: LayerCall, run: Pass) -> bool:
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


def _describe(call: LayerCall, count: int, default: Iterable[str]) -> Layer:
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
