"""AttnLRP: layer-wise relevance propagation through attention."""

from functools import partial
from typing import Annotated

import torch
from pydantic import Field

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.methods.rules.attention import attention_rules
from seewhy.explainers.methods.rules.base import RelevanceSign, propagate
from seewhy.explainers.methods.rules.linear import epsilon_rule, gamma_rule
from seewhy.explainers.methods.rules.relevance import Composite


@method(
    "attnlrp",
    family="transformer",
    fine=True,
    rounding="how relevance is divided among contributions that almost cancel, as in untrained networks",
)
class AttnLRP(Explainer):
    r"""AttnLRP: the logit, distributed layer by layer through attention, normalisation and any activation, to the
    pixels.

    .. math:: R_{x_i} = x_i \Big(R_{s_i} - s_i \sum_j R_{s_j}\Big) \quad (s = \mathrm{softmax}(x)), \qquad
              R_{A_{jk}} = \sum_p \frac{A_{jk} V_{kp}}{2 O_{jp} + \epsilon} R_{O_{jp}}, \quad
              R_{V_{kp}} = \sum_j \frac{A_{jk} V_{kp}}{2 O_{jp} + \epsilon} R_{O_{jp}} \quad (O = A V)

              y = \frac{x - \bar x}{\sigma} w + b: \quad
              R_{x_i} = \sum_j \frac{x_i \, \partial_{x_i} y_j |_{\sigma}}{y_j + \epsilon} R_{y_j}, \qquad
              y = f(x_i): \quad R_{x_i} = R_y

    These are the paper's propositions 3.1 (softmax), 3.3 (matrix products, here also of queries and keys) and 3.4
    (normalisation: the deviation σ is a constant), and the identity rule of activations such as GELU. A product of two
    activations at one place, as in a gate, gives half of the relevance to each (proposition 3.2). ``lrp`` has the same
    rules, but a choice of those for convolutions and dense layers, which here follow the gamma rule, or the epsilon
    rule with a gamma of 0; additions of shortcuts and averages follow the epsilon rule. The relevance of the output is
    the logit (with a contrast, the two logits with opposite signs).

    Biases keep their share, and so does the softmax, whose rule is a Taylor decomposition with a constant term.
    Including these, the relevance is complete; the map alone need not sum to the logit. A quotient of two activations
    is treated as a normalisation, so the dividend gets all relevance. Any model that consists of such operations can be
    explained, with or without attention, including windows and convolutional networks with SiLU and gates. Before the
    patch embedding, relevance is distributed over the pixels of each patch, so the grid of patches is visible;
    ``smooth="tta"`` softens it.
    """

    gamma: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            description="Additional weight of contributions with the sign of the output, in dense layers.",
        ),
    ] = 0.05
    conv_gamma: Annotated[float, Field(ge=0, le=1000, description="Like gamma, for convolutions.")] = 0.25
    epsilon: Annotated[float, Field(gt=0, le=1, description="Added to the denominators of the rules.")] = 1e-6
    sign: RelevanceSign = "signed"

    def attribute(self, question: Question) -> Attribution:
        """One forward and one backward pass to the input."""
        epsilon = partial(epsilon_rule, epsilon=self.epsilon)
        conv, dense = (
            partial(gamma_rule, gamma=gamma) if gamma else epsilon for gamma in (self.conv_gamma, self.gamma)
        )
        rules = attention_rules("attnlrp", Composite(conv, conv, dense, epsilon), self.epsilon)
        relevance, objective, outputs = propagate(question, question.images, rules, torch.mul)
        return self.answer(self.project(relevance), objective, outputs)
