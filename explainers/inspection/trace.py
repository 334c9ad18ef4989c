"""Traces: the time line of one forward and one backward pass, with statistics of every hook call."""

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

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Answered
from seewhy.explainers.core.model import AnyModel, Model
from seewhy.explainers.core.question import ready
from seewhy.explainers.errors import LayerError, OptionError, counted, never_runs
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.hooks.selection import ModuleSelector, first_names, is_leaf
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.inspection.statistics import Statistics, statistics
from seewhy.explainers.inspection.trace_events import (
    EXPLODING,
    VANISHING,
    DeadMaps,
    Event,
    EventKind,
    Summary,
    TracedTensor,
)
from seewhy.explainers.layers.feature_maps import grid_axes
from seewhy.explainers.layers.survey import PASSING
from seewhy.explainers.tasks.pose import named_ask, task_of
from seewhy.explainers.view import prepare


@dataclass(frozen=True, eq=False)
class Trace(Answered):
    """The timeline of one forward and one backward pass.

    Attributes:
        events: in chronological order.
        summary: notable modules and feature maps.
        target: start of the backward pass: a class index, or a place in the picture.
        outputs: (K, ...) float32, as the model's task reads them.
    """

    events: tuple[Event, ...]
    summary: Summary
    target: Any
    outputs: Tensor

    def drawn(self, form: Literal["svg", "png"], title: str = "") -> bytes:
        """Return a drawing of the time line as the bytes of a file, with a title above it."""
        # Matplotlib takes a second to import, and nothing else needs it.
        from seewhy.explainers.inspection.trace_chart import draw_trace

        return draw_trace(self.events, self.summary, form, title)

    def save(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Draw the time line into a file, and return its path.

        Args:
            path: its suffix, ``.svg`` or ``.png``, names the format.
            title: above the drawing.

        Raises:
            OptionError: another suffix.
        """
        path = Path(path)
        forms: dict[str, Literal["svg", "png"]] = {".svg": "svg", ".png": "png"}
        form = forms.get(path.suffix.lower())
        if form is None:
            raise OptionError(f"{path.suffix!r} is not a format for traces; use .svg or .png.", field="path")
        path.write_bytes(self.drawn(form, title))
        return path

    def __repr__(self) -> str:
        return f"Trace({counted(len(self.events), 'event')}; target {self.target})"


def trace(
    model: Model,
    picture: PictureSource,
    target: int | str | None = None,
    layers: tuple[ModuleSelector, ...] = (is_leaf,),
) -> Trace:
    """Trace one forward and one backward pass of a picture.

    Args:
        model: a `LoadedModel`; left unchanged.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        target: class index or label; None for the most probable class.
        layers: paths, globs, types or predicates; by default all modules without submodules.

    Returns:
        The events, and a summary.

    Raises:
        PictureError: the picture cannot be read.
        LayerError, TargetError: the model does not have the layer or class.
    """
    view = prepare(model, picture)
    return trace_images(model, view.images(model.device), named_ask(model.task, target).placed(view.geometry), layers)


def trace_images(
    model: AnyModel,
    images: Tensor,
    ask: Ask = DEFAULT_ASK,
    layers: tuple[ModuleSelector, ...] = (is_leaf,),
    progress: Progress = SILENT,
) -> Trace:
    """Trace one forward and one backward pass of a normalised picture.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left unchanged. Frozen parameters require
            a gradient meanwhile.
        images: (1, C, H, W) floating, on the model's device.
        ask: the target whose score is differentiated, including its contrast.
        layers: paths, globs, types or predicates.
        progress: its `cancel` is called at each event.

    Raises:
        LayerError, TargetError: the model does not have the layer or class.
        ModelOutputError: the model returns no logits.
    """
    with ready(model, images) as (module, inputs), torch.enable_grad(), HookSession(module) as hooks:
        tracer = _Tracer(hooks, module, inputs, progress.cancel)
        paths = tracer.hook(layers)
        task = task_of(model)
        outputs = task.outputs(module(inputs.clone()))
        objective = task.objective(outputs, ask)
        if not tracer.events:
            raise LayerError(never_runs(paths[0]))
        hooks.backward(objective.scores(outputs).sum())
    return Trace(tuple(tracer.events), tracer.summary(paths), objective.first, outputs[0].detach().float().cpu())


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
        self._overhead = 0.0

    def hook(self, layers: tuple[ModuleSelector, ...]) -> tuple[str, ...]:
        hooks = self._hooks
        paths = first_names(hooks.modules, hooks.before_forward(self._before, *layers, with_kwargs=True).paths)
        hooks.after_forward(self._after, *layers)
        hooks.output_gradient(lambda gradient: self._note("output_gradient", grad_output=gradient), *layers)
        hooks.full_backward(
            lambda _module, gradients, _: self._note("full_backward", grad_input=_single(gradients)), *layers
        )
        for path in paths:
            for name, parameter in hooks.modules[path].named_parameters(recurse=False):
                if parameter.is_floating_point():
                    hooks.parameter_gradient(self._parameter_hook(path, name), f"{path}.{name}".lstrip("."))
        self._started = time.perf_counter()
        return paths

    def summary(self, paths: tuple[str, ...]) -> Summary:
        ran = list(dict.fromkeys(event.path for event in self.events if event.kind == "before_forward"))
        norms: dict[str, float] = {}
        non_finite: set[str] = set()
        unknown: set[str] = set()  # NaN is neither small nor large
        for event in self.events:
            for tensor in event.tensors:
                values = tensor.statistics
                if values is None:
                    continue
                if values.nan or values.inf:
                    non_finite.add(event.path)
                if event.kind == "output_gradient":
                    if values.nan:
                        unknown.add(event.path)
                    norms[event.path] = max(norms.get(event.path, 0.0), math.inf if values.inf else values.norm)
        return Summary(
            dead_maps=tuple(
                DeadMaps(path, tuple(dead.nonzero()[:, 0].tolist()), len(dead))
                for path in ran
                if (dead := self._dead.get(path)) is not None and dead.any()
            ),
            vanishing=tuple(path for path in ran if norms.get(path, VANISHING) < VANISHING and path not in unknown),
            exploding=tuple(path for path in ran if path in norms and norms[path] > EXPLODING),
            without_gradient=tuple(path for path in ran if path not in norms),
            non_finite=tuple(path for path in ran if path in non_finite),
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
        microseconds = (time.perf_counter() - self._started - self._overhead) * 1e6
        with self._untimed():
            self._check()
            call = self._hooks.current
            number = None if path is not None or call is None else call.number
            where = path if path is not None or call is None else call.path
            tensors = tuple(tensor for name, value in values.items() for tensor in self._traced(name, value))
            place = where or ""
            event = Event(len(self.events), kind, place, self._types[place], number, tensors, microseconds)
            self.events.append(event)

    def _traced(self, name: str, value: Any) -> Iterator[TracedTensor]:
        leaves = tree_flatten(value)[0]
        for index, leaf in enumerate(leaves):
            # Numbers among the tensors count, so that a gradient has the name of its tensor.
            label = name if len(leaves) == 1 else f"{name}.{index}"
            if isinstance(leaf, Tensor) or (leaf is None and name.startswith("grad")):
                yield TracedTensor(label, None if leaf is None else self._statistics(leaf))

    def _statistics(self, tensor: Tensor) -> Statistics:
        """Return the statistics of a tensor, computed once if it comes twice in a row, as most gradients do."""
        if tensor.is_inference():  # an inference tensor has no version counter
            return statistics(tensor)
        if self._last is not None:
            last, version, values = self._last
            if tensor.dtype == last.dtype and tensor.is_set_to(last) and tensor._version == version:
                return values
        values = statistics(tensor)
        self._last = tensor.detach(), tensor._version, values  # detached: its graph refers to the tracer
        return values

    @contextmanager
    def _untimed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._overhead += time.perf_counter() - started


def _single(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _dead_maps(output: Tensor, image_size: tuple[int, int]) -> Tensor | None:
    """Return (C,) bool on the CPU: which feature maps are zero everywhere; None if the output is not a grid."""
    axes = grid_axes(tuple(output.shape), image_size)
    if axes is None or output.shape[axes[1]] * output.shape[axes[2]] < 2:
        return None
    return ~output.detach().any(dim=(0, *axes[1:])).cpu()
