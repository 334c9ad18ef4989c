"""What all class activation maps share: which layers, what one forward and one backward pass found there, fusing."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass as plain
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.core.explainer import Attribution, Explainer, Question, checked_logits
from seewhy.explainers.core.objective import Goal
from seewhy.explainers.errors import LayerError
from seewhy.explainers.hooks.selection import as_module, module_paths
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.layers.survey_cache import axes_at, survey_of

MAX_LAYERS = 64
"""Most layers that one explanation records and fuses."""

_NO_GRID = (
    "The output of layer {path!r} {what}, not a grid of features (N, C, h, w) over the picture; "
    "choose a layer that `seewhy layers MODEL` or GET /models/NAME/layers marks as usable for a CAM."
)


@plain(frozen=True, eq=False)
class Evidence:
    """What one forward pass, and perhaps one backward pass, found at the layers of a CAM.

    Attributes:
        goal: what is explained.
        logits: (N, K) float32.
        activations: per path (N, C, h, w) float32.
        gradients: per path those of the score with respect to the activations, likewise; empty without backward pass.
        axes: per path the order of axes that makes what the layer returns (N, C, h, w).
    """

    goal: Goal
    logits: Tensor
    activations: dict[str, Tensor]
    gradients: dict[str, Tensor]
    axes: dict[str, tuple[int, int, int, int]]


@dataclass(frozen=True, kw_only=True)
class LayerExplainer(Explainer):
    """Base of all methods that look at layers.

    Attributes:
        layers: dotted paths or globs of the layers; empty for the model's default. Of what a glob matches, those
            that a CAM can use are taken. Maps of several layers are fused: each divided by its largest absolute
            value, resized bilinearly to the finest of the grids, and averaged. (pytorch-grad-cam fuses alike, on
            the picture's grid.)
    """

    layers: Annotated[
        tuple[str, ...],
        Field(description="Dotted path or glob of the layer, repeatable; several are fused."),
    ] = ()

    @field_validator("layers", mode="before")
    @classmethod
    def _several(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    def layers_of(self, question: Question) -> tuple[str, ...]:
        """Return the layers asked for, or else the model's own.

        Raises:
            LayerError: the model has no default layer.
        """
        return self.layers or _default_layers(question)

    def quantities(self, model: Any, image_shape: tuple[int, int, int]) -> dict[str, int]:
        """Return the channels and the positions of the layers together; nothing where the survey does not tell."""
        surveyed, chosen = getattr(model, "survey", None), self.layers or getattr(model, "default_layers", ())
        if not isinstance(surveyed, Survey):
            return {}
        try:
            paths = set(module_paths(as_module(model), tuple(chosen)))
        except LayerError:  # which the explanation itself raises
            return {}
        grids = [
            (layer.output_shape, layer.grid.axes)
            for layer in surveyed.layers
            if layer.path in paths and layer.cam and layer.grid and layer.output_shape
        ]
        return {
            "channels": sum(shape[axes[0]] for shape, axes in grids),
            "positions": sum(shape[axes[1]] * shape[axes[2]] for shape, axes in grids),
        }


@dataclass(frozen=True, kw_only=True)
class CAM(LayerExplainer):
    """Base of the CAMs made of a layer's feature maps A and, but for a few, their gradients dS/dA.

    One forward and one backward pass: the graph is cut at the first of the layers, so nothing before it is
    kept for backward and no parameter gets a gradient. CAMs of the same layers and score can share them.

    Attributes:
        uses_gradients: whether there must be a backward pass.
    """

    uses_gradients: ClassVar[bool] = True

    @abstractmethod
    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return what each channel contributes at each position, (N, C, h, w), of the same float32.

        Without a backward pass (`uses_gradients`) the gradients are empty. The map is the sum over channels.
        """

    def scores(self, goal: Goal, logits: Tensor) -> Tensor:
        """Return (N,): what the gradients are those of; the goal's own score unless a method has another.

        A method that has another overrides `score_key` too.
        """
        return goal.scores(logits)

    @property
    def score_key(self) -> Hashable:
        """What two CAMs of the same layers must have in common for their gradients to be the same."""
        return None

    def map_of(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, h, w) of one layer."""
        return self.project(self.contributions(activations, gradients))

    def attribute(self, question: Question) -> Attribution:
        """Run the model once with hooks on the layers, and combine what they caught."""
        layers = self.layers_of(question)
        return self.combine(collect(question, layers, self.scores if self.uses_gradients else None))

    def combine(self, evidence: Evidence) -> Attribution:
        """Return the attribution that evidence of these layers amounts to."""
        empty = evidence.logits.new_empty(0)
        maps = [
            self.map_of(activation, evidence.gradients.get(path, empty))
            for path, activation in evidence.activations.items()
        ]
        return self.answer(fuse(maps), evidence.goal, evidence.logits, tuple(evidence.activations))


@dataclass(frozen=True, kw_only=True)
class WeightedCAM(CAM):
    """Base of the CAMs whose contributions are feature maps times weights."""

    @abstractmethod
    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weights of the feature maps, (N, C) or (N, C, h, w)."""

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weighted feature maps."""
        weights = self.weigh(activations, gradients)
        return activations * (weights if weights.ndim == 4 else weights[:, :, None, None])

    def map_of(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps of one layer; without the weighted feature maps in memory where only their sum is needed."""
        if self.smooth == "eigen":
            return super().map_of(activations, gradients)
        weights = self.weigh(activations, gradients)
        summed = torch.einsum("nc,nchw->nhw" if weights.ndim == 2 else "nchw,nchw->nhw", weights, activations)
        return self.project(summed[:, None])


def collect(
    question: Question, layers: tuple[str, ...], scores: Callable[[Goal, Tensor], Tensor] | None = Goal.scores
) -> Evidence:
    """Run the model once with hooks on layers that a CAM can use.

    Args:
        question: see `Question`.
        layers: dotted paths or globs.
        scores: the score (N,) of a goal and logits (N, K) that gradients are of; None for no backward pass.

    Raises:
        LayerError: a layer that the model lacks or that cannot carry a CAM.
        TargetError, ModelOutputError: as `Explainer.explain`.
    """
    kinds: tuple[Any, ...] = ("output",) if scores is None else ("output", "grad_output")
    paths = module_paths(question.module, layers)
    if len(paths) > MAX_LAYERS:
        raise LayerError(f"{', '.join(layers)} matches {len(paths)} layers; at most {MAX_LAYERS} can be fused.")
    host = question.host(paths)
    with torch.set_grad_enabled(scores is not None), HookSession(host.module) as hooks:
        if scores is not None:
            hooks.cut(*paths)
        hooks.record(*paths, kinds=kinds)
        logits = checked_logits(host.run(question.images))
        goal = question.goal(logits)
        if scores is not None:
            hooks.backward(scores(goal, logits).sum())
        found = hooks.grad_outputs
    activations: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    orders: dict[str, tuple[int, int, int, int]] = {}
    for path in paths:
        try:
            check_usable(question.model, path)
            axes = grid_of(question, path, hooks.outputs[path])
            if scores is not None:
                gradient = found[path][0]
                if gradient is None:
                    raise LayerError(
                        f"No gradient flows from the logits to layer {path!r}; choose one that they depend on."
                    )
                gradients[path] = gradient.permute(axes).float()
            activations[path] = hooks.outputs[path][0].permute(axes).float()
            orders[path] = axes
        except LayerError:
            if path in layers:
                raise
    if not activations:
        raise LayerError(f"None of the layers that {', '.join(layers)} matches can be used for a CAM.")
    return Evidence(goal, logits.detach().float(), activations, gradients, orders)


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


def check_usable(model: Any, path: str) -> None:
    """Refuse a layer that the model's survey knows to be no grid, such as attention of the size of a picture.

    Raises:
        LayerError: it is none.
    """
    found = getattr(model, "survey", None)
    for layer in found.layers if isinstance(found, Survey) else ():
        if layer.path == path and layer.calls == 1 and not layer.cam:
            raise LayerError(_NO_GRID.format(path=path, what=f"is {layer.output_shape}"))


def grid_of(question: Question, path: str, outputs: list[Any]) -> tuple[int, int, int, int]:
    """Return the order of axes that makes the output of a layer's only call (N, C, h, w).

    Args:
        question: whose images ran through its model.
        path: of the layer.
        outputs: one per call.

    Raises:
        LayerError: the layer runs several times, or its output is no grid over the pictures.
    """
    if len(outputs) != 1:
        raise LayerError(
            f"Layer {path!r} runs {len(outputs)} times in one forward pass, so it has no one feature map; "
            "choose a layer that runs once, such as the block around it."
        )
    output = outputs[0]
    axes = None
    if isinstance(output, Tensor):
        channels, height, width = question.images.shape[1:]
        check = partial(question.report, 0, 1)
        axes = axes_at(question.model, path, tuple(output.shape), (channels, height, width), check)
    if axes is None or len(output) != len(question.images):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise LayerError(_NO_GRID.format(path=path, what=f"is {shape}"))
    return 0, *axes


def survey_for(question: Question) -> Survey:
    """Return the survey of a question's model for pictures of its size."""
    channels, height, width = question.images.shape[1:]
    return survey_of(question.model, (channels, height, width), partial(question.report, 0, 1))


def _default_layers(question: Question) -> tuple[str, ...]:
    """Return the model's own default layers, or those that a survey of a bare module finds."""
    model = question.model
    if not isinstance(model, nn.Module):
        layers, reason = tuple(model.default_layers), getattr(model, "no_default_layer", None)
    else:
        found = survey_for(question)
        layers, reason = found.default_layers, found.reason
    if not layers:
        raise LayerError(f"No default layer. {reason}")
    return layers
