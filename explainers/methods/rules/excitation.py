"""Excitation backpropagation."""

from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.objective import Objective
from seewhy.explainers.core.question import Question
from seewhy.explainers.core.task import Ask
from seewhy.explainers.methods.cam.base import LayerExplainer, collect, fuse
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.rules.base import Rewriting, propagate
from seewhy.explainers.methods.rules.relevance import Composite, excitation_rule, own_sign_rule, relevance_rules

_OWN_SIGN = partial(own_sign_rule, biased=False)
_COMPOSITE = Composite(first=_OWN_SIGN, conv=_OWN_SIGN, dense=excitation_rule, sums=_OWN_SIGN)


@method(
    "excitation-backprop",
    family="rule",
    summary="How probably a winner-take-all walk from the class, along exciting connections, comes by each place.",
    paper=Paper(
        "Zhang, Lin, Brandt, Shen, Sclaroff",
        "Top-down Neural Attention by Excitation Backprop",
        2016,
        "https://arxiv.org/abs/1608.00507",
    ),
    forwards="1",
    backwards="1",
    fine=True,
)
@dataclass(frozen=True, kw_only=True)
class ExcitationBackprop(LayerExplainer):
    r"""Excitation backpropagation: marginal winning probabilities, from the class down to a layer or the picture.

    .. math:: P(a_j) = \sum_i P(a_j \mid a_i) \, P(a_i), \qquad
              P(a_j \mid a_i) = \frac{a_j w_{ij}^+}{\sum_k a_k w_{ik}^+}

    where the walk goes from neuron i to the neurons j that feed it, in proportion to what they excite it by; biases do
    not count. The map is the probability of each place, summed over channels, and sums to one. Max pooling hands it to
    the maximum, average poolings and additions are neurons with equal weights. Batch normalisation, of which the paper
    does not speak, is folded into the convolution before it; elsewhere it is a neuron with one input and a bias.

    The paper takes activations to be positive. Where they are not (the picture itself, and layers without a ReLU), a
    contribution counts by the sign of weight times activation, and a negative neuron is fed by its negative
    contributions. Dividing by the sum makes up for what is lost at neurons that nothing but a bias excites, and for
    what passes a layer by in another branch. A contrast is the difference of two such maps; the paper's contrastive map
    instead inverts the class's weights.
    """

    layers: Annotated[
        tuple[str, ...],
        Field(description="Dotted path or glob of the layer to stop at, repeatable; none to go on to the picture."),
    ] = ()

    def attribute(self, question: Question) -> Attribution:
        """One pass forward and back; two for a contrast."""
        found, outputs = self._probabilities(replace(question, ask=Ask(question.ask.targets)))
        objective = question.objective(outputs)
        if objective.against is not None:
            others, _ = self._probabilities(replace(question, ask=objective.contrast.ask))
            left_out = ~objective.is_contrasted[:, None, None, None]
            found = {path: values - others[path].masked_fill(left_out, 0) for path, values in found.items()}
        maps = fuse([self.project(values) for values in found.values()])
        return self.answer(maps, objective, outputs, tuple(path for path in found if self.layers))

    def _probabilities(self, question: Question) -> tuple[dict[str, Tensor], Tensor]:
        """Return those at each layer, (N, C, h, w), and the outputs."""
        rules = relevance_rules("excitation-backprop", _COMPOSITE)
        if not self.layers:
            values, _, outputs = propagate(question, question.images, rules)
            return {"": _normalised(values)}, outputs
        with Rewriting(rules) as rewriting:

            def scores(objective: Objective, outputs: Tensor) -> Tensor:
                rewriting.finish(outputs)
                return objective.scores(outputs)

            evidence = collect(question, self.layers, scores)
        return {path: _normalised(values) for path, values in evidence.gradients.items()}, evidence.outputs


def _normalised(values: Tensor) -> Tensor:
    total = values.sum(dim=(1, 2, 3), keepdim=True)
    return values / torch.where(total > 0, total, 1.0)
