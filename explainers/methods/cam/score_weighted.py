"""Grad-CAM of other scores: the lead over similar classes, and a cooperative game with second derivatives."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import ONE_CLASS, Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from seewhy.explainers.hooks.attention import DefinedAttention
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.methods.cam.gradcam import GradCAM
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect
from seewhy.explainers.methods.catalogue import method


@method("finercam", family="cam")
class FinerCAM(GradCAM):
    r"""Finer-CAM: Grad-CAM of the lead over the nearest classes: the details that distinguish a class.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k A^k\Big), \qquad
              \alpha_k = \frac{1}{hw} \sum_{i,j} \frac{\partial}{\partial A^k_{ij}}
              \Big(y^c - \frac{\gamma}{|D|} \sum_{d \in D} y^d\Big)

    D contains the ``references`` classes whose logits are nearest to the target's, as in the authors' code, and γ is
    the option ``strength``. With a contrast, D contains only that class. The classes of D have equal weights
    (pytorch-grad-cam weights them by their probabilities, and differentiates the probabilities too). With γ = 0 the
    method is Grad-CAM.
    """

    reads: ClassVar[tuple[str, ...]] = ("nearest",)

    references: Annotated[int, Field(ge=1, le=1000, description="Number of nearest classes to compare with.")] = 3
    strength: Annotated[
        float, Field(ge=0, le=1, description="Share of the other classes' logits that is subtracted.")
    ] = 0.6

    def must_suit(self, question: Question) -> None:
        """Raise an error also if there is only one class."""
        super().must_suit(question)
        if not isinstance(question.model, nn.Module) and len(question.model.labels) == 1:
            raise UnsuitableModelError(ONE_CLASS)

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the target's logit less a share of the mean logit of D."""
        means = objective.nearest(outputs, self.references)
        if objective.against is not None:
            means = torch.where(objective.is_contrasted, objective.contrast.scores(outputs), means)
        return objective.alone.scores(outputs) - self.strength * means

    @property
    def score_key(self) -> Hashable:
        """The options of the score."""
        return "finercam", self.references, self.strength


@method("shapleycam", family="cam", forwards="2", backwards="3")
class ShapleyCAM(GradCAM):
    r"""ShapleyCAM: Grad-CAM with a second-order correction that approximates Shapley values of the features.

    .. math:: L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k A^k\Big), \qquad
              \alpha_k = \frac{1}{hw} \sum_{i,j} \Big(\frac{\partial U}{\partial A}
              - \frac{1}{2} \frac{\partial^2 U}{\partial A^2} A\Big)^k_{ij}

    These are the Shapley values of a game whose players are the features and whose worth is U, expanded to the second
    order around the features. Where U is piecewise linear in the features, as the logits of most heads are, the second
    term is zero and the method is Grad-CAM. The default U is therefore the authors' residual softmax target (ReST),
    :math:`U = y^c + \ln p^c`; with ``utility="logit"`` it is :math:`y^c`. With a contrast U is the difference of the
    two classes' U.
    """

    utility: Annotated[
        Literal["rest", "logit"],
        Field(description="Quantity to distribute: the logit plus the logarithm of the probability, or the logit."),
    ] = "rest"

    def must_suit(self, question: Question) -> None:
        """Raise an error also if the model has no probabilities, unless the utility is the logit."""
        super().must_suit(question)
        if self.utility == "rest":
            question.task.objectives.must_have("log_probabilities")

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return U."""
        outputs = outputs.float()
        return objective.scores(outputs if self.utility == "logit" else outputs + objective.log_probabilities(outputs))

    @property
    def score_key(self) -> Hashable:
        """The utility."""
        return "shapleycam", self.utility

    def attribute(self, question: Question) -> Attribution:
        """One pass for the gradients, and a second one with a backward pass through the backward pass."""
        tensors = collect(question, self.layers_of(question), self.scores)
        return self.combine(replace(tensors, gradients=self._corrected(question, tensors)))

    def _corrected(self, question: Question, tensors: LayerTensors) -> dict[str, Tensor]:
        """Return, per path, the gradients (N, C, h, w) less half the Hessian of the layer times its features."""
        features: dict[str, Tensor] = {}
        module, run = question.host(tensors.paths)
        # Fused attention has no second derivatives.
        with torch.enable_grad(), HookSession(module) as hooks, DefinedAttention():

            def keep(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
                features[hooks.current.path if hooks.current else ""] = output
                return output.clone()  # later modules may modify it in place

            hooks.cut(*tensors.paths)
            hooks.after_forward(keep, *tensors.paths)
            outputs = question.outputs(run(question.images))
            score = self.scores(tensors.objective, outputs).sum()
            # Class and register tokens are not features of the picture: they do not move.
            directions = [
                tensors.views[path].put(torch.zeros_like(tensor), tensors.views[path].of(tensor.detach()))
                for path, tensor in features.items()
            ]
            products = _hessian_products(score, list(features.values()), directions)
        gradients = {}
        for path, product in zip(features, products, strict=True):
            gradients[path] = tensors.gradients[path] - 0.5 * tensors.views[path].of(product).float()
        return gradients


def _hessian_products(score: Tensor, features: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
    """Return, for each tensor, the Hessian of the score with respect to the tensor, times its direction.

    Raises:
        LayerError: PyTorch has no second derivative of an operation after the layer.
    """
    # The Hessian itself would be far too large. The gradient g(A) is differentiated once more in the direction D:
    # the gradient of g · D, with D held fixed, is the product of the Hessian and D.
    products = []
    gradients = torch.autograd.grad(score, features, create_graph=True)
    for gradient, tensor, direction in zip(gradients, features, directions, strict=True):
        product = None
        if gradient.requires_grad:
            try:
                (product,) = torch.autograd.grad(
                    gradient, tensor, grad_outputs=direction, retain_graph=True, allow_unused=True
                )
            except RuntimeError as error:
                if "not implemented" not in str(error) and "not supported" not in str(error):
                    raise
                raise LayerError(
                    f"The part after the layer has no second derivatives ({error}); use gradcam, or a later layer."
                ) from error
        products.append(torch.zeros_like(tensor) if product is None else product.detach())
    return products
