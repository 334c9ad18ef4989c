"""One forward pass of a model, followed from the picture on: which modules ran, and where their outputs lie."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.selection import out_of_reach
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.feature_maps import grid_axes
from seewhy.explainers.layers.layout import Grid, TokenGrid
from seewhy.explainers.layers.provenance import Provenance, Tracker
from seewhy.explainers.process_wide import exclusive


@dataclass(eq=False)
class LayerCall:
    """A call of a module.

    Attributes:
        path: path of the module; the first one, if it has several names.
        module: the module itself.
        started, finished: on a clock that ticks when a call starts or ends.
        input_shape, output_shape: None if it is not a single tensor.
        differentiable: whether the output is a tensor that can have a gradient.
        pooled: whether a pooling made the output.
        provenance: provenance of the output.
        grid: where the output lies in the picture; None if it is not a grid.
        tokens: the output as tokens (1, T, C); None if it is none.
        inputs: the calls whose outputs it read, directly or through functions only; None stands for the picture.
        parts: the calls whose outputs it combined into its own, such as the summands of a residual block;
            empty if it contains no calls, or returned the output of a single one.
    """

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
    tokens: TokenGrid | None = None
    inputs: "frozenset[LayerCall | None]" = frozenset()
    parts: "frozenset[LayerCall | None]" = frozenset()

    @property
    def is_weighted(self) -> bool:
        """Whether the module itself has parameters."""
        own = list(self.module.parameters(recurse=False))
        if parametrize.is_parametrized(self.module) and isinstance(self.module.parametrizations, nn.Module):
            own += self.module.parametrizations.parameters()  # the originals
        return bool(own)

    @property
    def cells(self) -> int:
        """Number of positions of the output in the picture; 0 if it is not a grid."""
        return cells_of(self.output_shape, self.grid)

    @property
    def is_spread(self) -> bool:
        """Whether the output has several positions in the picture, in whatever order."""
        layout = self.provenance.layout if self.provenance is not None else None
        return self.cells > 1 or (layout is not None and layout.extended)


@dataclass
class Pass:
    """One forward pass.

    Attributes:
        calls: calls of modules, in the order in which they finished.
        outputs: shape of the outputs (N, ...); None where there are none.
        provenance: provenance of the outputs.
    """

    calls: list[LayerCall]
    outputs: tuple[int, ...] | None
    provenance: Provenance | None

    @property
    def scores(self) -> int | None:
        """How many outputs there are for a picture; None where there are none."""
        return None if self.outputs is None else math.prod(self.outputs[1:])

    @property
    def is_dense(self) -> bool:
        """Whether the outputs are scores of positions, (N, K, H, W)."""
        return self.outputs is not None and len(self.outputs) == 4

    @property
    def has_boxes(self) -> bool:
        """Whether the outputs are candidates of a detector, (N, A, F)."""
        return self.outputs is not None and len(self.outputs) == 3


def follow(module: nn.Module, image_shape: tuple[int, int, int], outputs: Callable[[Any], Tensor]) -> Pass:
    """Run the module on an empty picture, and track the picture through it.

    Args:
        module: stays as it is; it runs in evaluation mode.
        image_shape: (C, H, W) of the input.
        outputs: reads the outputs (N, ...) from the module's result.
    """
    paths = {part: path for path, part in _reachable(module)}
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else torch.float32
    calls: list[LayerCall] = []
    running: list[LayerCall] = []
    clock = 0  # it counts ticks, not time: two in a row belong to a module inside which no other ran
    # The output of the last pooling module: a container that returns this very tensor counts as pooling too.
    pooled: Tensor | None = None

    def before(part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        nonlocal clock
        clock += 1
        call = LayerCall(paths[part], part, started=clock, input_shape=_shape(args) or _shape((args, kwargs)))
        call.inputs = tracker.origins(_tensors((args, kwargs)))
        running.append(call)

    def after(part: nn.Module, args: object, kwargs: dict[str, object], output: object) -> None:
        nonlocal clock, pooled
        clock += 1
        call = running.pop()
        while call.module is not part:  # the model caught the exception of an inner module, whose `after` never ran
            call = running.pop()
        call.finished = clock
        call.output_shape = _shape(output)
        call.differentiable = isinstance(output, Tensor) and output.is_floating_point()
        call.pooled = output is pooled or any("Pool" in kind.__name__ for kind in type(part).__mro__)
        pooled = output if call.pooled and isinstance(output, Tensor) else None
        results = _tensors(output)
        if tracker.adopt(results, _tensors((args, kwargs))):
            # The tracker lost the picture in here, as in NumPy code: later inner calls are judged by shape alone.
            for inner in calls:
                if inner.started > call.started and inner.provenance is None:
                    inner.grid = likely_grid(inner, image_shape[1:])
        if len(results) == 1:
            tracker.pass_through(results[0], call)
            call.provenance = tracker.of(results[0])
            call.grid = _grid(call, image_shape[1:])
            if call.provenance is not None and call.provenance.layout is not None and call.differentiable:
                call.tokens = call.provenance.layout.tokens
        call.parts = _parts(tracker, results, call)
        calls.append(call)

    with (
        evaluation_mode(module),
        HookSession(module) as hooks,
        hooks.alone(),  # a session of the user must not record this pass
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        image = torch.zeros((1, *image_shape), device=device, dtype=dtype)
        hooks.before_forward(before, paths.__contains__, with_kwargs=True)
        hooks.after_forward(after, paths.__contains__, with_kwargs=True)
        with exclusive(), Tracker(image) as tracker:
            raw = module(image)
    try:
        read = outputs(raw)
    except ModelOutputError:  # a model that returns no outputs has layers all the same
        return Pass(calls, None, None)
    return Pass(calls, tuple(read.shape), tracker.of(read))


def _parts(tracker: Tracker, results: list[Tensor], call: LayerCall) -> frozenset[LayerCall | None]:
    """Make a call the origin of its results that functions in it made; return the calls of which they made them."""
    parts: frozenset[LayerCall | None] = frozenset()
    for result in results:
        origins = tracker.origins([result])
        inner = [origin for origin in origins if origin is not None and origin.started > call.started]
        if len(origins) != 1 or not inner:
            tracker.originate(result, call)
            parts |= origins
    return parts if call.finished > call.started + 1 else frozenset()


def _reachable(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a module that hooks can reach, each once, with their paths.

    Modules that parametrise the weights of another are left out: they run whenever that module reads its weights.
    """
    unreachable = out_of_reach(dict(module.named_modules(remove_duplicate=False)))
    parametrizations: set[nn.Module] = set()
    for path, part in module.named_modules():
        if path in unreachable or part in parametrizations:
            continue
        if parametrize.is_parametrized(part) and isinstance(part.parametrizations, nn.Module):
            parametrizations.update(part.parametrizations.modules())
        yield path, part


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _shape(value: object) -> tuple[int, ...] | None:
    tensors = _tensors(value)
    return tuple(tensors[0].shape) if len(tensors) == 1 else None


def cells_of(shape: tuple[int, ...] | None, grid: Grid | None) -> int:
    """Return the number of positions of a tensor in the picture; 0 if it is not a grid."""
    return 0 if shape is None or grid is None else shape[grid.axes[1]] * shape[grid.axes[2]]


def _grid(call: LayerCall, image_size: tuple[int, int]) -> Grid | None:
    """Return the grid of a call's output; None if the output is not a feature map (1, C, h, w).

    If the tracker lost the picture, the shape decides.
    """
    if call.provenance is None:
        return None
    if call.provenance.untracked:
        return likely_grid(call, image_size)
    layout = call.provenance.layout
    return layout.grid if layout is not None and _may_be_grid(call) else None


def likely_grid(call: LayerCall, image_size: tuple[int, int]) -> Grid | None:
    """Return the grid of an output by its shape: that with the picture's proportions, or else channels first."""
    shape = call.output_shape
    if shape is None or not _may_be_grid(call):
        return None
    axes = grid_axes(shape, image_size) or (1, 2, 3)
    down, across = (length / shape[axis] for length, axis in zip(image_size, axes[1:], strict=True))
    return Grid(axes, (down / 2, across / 2), (down, across), (torch.inf, torch.inf), exact=False)


def _may_be_grid(call: LayerCall) -> bool:
    shape = call.output_shape
    return shape is not None and len(shape) == 4 and shape[0] == 1 and call.differentiable
