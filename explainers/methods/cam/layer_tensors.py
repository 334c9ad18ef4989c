"""The activations and gradients of the layers of a CAM, from a pass with hooks or in closed form."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import LAYER_LIST, LayerError, never_runs
from seewhy.explainers.execution.pooled_head import PooledHead
from seewhy.explainers.execution.runtime import Run
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.feature_maps import FeatureMaps
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.layers.survey_cache import maps_at, survey_of

MAX_LAYERS = 64
"""Maximum number of layers of one explanation."""

_NO_GRID = (
    "The output of layer {path!r} {what}, not a grid of features (N, C, h, w) or tokens (N, T, C) over the picture; "
    f"choose a layer that {LAYER_LIST} marks as usable for a CAM."
)


@dataclass(frozen=True, eq=False)
class LayerTensors:
    """The activations of the layers of a CAM, and their gradients.

    Attributes:
        objective: the explained scores.
        outputs: (N, ...) float32.
        activations: by path, (N, C, h, w) float32.
        gradients: by path, the gradients of the score with respect to the activations, (N, C, h, w) float32; empty
            without a backward pass.
        views: by path, how the layer's output holds the activations.
    """

    objective: Objective
    outputs: Tensor
    activations: dict[str, Tensor]
    gradients: dict[str, Tensor]
    views: dict[str, FeatureMaps]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the layers, in the model's order."""
        return tuple(self.activations)

    def only(self, paths: Iterable[str]) -> "LayerTensors":
        """Return those of some of the layers."""
        names = [path for path in self.paths if path in {*paths}]
        activations = {path: self.activations[path] for path in names}
        gradients = {path: self.gradients[path] for path in names if path in self.gradients}
        return replace(self, activations=activations, gradients=gradients)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return the activations and the gradients of each layer; gradients are empty without a backward pass."""
        empty = self.outputs.new_empty(0)
        return [(values, self.gradients.get(path, empty)) for path, values in self.activations.items()]


def collect(
    question: Question,
    layers: tuple[str, ...],
    scores: Callable[[Objective, Tensor], Tensor] | None,
    gate: Callable[[LayerTensors], Mapping[str, Tensor]] | None = None,
) -> LayerTensors:
    """Run the model once, and return the tensors of layers that a CAM can use: from hooks, or in closed form.

    Args:
        question: see `Question`.
        layers: dotted paths or globs.
        scores: returns the scores (N,) to differentiate, given an objective and outputs (N, ...); None for no backward
            pass.
        gate: returns, given the tensors of the forward pass, factors (N, h, w) by path, by which the gradients of these
            layers' feature maps are multiplied before they flow on; called before `scores`.

    Raises:
        LayerError: a layer that the model lacks, or that does not suit a CAM.
        TargetError, ModelOutputError: as in `Explainer.explain`.
    """
    kinds: tuple[Any, ...] = ("output",) if scores is None else ("output", "grad_output")
    paths = module_paths(question.module, layers)
    if len(paths) > MAX_LAYERS:
        raise LayerError(f"{', '.join(layers)} matches {len(paths)} layers; at most {MAX_LAYERS} can be fused.")
    # Several questions about one picture share its forward pass, and each has a backward pass from the outputs on.
    count, images = len(question.images), question.distinct_images
    is_shared = len(images) < count
    gates = _Gates()
    parts = question.parts(paths)
    if gate is None and parts is not None and parts.head is not None:
        return _collect_in_closed_form(question, layers, paths, scores, parts.prefix, parts.head)
    # If the module is the second part of an accelerated model, `run` runs the first part on the accelerator.
    module, run = question.host_of(parts)
    with torch.set_grad_enabled(scores is not None), HookSession(module) as hooks:
        if scores is not None:
            hooks.cut(*paths)
        for path in paths if gate is not None else ():
            hooks.output_gradient(partial(gates.multiplied, path), path)
        hooks.record(*paths, kinds=kinds)
        distinct = question.outputs(run(images))
        outputs = distinct.expand(count, *distinct.shape[1:]) if is_shared else distinct
        objective = question.objective(outputs)
        layer_outputs, gradients = hooks.outputs, list[dict[str, list[Any]]]()
        read = partial(_tensors, question, layers, paths, objective, outputs.detach().float(), layer_outputs)
        if gate is not None:
            forward = read(gradients)
            gates.factors, gates.views = gate(forward), forward.views
        if scores is not None:
            # A shared picture's outputs stay one row: those of segmenters and detectors are large.
            rows = torch.arange(count, device=outputs.device)[:, None]
            objectives = [objective.rows(row) for row in rows] if is_shared else [objective]
            for number, part in enumerate(objectives):
                gates.rows = slice(number, number + 1) if is_shared else slice(None)
                hooks.backward(scores(part, distinct).sum(), retain_graph=part is not objectives[-1])
                gradients.append(hooks.grad_outputs)
    return read(gradients)


def _collect_in_closed_form(
    question: Question,
    layers: tuple[str, ...],
    paths: tuple[str, ...],
    scores: Callable[[Objective, Tensor], Tensor] | None,
    prefix: Run,
    head: PooledHead,
) -> LayerTensors:
    """Return what `collect` returns, without hooks and a backward pass, which cost as much as some layers."""
    (path,), count = paths, len(question.images)
    with torch.set_grad_enabled(scores is not None):
        features, logits = prefix(question.distinct_images)
        raw = logits.expand(count, -1).detach().requires_grad_(scores is not None)
        outputs = question.outputs(raw.clone())  # a function of the user may change them in place
        objective = question.objective(outputs)
        gradients = []
        if scores is not None:
            (slope,) = torch.autograd.grad(scores(objective, outputs).sum(), raw, allow_unused=True)
            gradients.append({path: [None if slope is None else head.gradients(slope, features)]})
    return _tensors(question, layers, paths, objective, outputs.detach().float(), {path: [features]}, gradients)


class _Gates:
    """Multiplies gradients at layers.

    Attributes:
        factors: (N, h, w) by path.
        views: how the layers' outputs hold feature maps.
        rows: the rows of the running backward pass.
    """

    def __init__(self) -> None:
        self.factors: Mapping[str, Tensor] = {}
        self.views: Mapping[str, FeatureMaps] = {}
        self.rows = slice(None)

    def multiplied(self, path: str, gradient: Tensor) -> Tensor | None:
        """Return the gradient of a layer's output times its factors; None where it stays as it is."""
        if path not in self.factors:
            return None
        view = self.views[path]
        maps = self.factors[path][self.rows, None].to(gradient).expand_as(view.of(gradient))
        return gradient * view.put(torch.ones_like(gradient), maps)


def _tensors(
    question: Question,
    layers: tuple[str, ...],
    paths: tuple[str, ...],
    objective: Objective,
    outputs: Tensor,
    layer_outputs: Mapping[str, list[Any]],
    gradients: Sequence[Mapping[str, list[Any]]],
) -> LayerTensors:
    """Return the tensors of the layers that suit a CAM, given what hooks recorded; see `collect`.

    Args:
        question, layers: as for `collect`.
        paths: paths that the layers match.
        objective, outputs: objective and outputs of all pictures.
        layer_outputs: by path, of the pictures, or of the one that all questions share.
        gradients: by path, of one backward pass for all pictures, or of one for each question; empty without any.
    """
    images, count = question.distinct_images, len(question.images)
    tensors = LayerTensors(objective, outputs, {}, {}, {})
    # According to the survey, these layers hold no feature maps, such as attention of a picture's size.
    shapes = {} if isinstance(question.model, nn.Module) else question.model.survey.without_maps
    for path in paths:
        try:
            if path in shapes:
                raise LayerError(_NO_GRID.format(path=path, what=f"is {shapes[path]}"))
            view = view_of(replace(question, images=images), path, layer_outputs[path])
            parts = [gradient[path][0] for gradient in gradients]
            if any(part is None for part in parts):
                raise LayerError(
                    f"No gradient flows from the logits to layer {path!r}; choose one that they depend on."
                )
            if parts:
                tensors.gradients[path] = view.of(torch.cat(parts) if len(parts) > 1 else parts[0]).float()
            activations = view.of(layer_outputs[path][0]).float()
            tensors.activations[path] = activations.expand(count, *activations.shape[1:])
            tensors.views[path] = view
        except LayerError:  # a glob may match unsuitable layers, which are skipped; a layer by its full path must suit
            if path in layers:
                raise
    if not tensors.activations:
        raise LayerError(f"No layer that {', '.join(layers)} matches suits a CAM; see {LAYER_LIST}.")
    return tensors


def view_of(question: Question, path: str, outputs: list[Any]) -> FeatureMaps:
    """Return how the output of a layer's only call holds feature maps.

    Args:
        question: question of the forward pass.
        path: path of the layer.
        outputs: one per call.

    Raises:
        LayerError: the layer does not run once, or its output holds no feature maps.
    """
    if not outputs:
        raise LayerError(never_runs(path))
    if len(outputs) > 1:
        raise LayerError(
            f"Layer {path!r} runs {len(outputs)} times in one forward pass, so it has several feature maps; "
            "choose a layer that runs once, such as the block around it."
        )
    output = outputs[0]
    view = None
    if isinstance(output, Tensor):
        channels, height, width = question.images.shape[1:]
        check = partial(question.progress.at, 0, 1)
        view = maps_at(
            question.model, path, tuple(output.shape), (channels, height, width), question.task.outputs, check
        )
    if view is None or len(output) != len(question.images):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise LayerError(_NO_GRID.format(path=path, what=f"is {shape}"))
    return view


def survey_for(question: Question) -> Survey:
    """Return the survey of a question's model for pictures of its size."""
    channels, height, width = question.images.shape[1:]
    check = partial(question.progress.at, 0, 1)
    return survey_of(question.model, (channels, height, width), question.task.outputs, check)
