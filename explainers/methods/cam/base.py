"""The bases of class activation maps: choice of layers, their activations and gradients, fusion of maps."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass as plain
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import LayerError, never_runs
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.feature_maps import FeatureMaps
from seewhy.explainers.layers.survey import Layer, Survey
from seewhy.explainers.layers.survey_cache import maps_at, survey_of
from seewhy.explainers.methods.explainer import Explainer

Stage = TypeVar("Stage", bound=Hashable)

MAX_LAYERS = 64
"""Most layers of one explanation."""

_NO_GRID = (
    "The output of layer {path!r} {what}, not a grid of features (N, C, h, w) or tokens (N, T, C) over the picture; "
    "choose a layer that the list of the model's layers marks as usable for a CAM."
)


@plain(frozen=True, eq=False)
class LayerTensors:
    """The activations of the layers of a CAM, and their gradients.

    Attributes:
        objective: the explained scores.
        outputs: (N, ...) float32.
        activations: by path, (N, C, h, w) float32.
        gradients: by path, the gradients of the score with respect to the activations, (N, C, h, w) float32; empty
            without a backward pass.
        views: by path, how the layer's output holds these.
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

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return the activations and the gradients of each layer; gradients are empty without a backward pass."""
        empty = self.outputs.new_empty(0)
        return [(values, self.gradients.get(path, empty)) for path, values in self.activations.items()]


@dataclass(frozen=True, kw_only=True)
class LayerExplainer(Explainer):
    """Base of all methods that read layers.

    Attributes:
        layers: dotted paths or globs of the layers; empty for the model's default. A glob selects the matching layers
            that a CAM can use. Maps of several layers are fused: each is divided by its largest magnitude and resized
            bilinearly to the finest of the grids; then they are averaged. (pytorch-grad-cam does the same on the
            picture's grid.)
    """

    layers: Annotated[
        tuple[str, ...],
        Field(description="Dotted path or glob of the layer, repeatable; several are fused."),
    ] = ()

    @field_validator("layers", mode="before")
    @classmethod
    def _as_sequence(cls, layers: object) -> object:
        return (layers,) if isinstance(layers, str) else layers

    def layers_of(self, question: Question) -> tuple[str, ...]:
        """Return the layers of the option, or else the model's default.

        Raises:
            LayerError: the model has no default layer.
        """
        return self.layers or _default_layers(question)

    def quantities(self, model: AnyModel, image_shape: tuple[int, int, int]) -> dict[str, int]:
        """Return the sums of channels and of positions over all layers; empty for a model without a survey."""
        if isinstance(model, nn.Module):
            return {}
        try:
            paths = set(module_paths(model.module, self.layers or model.default_layers))
        except LayerError:  # the explanation itself will raise it
            return {}
        layers = [layer for layer in model.survey.layers if layer.path in paths and layer.cam]
        return {
            "channels": sum(layer.channels for layer in layers),
            "positions": sum(layer.cells for layer in layers),
        }


@dataclass(frozen=True, kw_only=True)
class CAM(LayerExplainer):
    """Base of CAMs: sums over feature maps A of a layer, most of them weighted by gradients dS/dA of the score S.

    A CAM takes one forward and one backward pass. The graph is cut at the first of the layers: autograd keeps nothing
    of what comes before, and no parameter gets a gradient. CAMs of the same layers and score can share both passes.

    Attributes:
        uses_gradients: whether the method needs the backward pass.
    """

    uses_gradients: ClassVar[bool] = True

    @abstractmethod
    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return each channel's contribution at each position; the map is the sum over the channels.

        Args:
            activations: (N, C, h, w) float32.
            gradients: (N, C, h, w) float32; empty unless `uses_gradients`.

        Returns:
            (N, C, h, w) float32.
        """

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the scores (N,) to differentiate: those of the objective, unless a method overrides this.

        Such a method must override `score_key` too.
        """
        return objective.scores(outputs)

    @property
    def score_key(self) -> Hashable:
        """The identity of `scores`: two CAMs of the same layers and equal keys have the same gradients."""
        return None

    def map_of(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, h, w) of one layer."""
        return self.project(self.contributions(activations, gradients))

    def attribute(self, question: Question) -> Attribution:
        """Run the model once with hooks on the layers, and combine their tensors."""
        layers = self.layers_of(question)
        return self.combine(collect(question, layers, self.scores if self.uses_gradients else None))

    def combine(self, tensors: LayerTensors) -> Attribution:
        """Return the attribution made of the layers' activations and gradients."""
        maps = [self.map_of(*pair) for pair in tensors.pairs()]
        return self.answer(fuse(maps), tensors.objective, tensors.outputs, tensors.paths)


@dataclass(frozen=True, kw_only=True)
class WeightedCAM(CAM):
    """Base of CAMs whose contributions are feature maps times weights."""

    @abstractmethod
    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weights of the feature maps, (N, C) or (N, C, h, w)."""

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weighted feature maps."""
        weights = self.weigh(activations, gradients)
        return activations * (weights if weights.ndim == 4 else weights[:, :, None, None])

    def map_of(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, h, w) of one layer."""
        if self.smooth == "eigen":
            return super().map_of(activations, gradients)
        # The sum over the channels at once, without the weighted feature maps in memory.
        weights = self.weigh(activations, gradients)
        sums = torch.einsum("nc,nchw->nhw" if weights.ndim == 2 else "nchw,nchw->nhw", weights, activations)
        return self.project(sums[:, None])


def collect(
    question: Question, layers: tuple[str, ...], scores: Callable[[Objective, Tensor], Tensor] | None
) -> LayerTensors:
    """Run the model once with hooks on layers that a CAM can use.

    Args:
        question: see `Question`.
        layers: dotted paths or globs.
        scores: returns the scores (N,) to differentiate, given an objective and outputs (N, ...); None for no backward
            pass.

    Raises:
        LayerError: a layer that the model lacks, or that does not suit a CAM.
        TargetError, ModelOutputError: as `Explainer.explain`.
    """
    kinds: tuple[Any, ...] = ("output",) if scores is None else ("output", "grad_output")
    paths = module_paths(question.module, layers)
    if len(paths) > MAX_LAYERS:
        raise LayerError(f"{', '.join(layers)} matches {len(paths)} layers; at most {MAX_LAYERS} can be fused.")
    # Several questions about one picture share its forward pass, and each has a backward pass from the outputs on.
    count, images = len(question.images), question.distinct_images
    is_shared = len(images) < count
    # The host may be the second part of an accelerated model: then `run` runs the first part on the accelerator.
    host = question.host(paths)
    with torch.set_grad_enabled(scores is not None), HookSession(host.module) as hooks:
        if scores is not None:
            hooks.cut(*paths)
        hooks.record(*paths, kinds=kinds)
        distinct = question.outputs(host.run(images))
        outputs = distinct.expand(count, *distinct.shape[1:]) if is_shared else distinct
        objective = question.objective(outputs)
        gradients: list[dict[str, list[Any]]] = []
        if scores is not None:
            # A shared picture's outputs stay one row: those of segmenters and detectors are large.
            rows = torch.arange(count, device=outputs.device)[:, None]
            objectives = [objective.rows(row) for row in rows] if is_shared else [objective]
            for part in objectives:
                hooks.backward(scores(part, distinct).sum(), retain_graph=part is not objectives[-1])
                gradients.append(hooks.grad_outputs)
        layer_outputs = hooks.outputs
    tensors = LayerTensors(objective, outputs.detach().float(), {}, {}, {})
    for path in paths:
        try:
            check_usable(question.model, path)
            view = view_of(replace(question, images=images), path, layer_outputs[path])
            if scores is not None:
                parts = [gradient[path][0] for gradient in gradients]
                if any(part is None for part in parts):
                    raise LayerError(
                        f"No gradient flows from the logits to layer {path!r}; choose one that they depend on."
                    )
                tensors.gradients[path] = view.of(torch.cat(parts) if is_shared else parts[0]).float()
            activations = view.of(layer_outputs[path][0]).float()
            tensors.activations[path] = activations.expand(count, *activations.shape[1:])
            tensors.views[path] = view
        except LayerError:  # a glob may match unsuitable layers, which are skipped; a layer by its full path must suit
            if path in layers:
                raise
    if not tensors.activations:
        raise LayerError(f"No layer that {', '.join(layers)} matches suits a CAM; see the list of the model's layers.")
    return tensors


def fuse(maps: list[Tensor]) -> Tensor:
    """Fuse the maps of several layers, each (N, h, w), on the finest grid; a single map stays as it is."""
    if len(maps) == 1:
        return maps[0]
    total = torch.zeros(())
    for values in aligned(maps):
        total = values + total.to(values.device)
    return total / len(maps)


def aligned(maps: list[Tensor]) -> Iterator[Tensor]:
    """Yield the maps of several layers, each divided by its largest magnitude, on the finest of their grids."""
    finest = max(maps, key=lambda values: values.shape[1] * values.shape[2]).shape[1:]
    for values in maps:
        largest = values.abs().amax(dim=(1, 2), keepdim=True)
        unit = values / torch.where(largest > 0, largest, torch.ones_like(largest))
        yield functional.interpolate(unit[:, None], size=finest, mode="bilinear", align_corners=False)[:, 0]


def stage_ends(layers: Iterable[Layer], stage: Callable[[Layer], Stage]) -> dict[Stage, str]:
    """Return the path of the last of the least nested layers of each stage, such as a grid, by that stage."""
    last: dict[Stage, str] = {}
    for layer in layers:
        key = stage(layer)
        if key not in last or layer.path.count(".") <= last[key].count("."):
            last[key] = layer.path
    return last


def check_usable(model: AnyModel, path: str) -> None:
    """Refuse a layer whose output holds no feature maps by the model's survey, such as attention of a picture's size.

    Raises:
        LayerError: the output holds none.
    """
    for layer in () if isinstance(model, nn.Module) else model.survey.layers:
        if layer.path == path and layer.calls == 1 and not layer.cam:
            raise LayerError(_NO_GRID.format(path=path, what=f"is {layer.output_shape}"))


def view_of(question: Question, path: str, outputs: list[Any]) -> FeatureMaps:
    """Return how the output of a layer's only call holds feature maps.

    Args:
        question: of the forward pass.
        path: of the layer.
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


def _default_layers(question: Question) -> tuple[str, ...]:
    """Return the default layers of a model, or those in a bare module's survey."""
    model = question.model
    if not isinstance(model, nn.Module):
        layers, reason = model.default_layers, model.no_default_layer
    else:
        survey = survey_for(question)
        layers, reason = survey.default_layers, survey.reason
    if not layers:
        raise LayerError(f"No default layer. {reason}")
    return layers
