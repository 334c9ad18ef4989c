"""Layer-wise relevance propagation."""

from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.rules.attention import attention_rules
from seewhy.explainers.methods.rules.base import RelevanceSign, propagate
from seewhy.explainers.methods.rules.linear import (
    alpha_beta_rule,
    box_rule,
    epsilon_rule,
    flat_rule,
    gamma_rule,
    own_sign_rule,
)
from seewhy.explainers.methods.rules.relevance import Composite

CompositeName = Literal[
    "epsilon",
    "gamma",
    "z-plus",
    "epsilon-plus",
    "epsilon-plus-flat",
    "epsilon-gamma-box",
    "epsilon-alpha2-beta1",
    "epsilon-alpha2-beta1-flat",
]
"""The rule, or rules, by kind of layer: dense, convolution, first convolution."""


@method("lrp", family="rule", fine=True)
class LRP(Explainer):
    r"""Layer-wise relevance propagation: the logit, distributed layer by layer in proportion to contributions, down to
    the pixels.

    .. math:: R_i = \sum_j \frac{z_{ij}}{z_j + \epsilon \, \mathrm{sign}(z_j)} R_j, \qquad
              z_{ij} = x_i w_{ij}, \quad z_j = \sum_i z_{ij} + b_j

              R_i = \sum_j \frac{z_{ij} + \gamma z_{ij}^+}{z_j + \gamma z_j^+} R_j \quad (z_j \geq 0), \qquad
              R_i = \sum_j \Big( \alpha \frac{z_{ij}^+}{z_j^+} - \beta \frac{z_{ij}^-}{z_j^-} \Big) R_j

    The relevance of the output is the logit itself (with a contrast, the two logits with opposite signs). The rules are
    ``epsilon`` and, below it, the gamma rule (``gamma``; Montavon et al. 2019, "Layer-Wise Relevance Propagation: An
    Overview") and the alpha-beta rule. ``z-plus`` is the limit of a large gamma; for positive outputs it equals alpha
    1, beta 0. In names with several parts, dense layers follow the first rule and convolutions the second, where
    ``plus`` is z-plus. With a third part, the first convolution follows ``flat`` (equal shares) or ``box`` (the
    :math:`z^B` rule of Montavon et al. 2017, "Explaining nonlinear classification decisions with deep Taylor
    decomposition": contributions beyond those of the smallest and largest possible values).

    Activations and constant factors pass relevance on, max pooling to the place of the maximum. Additions of shortcuts,
    average poolings and resizing use the epsilon rule, or z-plus under ``z-plus``. Batch normalisation is folded into
    the convolution or dense layer before it. Without one, as in DenseNet, it distributes relevance between its input
    and its bias like an addition. Biases and added constants keep their share; without any, the map sums to the logit,
    up to epsilon. In trained networks with batch normalisation they keep nearly all of it, so a map shows where
    relevance is, but not its total.

    Beyond the papers: for a negative output (only layers without a ReLU have them) the gamma rule, and so z-plus,
    favours the negative contributions. Under alpha-beta, if there are no contributions of one sign, those of the other
    sign share all the relevance, so relevance is conserved. ``box`` uses the extremes of each channel in the picture,
    because the range of a bare module's input is unknown. Softmax, gates, products of matrices and normalisations
    of layers follow the rules of `attnlrp`, whose defaults are its paper's for transformers.
    """

    composite: Annotated[
        CompositeName,
        Field(description="Rule for all layers, or rules for dense layers, convolutions and the first convolution."),
    ] = "epsilon-gamma-box"
    epsilon: Annotated[float, Field(gt=0, le=1, description="Added to the denominator of the epsilon rule.")] = 1e-6
    gamma: Annotated[
        float, Field(ge=0, le=1000, description="Additional weight of contributions with the sign of the output.")
    ] = 0.25
    sign: RelevanceSign = "signed"

    def attribute(self, question: Question) -> Attribution:
        """One forward and one backward pass to the input."""
        rules = attention_rules("lrp", self._composite(), self.epsilon)
        relevance, objective, outputs = propagate(question, question.images, rules, torch.mul)
        return self.answer(self.project(relevance), objective, outputs)

    def _composite(self) -> Composite:
        """Return the rules of the option `composite`: of the first layer, convolutions, dense layers and sums."""
        epsilon, gamma = partial(epsilon_rule, epsilon=self.epsilon), partial(gamma_rule, gamma=self.gamma)
        plus, two_one = own_sign_rule, partial(alpha_beta_rule, alpha=2, beta=1)
        return {
            "epsilon": Composite(epsilon, epsilon, epsilon, epsilon),
            "gamma": Composite(gamma, gamma, gamma, epsilon),
            "z-plus": Composite(plus, plus, plus, plus),
            "epsilon-plus": Composite(plus, plus, epsilon, epsilon),
            "epsilon-plus-flat": Composite(flat_rule, plus, epsilon, epsilon),
            "epsilon-gamma-box": Composite(box_rule, gamma, epsilon, epsilon),
            "epsilon-alpha2-beta1": Composite(two_one, two_one, epsilon, epsilon),
            "epsilon-alpha2-beta1-flat": Composite(flat_rule, two_one, epsilon, epsilon),
        }[self.composite]
