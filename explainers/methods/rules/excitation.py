"""Excitation backpropagation."""

from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from seewhy.explainers.core.ask import Ask
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.cam.base import LayerExplainer, fuse
from seewhy.explainers.methods.cam.layer_tensors import collect
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.rules.base import Rewriting, propagate
from seewhy.explainers.methods.rules.linear import excitation_rule, own_sign_rule
from seewhy.explainers.methods.rules.relevance import Composite, relevance_rules

_OWN_SIGN = partial(own_sign_rule, biased=False)
_COMPOSITE = Composite(first=_OWN_SIGN, conv=_OWN_SIGN, dense=excitation_rule, sums=_OWN_SIGN)


@method("excitation-backprop", family="rule", fine=True)
class ExcitationBackprop(LayerExplainer):
    r"""Excitation backpropagation: probability that a winner-take-all walk from the class along exciting connections
    visits each place.

    .. math:: P(a_j) = \sum_i P(a_j \mid a_i) \, P(a_i), \qquad
              P(a_j \mid a_i) = \frac{a_j w_{ij}^+}{\sum_k a_k w_{ik}^+}

    where the walk goes from neuron i to the neurons j that feed it, in proportion to their excitation of i; biases do
    not count. The map is the probability of each place (the paper's marginal winning probability), summed over
    channels, and sums to one. Max pooling passes the probability to the maximum; average poolings and additions are
    neurons with equal weights. The paper does not treat batch normalisation: here it is folded into the convolution
    before it, and elsewhere it is a neuron with one input and a bias.

    The paper assumes positive activations. For negative ones (in the picture itself, and in layers without a ReLU), a
    contribution counts by the sign of weight times activation, and a negative neuron is excited by its negative
    contributions. Neurons that only a bias excites lose probability, and so does a layer that another branch bypasses;
    dividing by the sum compensates for both. A contrast is the difference of two such maps; the paper's contrastive map
    inverts the weights of the class instead.
    """

    layers: Annotated[
        tuple[str, ...],
        Field(description="Dotted path or glob of the layer to stop at, repeatable; by default the picture."),
    ] = ()

    def must_suit(self, question: Question) -> None:
        """Refuse no model: without layers, the method stops at the picture."""

    def attribute(self, question: Question) -> Attribution:
        """One pass forward and back; two for a contrast."""
        layers, outputs = self._probabilities(replace(question, ask=Ask(question.ask.targets)))
        objective = question.objective(outputs)
        if objective.against is not None:
            contrasts, _ = self._probabilities(replace(question, ask=objective.contrast.ask))
            mask = ~objective.is_contrasted[:, None, None, None]
            layers = {path: values - contrasts[path].masked_fill(mask, 0) for path, values in layers.items()}
        maps = fuse([self.project(values) for values in layers.values()])
        return self.answer(maps, objective, outputs, tuple(path for path in layers if self.layers))

    def _probabilities(self, question: Question) -> tuple[dict[str, Tensor], Tensor]:
        """Return the probabilities at each layer, (N, C, h, w) by path (empty for the picture), and the outputs."""
        rules = relevance_rules("excitation-backprop", _COMPOSITE)
        if not self.layers:
            values, _, outputs = propagate(question, question.images, rules)
            return {"": _normalised(values)}, outputs
        with Rewriting(rules, question.module) as rewriting:

            def scores(objective: Objective, outputs: Tensor) -> Tensor:
                rewriting.finish(outputs)
                return objective.scores(outputs)

            tensors = collect(question, self.layers, scores)
        return {path: _normalised(values) for path, values in tensors.gradients.items()}, tensors.outputs


def _normalised(values: Tensor) -> Tensor:
    """Return values (N, C, h, w) of each picture divided by their sum; unchanged where it is not positive."""
    total = values.sum(dim=(1, 2, 3), keepdim=True)
    return values / torch.where(total > 0, total, 1.0)
