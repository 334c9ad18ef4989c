"""CAMs without gradients: the original one with the head's weights, FEM, and random weights as a control."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from seewhy.explainers.hooks.selection import module_paths
from seewhy.explainers.methods.cam.base import CAM, WeightedCAM
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect, survey_for
from seewhy.explainers.methods.cam.linear_head import linear_head, linear_layers
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Seed


@method("cam", family="cam", backwards="0")
class ClassActivationMap(WeightedCAM):
    r"""Class activation mapping: feature maps weighted by the linear head; for models with global average pooling
    before the head.

    .. math:: M^c_{ij} = \sum_k w^c_k A^k_{ij}, \qquad y^c = \frac{1}{hw} \sum_{i,j} M^c_{ij} + b^c

    Equations 1 and 2. Every picture is checked against the second one; a model whose logits differ is refused. The
    paper draws the signed map (``sign="signed"``). Like the other CAMs, this one keeps the positive part by default.
    """

    uses_gradients: ClassVar[bool] = False

    def must_suit(self, question: Question) -> None:
        """Raise an error also if outputs are of places, or no linear layer takes as many features as a layer has."""
        super().must_suit(question)
        if not question.task.objectives.is_linear:
            raise UnsuitableModelError(_OF_PLACES)
        if isinstance(question.model, nn.Module):
            return
        layers = {layer.path: layer.channels for layer in survey_for(question).layers if layer.cam}
        count = len(question.model.labels)
        if not any(linear_layers(question.module, count, channels) for channels in {*layers.values()}):
            path, *_ = module_paths(question.module, self.layers_of(question))
            raise _unsuitable(_no_layer(layers[path], count))

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and a look at the head."""
        tensors = collect(question, self.layers_of(question), None)
        weights = {path: head_weights(question, path, tensors) for path in tensors.paths}
        return self.combine(replace(tensors, gradients=weights))

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the weights (N, C) of the head, which `attribute` has put in the place of gradients."""
        return gradients


def head_weights(question: Question, path: str, tensors: LayerTensors) -> Tensor:
    """Return the weights (N, C) of the score, a linear function of the averages of a layer's feature maps.

    Raises:
        UnsuitableModelError: no linear layer maps the averages to the logits.
    """
    features, outputs = tensors.activations[path], tensors.outputs
    if outputs.ndim > 2:
        raise UnsuitableModelError(_OF_PLACES)
    head = linear_head(question, features, outputs)
    if head is not None and head.exact:
        # The score is linear in the logits: applied to the C columns of weights, it gives those of the score itself.
        columns = features.shape[1]
        rows = torch.arange(len(outputs), device=outputs.device)
        return torch.stack([tensors.objective.rows(row.expand(columns)).scores(head.weight.T) for row in rows])
    raise _unsuitable(
        _no_layer(features.shape[1], outputs.shape[1])
        if head is None
        else f"its linear layer gives other logits for the averages of layer {path!r}, up to {head.difference:.1%} off"
    )


_OF_PLACES = "CAM explains logits of the whole picture, but this model returns logits of single positions; use gradcam."


def _no_layer(features: int, outputs: int) -> str:
    return f"the model has no linear layer that takes {features} features and gives {outputs} logits"


def _unsuitable(why: str) -> UnsuitableModelError:
    return UnsuitableModelError(
        "CAM needs a model whose logits are a linear layer of the averages (global average pooling) of the layer's "
        f"feature maps, but {why}. If the model has such a head, choose the layer before its pooling; otherwise use "
        "gradcam."
    )


@method(
    "fem",
    family="cam",
    backwards="0",
    discriminates=False,
    rounding="whether a value close to the threshold stands out",
)
class FEM(CAM):
    r"""Feature explanation method: positions where the features of each map stand out; the same for every class.

    .. math:: L = \sum_k \mu_k\, [A^k \geq \mu_k + \kappa \sigma_k]

    where :math:`\mu_k` and :math:`\sigma_k` are the mean and the standard deviation of the feature map over its
    positions, κ is the option ``deviations``, and the bracket is 1 if the condition holds (the k-sigma rule), else 0.
    A constant feature map stands out nowhere.
    """

    deviations: Annotated[
        float, Field(ge=0, le=100, description="Number of standard deviations by which a feature must exceed its mean.")
    ] = 2.0

    uses_gradients: ClassVar[bool] = False

    def contributions(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the means where the features stand out, and 0 elsewhere."""
        positions = activations[0, 0].numel()
        # A single value among zeros exceeds the mean by the maximum number of standard deviations.
        largest = (positions - 1) ** 0.5
        if largest < self.deviations:
            raise LayerError(
                f"Among {positions} positions none can exceed the mean by more than {largest:.2f} standard deviations; "
                f"choose an earlier layer, larger pictures, or less than {self.deviations:g} deviations."
            )
        means = activations.mean(dim=(2, 3), keepdim=True)
        deviations = activations.std(dim=(2, 3), keepdim=True, correction=0)
        flat = activations.amax(dim=(2, 3), keepdim=True) == activations.amin(dim=(2, 3), keepdim=True)
        outstanding = (activations >= means + self.deviations * deviations) & ~flat
        return means * outstanding


@method("random", family="control", backwards="0", discriminates=False)
class RandomCAM(WeightedCAM):
    r"""Random weights: feature maps with random weights: a control that any method should beat.

    .. math:: L = \mathrm{ReLU}\Big(\sum_k w_k A^k\Big), \qquad w_k \sim \mathcal{U}(-1, 1)

    The paper explains why such a control is needed; this one is our own. All pictures of a batch get the same weights.
    """

    seed: Seed = 0

    uses_gradients: ClassVar[bool] = False

    def weigh(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the random weights (N, C)."""
        generator = torch.Generator().manual_seed(self.seed)
        weights = 2 * torch.rand(activations.shape[1], generator=generator) - 1
        return weights.to(activations).expand(len(activations), -1)
