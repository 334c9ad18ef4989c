"""One forward pass of a model, followed from the picture on: which modules ran, and what each made of the picture."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from seewhy.explainers.errors import ModelOutputError
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.selection import logits_of, out_of_reach
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.layout import Grid, grid_axes
from seewhy.explainers.layers.provenance import Provenance, Tracker
from seewhy.explainers.process_wide import exclusive

_POOLING = (
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.LPPool2d,
    nn.FractionalMaxPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)


@dataclass
class LayerCall:
    """A call of a module.

    Attributes:
        path: of the module; the first one, if it has several names.
        module: the module itself.
        started, finished: on a clock that ticks when a call starts or ends.
        input_shape, output_shape: None where it is no single tensor.
        differentiable: whether the output is a tensor that can have a gradient.
        pooled: whether the output is that of a pooling.
        provenance: of the output.
        grid: where the output lies in the picture; None where that is no grid.
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

    @property
    def is_weighted_leaf(self) -> bool:
        """Whether no other module ran inside this call, and the module has parameters."""
        return self.finished == self.started + 1 and next(_own_parameters(self.module), None) is not None

    @property
    def cells(self) -> int:
        """How many positions the output has in the picture; 0 where it is no grid."""
        return cells_of(self.output_shape, self.grid)


@dataclass
class Pass:
    """One forward pass.

    Attributes:
        calls: of modules, in the order in which they finished.
        classes: how many logits there are; None where there are none.
        provenance: of the logits.
    """

    calls: list[LayerCall]
    classes: int | None
    provenance: Provenance | None


def follow(module: nn.Module, image_shape: tuple[int, int, int]) -> Pass:
    """Run the module on an empty picture, and follow that through it.

    Args:
        module: as it is; it runs in evaluation mode.
        image_shape: (C, H, W) of the input.
    """
    paths = {part: path for path, part in _reachable(module)}
    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else torch.float32
    calls: list[LayerCall] = []
    running: list[LayerCall] = []
    clock = 0
    # The output of the last pooling module, which a container may return as its own.
    pooled: Tensor | None = None

    def before(part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        nonlocal clock
        clock += 1
        running.append(LayerCall(paths[part], part, started=clock, input_shape=_shape(args) or _shape((args, kwargs))))

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
                    inner.grid = likely_grid(inner, image_shape[1:])
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
        return Pass(calls, None, None)
    return Pass(calls, logits.shape[1], tracker.of(logits))


def _reachable(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a module with their paths, each once, but for those that hooks cannot reach.

    Modules that parametrise the weights of another are left out too: they run whenever that reads its weights.
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


def cells_of(shape: tuple[int, ...] | None, grid: Grid | None) -> int:
    """Return how many positions a tensor has in the picture; 0 where it is no grid."""
    return 0 if shape is None or grid is None else shape[grid.axes[1]] * shape[grid.axes[2]]


def _grid(call: LayerCall, image_size: tuple[int, int]) -> Grid | None:
    """Return where the output of a call lies in the picture; None if it is no feature map (N, C, h, w) of one picture.

    Where the picture was lost from sight, the shape tells.
    """
    if call.provenance is None:
        return None
    if call.provenance.lost:
        return likely_grid(call, image_size)
    layout = call.provenance.layout
    return layout.grid if layout is not None and _may_be_grid(call) else None


def likely_grid(call: LayerCall, image_size: tuple[int, int]) -> Grid | None:
    """Return where an output lies if it has the picture's proportions, or else is what convolutions return."""
    shape = call.output_shape
    if shape is None or not _may_be_grid(call):
        return None
    axes = grid_axes(shape, image_size) or (1, 2, 3)
    down, across = (length / shape[axis] for length, axis in zip(image_size, axes[1:], strict=True))
    return Grid(axes, (down / 2, across / 2), (down, across), (torch.inf, torch.inf), exact=False)


def _may_be_grid(call: LayerCall) -> bool:
    shape = call.output_shape
    return shape is not None and len(shape) == 4 and shape[0] == 1 and call.differentiable
