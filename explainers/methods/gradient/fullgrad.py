"""FullGrad: the gradient of the input, and those of every bias, laid over each other."""

from collections.abc import Mapping
from contextlib import nullcontext
from math import log
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.projection import Sign, principal_component
from seewhy.explainers.core.question import Question
from seewhy.explainers.layers.feature_maps import FeatureMaps, GridMaps, grid_axes
from seewhy.explainers.layers.survey_cache import surveyed_maps
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.gradient.decomposition import FullGradients, full_gradients, units_of


@method("fullgrad", family="gradient", forwards="2", backwards="3", fine=True)
class FullGrad(Explainer):
    r"""FullGrad: input times gradient and bias times gradient of every layer, which add up to the score.

    .. math:: y^c = \nabla_x y^c \cdot x + \sum_l \nabla_{b_l} y^c \cdot b_l, \qquad
              M = \psi(\nabla_x y^c \odot x) + \sum_l \sum_k \psi(\nabla_{b_l} y^c \odot b_l)_k

    The bias of a layer is the constant of its tangent at each position of its output: the bias of a convolution, and
    the implicit bias of batch norm and of any activation other than ReLU. ψ takes the magnitude, stretches it over 0 to
    1 for each layer, as the authors' code does, and resizes it bilinearly to the picture (with corners unaligned, as
    all maps here). Unlike in that code, a layer is stretched less if even its largest value is a difference of values
    more than 2^9 times as large (2^3 times in half precision), because the drawing would show their rounding errors.

    ``sign="signed"`` omits the magnitude and the stretching, and distributes each value over the pixels that it is
    resized to. Resizing slightly changes the sum of a layer; the change is subtracted evenly from all pixels. The map
    then sums to the score, except for the terms of layers without positions (fully connected ones, and those of pooled
    features), which no map can show.

    Every picture is checked: its terms must add up to the score. A module that does more than its parts, such as a
    gate, is treated as a unit; which modules these are depends only on the model. Under ``torch.autocast``, the model
    still runs in its own precision.

    The model runs one forward and one backward pass. A module with an implicit bias runs one more forward pass and two
    more backward passes on its own, so no module runs more than two forward and three backward passes. The first
    picture of each size also costs two passes with noise, which find the modules that are treated as a unit.
    """

    sign: Annotated[
        Sign,
        Field(
            description="Magnitude of each layer's contribution (as in the paper), signed contributions, or "
            "positive ones."
        ),
    ] = "absolute"

    def attribute(self, question: Question) -> Attribution:
        """One pass forward and back, and passes of their own for modules with an implicit bias."""
        # A bias is a small difference of large values, which would vanish in the half precision of autocast.
        device = question.images.device.type
        maps, parts = [], []
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            units, surveyed = units_of(question), surveyed_maps(question.model)
            # The inputs, the gradients and the terms of each module are in memory at once.
            for rows in question.chunks(len(question.images), backward=True, copies=2):
                parts.append(full_gradients(question.part(rows), units))
                maps.append(self._map(parts[-1], (question.images.shape[2], question.images.shape[3]), surveyed))
        objective = Objective.joined([part.objective for part in parts])
        return self.answer(torch.cat(maps), objective, torch.cat([part.outputs for part in parts]))

    def _map(
        self, gradients: FullGradients, size: tuple[int, int], surveyed: Mapping[str, FeatureMaps | None]
    ) -> Tensor:
        """Return the maps (N, *size); `surveyed` has how the outputs of modules hold feature maps, by path."""
        total = torch.zeros(())
        for term in gradients.terms:
            view = (term.values.ndim == 4 and surveyed.get(term.path)) or _likely_view(tuple(term.values.shape), size)
            if view is None:
                continue
            values = view.of(term.values)
            if values[0, 0].numel() == 1 and size != (1, 1):
                continue
            if self.sign == "absolute":
                values = _stretched(values.abs(), term.least)
            coarse = principal_component(values) if self.smooth == "eigen" else values.sum(dim=1)
            fine = functional.interpolate(coarse[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
            if self.sign != "absolute":
                fine = fine * (coarse[0].numel() / fine[0].numel())
                # Resizing changed the sum a little: evenly shifted, the map has that of the coarse one.
                sums, fine_sums = (maps.double().sum(dim=(1, 2), keepdim=True) for maps in (coarse, fine))
                fine = fine + ((sums - fine_sums) / fine[0].numel()).to(fine.dtype)
            total = fine + total.to(fine.device)
        return total.clamp_min(0) if self.sign != "signed" else total


def _likely_view(shape: tuple[int, ...], size: tuple[int, int]) -> FeatureMaps | None:
    """Return how a term probably holds feature maps; None if it has no positions.

    Padding can give a layer more pixels and other proportions than the picture: then the closer of both readings
    counts.
    """
    if (axes := grid_axes(shape, size)) is not None or len(shape) != 4:
        return axes and GridMaps(axes)

    def stretch(axes: tuple[int, int, int]) -> float:
        return abs(log(shape[axes[1]] * size[1] / (shape[axes[2]] * size[0])))

    return GridMaps(min((1, 2, 3), (3, 1, 2), key=stretch))


def _stretched(values: Tensor, least: Tensor | float) -> Tensor:
    """Return each picture's values, stretched over 0 to 1; over less where the largest is smaller than `least`."""
    values = values - values.amin(dim=(1, 2, 3), keepdim=True)
    largest = values.amax(dim=(1, 2, 3), keepdim=True).clamp_min(least)
    return values / torch.where(largest > 0, largest, torch.ones_like(largest))
