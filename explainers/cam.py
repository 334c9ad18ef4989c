"""Class activation maps: methods that weigh the feature maps of a layer by their gradients."""

from abc import abstractmethod
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from explainers.base import (
    Attribution,
    Explainer,
    Sign,
    checked_logits,
    chosen_targets,
    keep_sign,
    target_score,
)
from explainers.errors import LayerError
from explainers.hooks import HookSession
from explainers.layers import Survey, grid_axes, survey

MAX_LAYERS = 64
"""Most layers that one explanation records and fuses."""

_NO_GRID = (
    "The output of layer {path!r} {what}, not a grid of features (N, C, h, w) with the proportions of the picture; "
    "choose a layer that `seewhy layers MODEL` or GET /models/NAME/layers marks as usable for a CAM."
)


@dataclass(frozen=True)
class GradientCAM(Explainer):
    """Base of the CAMs made of a layer's feature maps A and their gradients dS/dA.

    One forward and one backward pass: the graph is cut at the first of the layers, so nothing before it is
    kept for backward and no parameter gets a gradient.

    Attributes:
        layers: dotted paths or globs of the layers; empty for the model's default. Of what a glob matches, those
            that a CAM can use are taken. Maps of several layers are fused: each divided by its largest absolute
            value, resized bilinearly to the finest of the grids, and averaged. (pytorch-grad-cam fuses alike, on
            the picture's grid.)
        sign: which part of the weighted sum to keep.
    """

    layers: Annotated[
        tuple[str, ...],
        Field(description="Dotted path or glob of the layer, repeatable; several are fused."),
    ] = ()
    sign: Annotated[
        Sign,
        Field(description="Keep the evidence for the class, both signs, or magnitudes."),
    ] = "positive"

    @abstractmethod
    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, h, w) of activations and gradients, each (N, C, h, w) float32."""

    def attribute(self, model: Any, module: nn.Module, images: Tensor, targets: Tensor | None) -> Attribution:
        """Run the model once with hooks on the layers, and combine what they caught."""
        layers = self.layers or _default_layers(model, images)
        with HookSession(module) as hooks:
            hooks.cut(*layers)
            paths = hooks.record(*layers, kinds=("output", "grad_output"))
            if len(paths) > MAX_LAYERS:
                raise LayerError(f"{', '.join(layers)} matches {len(paths)} layers; at most {MAX_LAYERS} can be fused.")
            logits = checked_logits(module(images))
            targets = chosen_targets(logits, targets)
            hooks.backward(target_score(logits, targets))
            gradients = hooks.grad_outputs
        maps: dict[str, Tensor] = {}
        for path in paths:
            try:
                _check_usable(model, path)
                activation, gradient = _grids(path, hooks.outputs[path], gradients[path], images)
            except LayerError:
                if path in layers:
                    raise
                continue
            maps[path] = keep_sign(self.weigh(activation, gradient), self.sign)
        if not maps:
            raise LayerError(f"None of the layers that {', '.join(layers)} matches can be used for a CAM.")
        return Attribution(
            maps=fuse(list(maps.values())),
            targets=targets,
            logits=logits.detach().float(),
            layers=tuple(maps),
            signed=self.sign == "signed",
        )


@dataclass(frozen=True)
class GradCAM(GradientCAM):
    r"""Grad-CAM: feature maps weighted by their spatially averaged gradients.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big), \qquad
              \alpha_k^c = \frac{1}{hw} \sum_{i,j} \frac{\partial y^c}{\partial A^k_{ij}}

    where :math:`y^c` is the logit of class c. Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra: Grad-CAM:
    Visual Explanations from Deep Networks via Gradient-based Localization, 2017, arXiv:1610.02391,
    equations 1 and 2. ``sign="signed"`` omits the ReLU, ``"absolute"`` takes the magnitude instead.
    """

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the signed sum of equation 2; see `GradientCAM.weigh`."""
        weights = gradients.mean(dim=(2, 3))
        return torch.einsum("nc,nchw->nhw", weights, activations)


def fuse(maps: list[Tensor]) -> Tensor:
    """Fuse the maps of several layers, each (N, h, w), on the finest grid; a single map stays as it is."""
    if len(maps) == 1:
        return maps[0]
    finest = max(maps, key=lambda values: values.shape[1] * values.shape[2]).shape[1:]
    total = torch.zeros(())
    for values in maps:
        largest = values.abs().amax(dim=(1, 2), keepdim=True)
        unit = values / torch.where(largest > 0, largest, torch.ones_like(largest))
        resized = functional.interpolate(unit[:, None], size=finest, mode="bilinear", align_corners=False)
        total = resized[:, 0] + total.to(values.device)
    return total / len(maps)


def _default_layers(model: Any, images: Tensor) -> tuple[str, ...]:
    """Return the model's own default layers, or those that a survey of a bare module finds."""
    if not isinstance(model, nn.Module):
        layers, reason = tuple(model.default_layers), getattr(model, "no_default_layer", None)
    else:
        channels, height, width = images.shape[1:]
        found = survey(model, (channels, height, width))
        layers, reason = found.default_layers, found.reason
    if not layers:
        raise LayerError(f"No default layer. {reason}")
    return layers


def _check_usable(model: Any, path: str) -> None:
    """Refuse a layer that the model's survey knows to be no grid, such as attention of the size of a picture."""
    found = getattr(model, "survey", None)
    for layer in found.layers if isinstance(found, Survey) else ():
        if layer.path == path and layer.calls == 1 and not layer.cam:
            raise LayerError(_NO_GRID.format(path=path, what=f"is {layer.output_shape}"))


def _grids(path: str, outputs: list[Any], gradients: list[Any], images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the activations and gradients of a layer's only call as (N, C, h, w) float32."""
    if len(outputs) != 1:
        raise LayerError(
            f"Layer {path!r} runs {len(outputs)} times in one forward pass, so it has no one feature map; "
            "choose a layer that runs once, such as the block around it."
        )
    activation, gradient = outputs[0], gradients[0]
    image_size = (images.shape[2], images.shape[3])
    axes = grid_axes(tuple(activation.shape), image_size) if isinstance(activation, Tensor) else None
    if axes is None or len(activation) != len(images):
        shape = tuple(activation.shape) if isinstance(activation, Tensor) else type(activation).__name__
        raise LayerError(_NO_GRID.format(path=path, what=f"is {shape}"))
    if gradient is None:
        raise LayerError(f"No gradient flows from the logits to layer {path!r}; choose one that they depend on.")
    order = (0, *axes)
    return activation.permute(order).float(), gradient.permute(order).float()
