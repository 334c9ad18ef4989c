"""The bases of class activation maps: choice of layers, weights of feature maps, many passes, fusion of maps."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Annotated, ClassVar, TypeVar

import torch
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import InvalidArgumentError, LayerError
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.layers.survey import Layer
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect, survey_for
from seewhy.explainers.methods.explainer import Explainer

Stage = TypeVar("Stage", bound=Hashable)


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
        Field(description="Dotted path or glob of the layer, repeatable to fuse several layers."),
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

    def must_suit(self, question: Question) -> None:
        """Raise an error also if no layer of the model suits, not only if it has no default layer."""
        super().must_suit(question)
        if not any(layer.cam for layer in survey_for(question).layers):
            self.layers_of(question)

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
    of the part before, and no parameter gets a gradient. CAMs of the same layers and score can share both passes.

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
        maps = self.fused([self.map_of(*pair) for pair in tensors.pairs()])
        return self.answer(maps, tensors.objective, tensors.outputs, tensors.paths)

    def fused(self, maps: list[Tensor]) -> Tensor:
        """Return one map (N, h, w) of those of all layers; see `fuse`."""
        return fuse(maps)


@dataclass(frozen=True, kw_only=True)
class WeightedCAM(CAM):
    """Base of CAMs whose contributions are feature maps times weights."""

    @abstractmethod
    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weights of the feature maps, (N, C) or (N, C, h, w)."""

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weighted feature maps."""
        weights = self._weights(activations, gradients)
        return activations * (weights if weights.ndim == 4 else weights[:, :, None, None])

    def map_of(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, h, w) of one layer."""
        if self.smooth == "eigen":
            return super().map_of(activations, gradients)
        # The sum over the channels at once, without the weighted feature maps in memory.
        weights = self._weights(activations, gradients)
        sums = torch.einsum("nc,nchw->nhw" if weights.ndim == 2 else "nchw,nchw->nhw", weights, activations)
        return self.project(sums[:, None])

    def _weights(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the checked result of `weigh`.

        Raises:
            InvalidArgumentError: it has another shape, which only a mistake in the method can give it.
        """
        weights = self.weigh(activations, gradients)
        shape = tuple(activations.shape)
        if tuple(weights.shape) not in (shape, shape[:2]):
            raise InvalidArgumentError(
                f"`{type(self).__name__}.weigh` returned weights of shape {tuple(weights.shape)}; expected (N, C), "
                f"{shape[:2]}, or (N, C, h, w), {shape}.",
                field="method",
            )
        return weights


@dataclass(frozen=True, kw_only=True)
class ForwardCAM(LayerExplainer):
    """Base of CAMs that run the model again for each channel or position of a layer.

    The first pass gives the feature maps of all layers. Each layer then has its own passes and map.
    """

    @abstractmethod
    def layer_map(self, question: Question, tensors: LayerTensors, path: str) -> tuple[Tensor, Tensor | None]:
        """Return the maps (N, h, w) of one layer, projected, and the change (N,) that an `Attribution` has, or None.

        Run the whole model in inference mode, but replays under ``torch.no_grad()``: a replay reads version counters to
        notice in-place changes, and tensors of inference mode have none.
        """

    def attribute(self, question: Question) -> Attribution:
        """Run the model once for the feature maps, and then for each layer."""
        tensors = collect(question, self.layers_of(question), None)
        paths = tensors.paths
        # The map of one of several layers does not look like the fused one.
        progress = question.progress if len(paths) == 1 else question.progress.unseen
        layers = []
        for number, path in enumerate(paths):
            part = replace(question, progress=progress.part(number, len(paths)))
            layers.append(self.layer_map(part, tensors, path))
        answer = self.answer(fuse([maps for maps, _ in layers]), tensors.objective, tensors.outputs, paths)
        changes = [change for _, change in layers if change is not None]
        return replace(answer, change=torch.stack(changes).amax(dim=0)) if changes else answer


def fuse(maps: list[Tensor]) -> Tensor:
    """Fuse the maps of several layers, each (N, h, w), on the finest grid; a single map stays as it is."""
    return maps[0] if len(maps) == 1 else aligned(maps, torch.add) / len(maps)


def aligned(maps: list[Tensor], combine: Callable[[Tensor, Tensor], Tensor], scaled: bool = True) -> Tensor:
    """Return the maps of several layers, combined pair by pair on the finest of their grids.

    Args:
        maps: each (N, h, w).
        combine: adds or multiplies two of them.
        scaled: whether each is divided by its largest magnitude first.
    """
    finest = max(maps, key=lambda values: values.shape[1] * values.shape[2]).shape[1:]
    total = None
    for values in maps:
        if scaled:
            largest = values.abs().amax(dim=(1, 2), keepdim=True)
            values = values / torch.where(largest > 0, largest, 1.0)
        fine = functional.interpolate(values[:, None], size=finest, mode="bilinear", align_corners=False)[:, 0]
        total = fine if total is None else combine(total.to(fine.device), fine)
    return maps[0] if total is None else total


def stage_ends(layers: Iterable[Layer], stage: Callable[[Layer], Stage]) -> dict[Stage, str]:
    """Return the path of the last of the least nested layers of each stage, such as a grid, by that stage."""
    last: dict[Stage, str] = {}
    for layer in layers:
        key = stage(layer)
        if key not in last or layer.path.count(".") <= last[key].count("."):
            last[key] = layer.path
    return last


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
