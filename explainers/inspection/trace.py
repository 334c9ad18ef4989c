"""The time line of one forward and one backward pass: every hook call on the chosen modules, and what it says."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from seewhy.explainers.core.model import AnyModel, Model, task_of
from seewhy.explainers.core.question import ready
from seewhy.explainers.core.task import Ask
from seewhy.explainers.errors import LayerError, OptionError
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.explain import prepare
from seewhy.explainers.hooks.selection import Where, first_names
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.inspection.statistics import Statistics, statistics
from seewhy.explainers.layers.layout import grid_axes
from seewhy.explainers.layers.survey import PASSING

EventKind = Literal["before_forward", "after_forward", "output_gradient", "full_backward", "parameter_gradient"]

VANISHING, EXPLODING = 1e-4, 1e4
"""Norms of an output's gradient below and above which it vanishes or explodes; that of the logit itself is 1."""


@dataclass(frozen=True)
class TracedTensor:
    """One tensor of a hook call.

    Attributes:
        name: input, output, grad_input, grad_output or the parameter's name; ``input.1`` where there are several.
        statistics: None where no gradient flows.
    """

    name: str
    statistics: Statistics | None


@dataclass(frozen=True)
class Event:
    """One hook call.

    Attributes:
        order: 0 for the first event.
        kind: which kind of hook ran.
        path, type: of the module.
        call: 0 for the module's first call; None for a parameter, whose gradient is that of all calls.
        tensors: what the hook was shown.
        microseconds: since the start of the forward pass, without the time that tracing itself took.
    """

    order: int
    kind: EventKind
    path: str
    type: str
    call: int | None
    tensors: tuple[TracedTensor, ...]
    microseconds: float


@dataclass(frozen=True)
class DeadMaps:
    """Feature maps of a module that are zero everywhere, in every call.

    A map that dies in one module shows again in those after it that keep it apart, as a pooling does, but not in a
    dropout or an identity, which only pass it on.

    Attributes:
        path: of the module.
        channels: their indices.
        total: how many feature maps the module has.
    """

    path: str
    channels: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class Summary:
    """What stands out; each but the first a list of module paths in the order in which they ran.

    Attributes:
        dead_maps: feature maps that are zero everywhere.
        vanishing: a gradient reached the output, but in no call with a norm of `VANISHING` or more.
        exploding: in some call with a norm over `EXPLODING`, or with infinity.
        without_gradient: no gradient reached the output in any call.
        non_finite: NaN or infinity in an input, output or gradient.
        not_run: the forward pass never called them (or called `forward` directly, past all hooks).
    """

    dead_maps: tuple[DeadMaps, ...]
    vanishing: tuple[str, ...]
    exploding: tuple[str, ...]
    without_gradient: tuple[str, ...]
    non_finite: tuple[str, ...]
    not_run: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """The time line of one forward and one backward pass.

    Attributes:
        events: in the order in which the hooks ran.
        summary: what stands out.
        target: class index whose logit the backward pass started from.
        logits: (K,) float32.
    """

    events: tuple[Event, ...]
    summary: Summary
    target: int
    logits: Tensor

    def save(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Draw the time line into a file whose suffix, ``.svg`` or ``.png``, names the format; return its path.

        Raises:
            OptionError: another suffix.
        """
        from seewhy.explainers.inspection.trace_chart import (
            draw_trace,  # matplotlib takes a second to import, and nothing else needs it
        )

        path = Path(path)
        forms: dict[str, Literal["svg", "png"]] = {".svg": "svg", ".png": "png"}
        form = forms.get(path.suffix.lower())
        if form is None:
            raise OptionError(f"{path.suffix!r} is no format of a drawn trace; use .svg or .png.", field="path")
        path.write_bytes(draw_trace(self, form, title))
        return path

    def __repr__(self) -> str:
        return f"Trace({len(self.events)} events; target {self.target})"


def is_leaf(module: nn.Module) -> bool:
    """Whether a module has no submodules."""
    return next(module.children(), None) is None


def trace(
    model: Model, picture: PictureSource, target: int | str | None = None, layers: tuple[Where, ...] = (is_leaf,)
) -> Trace:
    """Trace one forward and one backward pass of a picture.

    Args:
        model: a `LoadedModel`.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        target: class index or label; None for the most probable class.
        layers: paths, globs, types or predicates; by default all modules without submodules.

    Raises:
        PictureError: the picture cannot be read.
        LayerError, TargetError: a layer or class that the model lacks.
    """
    view = prepare(model, picture)
    return trace_images(model, view.images, None if target is None else model.task.target(target), layers)


def trace_images(
    model: AnyModel,
    images: Tensor,
    target: int | None = None,
    layers: tuple[Where, ...] = (is_leaf,),
    progress: Progress = SILENT,
) -> Trace:
    """Trace one forward and one backward pass of a normalised picture.

    The module is left as it was. Frozen parameters need a gradient as long as this lasts.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`.
        images: (1, C, H, W) floating, on the model's device.
        target: class index; None for the most probable class.
        layers: paths, globs, types or predicates.
        progress: its `cancel` is called at each event.

    Raises:
        LayerError, TargetError: a layer or class that the model lacks.
        ModelOutputError: the model returns no logits.
    """
    with ready(model, images) as (module, inputs), torch.enable_grad(), HookSession(module) as hooks:
        tracer = _Tracer(hooks, module, inputs, progress.cancel)
        paths = tracer.hook(layers)
        task = task_of(model)
        outputs = task.outputs(module(inputs.clone()))
        objective = task.objective(outputs, Ask(None if target is None else torch.tensor([target])))
        if not tracer.events:
            raise LayerError(
                f"{paths[0]!r} never runs for this picture (or its `forward` is called directly, past all hooks); "
                "choose a layer that runs, as GET /models/NAME/layers or `seewhy layers MODEL` list them."
            )
        hooks.backward(objective.scores(outputs).sum())
    return Trace(
        tuple(tracer.events), tracer.summary(paths), int(objective.targets[0]), outputs[0].detach().float().cpu()
    )


class _Tracer:
    def __init__(self, hooks: HookSession, module: nn.Module, images: Tensor, check: Callable[[], None]) -> None:
        self.events: list[Event] = []
        self._hooks = hooks
        self._check = check
        self._types = {path: type(part).__name__ for path, part in module.named_modules(remove_duplicate=False)}
        self._image_size = (images.shape[2], images.shape[3])
        self._device = images.device
        self._dead: dict[str, Tensor] = {}
        self._last: tuple[Tensor, int, Statistics] | None = None
        self._started = time.perf_counter()
        self._spent = 0.0

    def hook(self, layers: tuple[Where, ...]) -> tuple[str, ...]:
        hooks = self._hooks
        paths = first_names(hooks.modules, hooks.before_forward(self._before, *layers, with_kwargs=True).paths)
        hooks.after_forward(self._after, *layers)
        hooks.output_gradient(lambda gradient: self._note("output_gradient", grad_output=gradient), *layers)
        hooks.full_backward(lambda _module, given, _: self._note("full_backward", grad_input=_single(given)), *layers)
        for path in paths:
            for name, parameter in hooks.modules[path].named_parameters(recurse=False):
                if parameter.is_floating_point():
                    hooks.parameter_gradient(self._parameter_hook(path, name), f"{path}.{name}".lstrip("."))
        self._started = time.perf_counter()
        return paths

    def summary(self, paths: tuple[str, ...]) -> Summary:
        ran = list(dict.fromkeys(event.path for event in self.events if event.kind == "before_forward"))
        norms: dict[str, float] = {}
        broken: set[str] = set()
        unknown: set[str] = set()  # NaN is neither small nor large
        for event in self.events:
            for tensor in event.tensors:
                found = tensor.statistics
                if found is None:
                    continue
                if found.nan or found.inf:
                    broken.add(event.path)
                if event.kind == "output_gradient":
                    if found.nan:
                        unknown.add(event.path)
                    norms[event.path] = max(norms.get(event.path, 0.0), math.inf if found.inf else found.norm)
        return Summary(
            dead_maps=tuple(
                DeadMaps(path, tuple(dead.nonzero()[:, 0].tolist()), len(dead))
                for path in ran
                if (dead := self._dead.get(path)) is not None and dead.any()
            ),
            vanishing=tuple(path for path in ran if norms.get(path, VANISHING) < VANISHING and path not in unknown),
            exploding=tuple(path for path in ran if path in norms and norms[path] > EXPLODING),
            without_gradient=tuple(path for path in ran if path not in norms),
            non_finite=tuple(path for path in ran if path in broken),
            not_run=tuple(path for path in paths if path not in ran),
        )

    def _before(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self._note("before_forward", input=_single((*args, kwargs) if kwargs else args))

    def _after(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._note("after_forward", output=output)
        call = self._hooks.current
        if isinstance(output, Tensor) and call is not None and not isinstance(call.module, PASSING):
            with self._untimed():
                dead = _dead_maps(output, self._image_size)
                if dead is not None:
                    before = self._dead.get(call.path)
                    self._dead[call.path] = dead if before is None or before.shape != dead.shape else dead & before

    def _parameter_hook(self, path: str, name: str) -> Callable[[Tensor], None]:
        return lambda gradient: self._note("parameter_gradient", path, **{name: gradient})

    def _note(self, kind: EventKind, path: str | None = None, **values: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        microseconds = (time.perf_counter() - self._started - self._spent) * 1e6
        with self._untimed():
            self._check()
            call = self._hooks.current
            number = None if path is not None or call is None else call.number
            where = path if path is not None or call is None else call.path
            tensors = tuple(one for name, value in values.items() for one in self._traced(name, value))
            place = where or ""
            event = Event(len(self.events), kind, place, self._types[place], number, tensors, microseconds)
            self.events.append(event)

    def _traced(self, name: str, value: Any) -> Iterator[TracedTensor]:
        leaves = tree_flatten(value)[0]
        for index, leaf in enumerate(leaves):
            # Numbers among the tensors count too: a gradient is named as the tensor that it belongs to.
            label = name if len(leaves) == 1 else f"{name}.{index}"
            if isinstance(leaf, Tensor) or (leaf is None and name.startswith("grad")):
                yield TracedTensor(label, None if leaf is None else self._statistics(leaf))

    def _statistics(self, tensor: Tensor) -> Statistics:
        """Compute them, but once where a tensor comes twice in a row, as most gradients do."""
        if tensor.is_inference():  # such a tensor does not tell whether it was modified
            return statistics(tensor)
        if self._last is not None:
            last, version, found = self._last
            if tensor.dtype == last.dtype and tensor.is_set_to(last) and tensor._version == version:
                return found
        found = statistics(tensor)
        self._last = tensor.detach(), tensor._version, found  # without its graph, which refers to the tracer
        return found

    @contextmanager
    def _untimed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - started


def _single(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _dead_maps(output: Tensor, image_size: tuple[int, int]) -> Tensor | None:
    """Return (C,) bool on the CPU: which feature maps are zero everywhere; None where the output is no grid."""
    axes = grid_axes(tuple(output.shape), image_size)
    if axes is None or output.shape[axes[1]] * output.shape[axes[2]] < 2:
        return None
    return ~output.detach().any(dim=(0, *axes[1:])).cpu()
