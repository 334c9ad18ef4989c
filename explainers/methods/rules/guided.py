"""Gradients with another rule for rectifiers: guided backpropagation, deconvnet, guided Grad-CAM."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.cam.base import LayerExplainer
from seewhy.explainers.methods.cam.gradcam import GradCAM
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.rules.base import (
    Operation,
    Rules,
    is_linear,
    only_first_depends,
    propagate,
    rectifies,
    replaced,
    slope_of,
)

_RECTIFIERS = ("relu", "relu6", "hardtanh", "clamp", "clamp_min", "threshold")

# Nonlinear, but neither rectifiers nor activations in the place of one: both methods take their ordinary gradient.
_ORDINARY = frozenset(
    {"Mul", "Div", "Sigmoid", "Hardsigmoid", "MaxPool2DWithIndices", "MaxPool3DWithIndices", "AdaptiveMaxPool2D"}
    | {"Amax", "NativeBatchNorm", "CudnnBatchNorm", "NativeGroupNorm", "NativeLayerNorm"}
)


def _rules(name: str, backward: Callable[[Tensor, Tensor], Tensor]) -> Rules:
    """Return rules that differ from the derivative at rectifiers only.

    Args:
        name: name of the method.
        backward: returns the gradient of a rectifier's input, given its slopes and the gradient of its output.
    """

    def rectify(operation: Operation) -> Tensor | None:
        if not (only_first_depends(operation) and rectifies(operation)):
            return None
        values, function = operation.args[0].detach().clone(), operation.apart()
        return replaced(
            operation(values), lambda gradient: (backward(slope_of(function, values), gradient),), operation.args[0]
        )

    def keeps(kind: str, node: Any) -> bool:
        return kind in _ORDINARY or is_linear(kind, node)

    return Rules(name, dict.fromkeys(_RECTIFIERS, rectify), keeps)


GUIDED = _rules("guided-backprop", lambda slope, gradient: slope * gradient.clamp_min(0))
DECONVNET = _rules("deconvnet", lambda _, gradient: gradient.clamp_min(0))


@dataclass(frozen=True, kw_only=True)
class RectifiedGradient(Explainer):
    """Base of the gradients to the input with another rule for rectifiers."""

    rules: ClassVar[Rules]

    sign: Annotated[
        Sign, Field(description="Magnitude of the gradient, the signed gradient, or its positive part.")
    ] = "absolute"

    def attribute(self, question: Question) -> Attribution:
        """One forward and one backward pass to the input."""
        gradients, objective, outputs = propagate(question, question.images, self.rules)
        return self.answer(self.project(gradients), objective, outputs)


@method("guided-backprop", family="rule", fine=True, discriminates=False)
class GuidedBackprop(RectifiedGradient):
    r"""Guided backpropagation: gradient that passes ReLUs only where both the gradient and the ReLU's input are
    positive.

    .. math:: R^l_i = \mathbb{1}[f^l_i > 0] \; \mathbb{1}[R^{l+1}_i > 0] \; R^{l+1}_i, \qquad
              f^{l+1}_i = \mathrm{ReLU}(f^l_i)

    All other operations have their ordinary gradient, and the map is the sum over the colour channels. ReLU6 counts as
    a rectifier; beyond six its slope is zero too. A model with other activations (SiLU, GELU, leaky ReLU) is refused,
    because the rule is defined for rectifiers. The maps are sharp but hardly depend on the class.
    """

    rules: ClassVar[Rules] = GUIDED


@method("deconvnet", family="rule", fine=True, discriminates=False)
class Deconvnet(RectifiedGradient):
    r"""Deconvnet: gradient that passes ReLUs only where the gradient is positive, regardless of the ReLU's input.

    .. math:: R^l_i = \mathbb{1}[R^{l+1}_i > 0] \; R^{l+1}_i, \qquad f^{l+1}_i = \mathrm{ReLU}(f^l_i)

    Filters are transposed, max pooling goes back to the place of the maximum ("switches"), and where the model
    rectifies, the signal itself is rectified. Except for the last rule, this is the ordinary gradient, as Simonyan et
    al. (2013) note. The paper starts from the value of one activation of a feature map; here the pass starts from the
    score of the class, with one. Activations other than rectifiers are refused.
    """

    rules: ClassVar[Rules] = DECONVNET


@method("guided-gradcam", family="rule", forwards="2", backwards="2", fine=True)
class GuidedGradCAM(LayerExplainer):
    r"""Guided Grad-CAM: guided backpropagation, multiplied by Grad-CAM on the picture's grid.

    .. math:: M_{ij} = \sum_c G_{cij} \; \mathrm{up}(L^t)_{ij}

    G is guided backpropagation to the input, and L is Grad-CAM with its ReLU, resized bilinearly to the picture.
    Grad-CAM is not normalised first, because that would only scale the map. The Grad-CAMs of several layers are fused.
    """

    sign: Annotated[Sign, Field(description="Magnitude of the product, the signed product, or its positive part.")] = (
        "absolute"
    )

    def attribute(self, question: Question) -> Attribution:
        """One pass forward and back for each of the two factors."""
        cam = GradCAM(layers=self.layers).attribute(question)
        guided, objective, outputs = propagate(question, question.images, GUIDED)
        size = guided.shape[2:]
        mask = functional.interpolate(cam.maps[:, None], size=size, mode="bilinear", align_corners=False)
        return self.answer(self.project(guided * mask.to(guided.device)), objective, outputs, cam.layers)
