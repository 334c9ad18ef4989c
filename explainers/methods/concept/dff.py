"""Deep feature factorisation: the region that speaks most for the class."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.methods.cam.base import LayerExplainer
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.concept.factors import MOST, factorize, regions_of
from seewhy.explainers.methods.explainer import Seed


@method(
    "dff",
    family="concept",
    summary="The region with the most evidence for the class, out of regions with similar features in a layer.",
    paper=Paper(
        "Collins, Achanta, Süsstrunk",
        "Deep Feature Factorization For Concept Discovery",
        2018,
        "https://arxiv.org/abs/1806.10206",
    ),
    forwards="2 + 2 * concepts",
    backwards="0",
)
class DFF(LayerExplainer):
    r"""Deep feature factorisation: a layer's activations as a sum of regions times concepts.

    .. math:: \min_{H \ge 0, W \ge 0} \lVert A - H W \rVert_F^2, \qquad
              k^* = \arg\max_k \; S(H_k W_k), \qquad M = H_{k^*}

    where A has a row per position and a column per channel. A column of H is a region, and a row of W is its concept
    (section 3). The paper has no target class. The map here is the region that gives the target the highest score when
    it alone replaces A in the layer. Drawings show all regions as a labelled panel; JSON and Python
    (``Explanation.regions``) list them, each with its contribution to the score and the best classes of its concept.

    Deviations: each picture is factorised separately, so concepts are not shared between pictures. Negative activations
    are set to zero, as by a ReLU; a layer whose activations are mostly negative is an error.
    """

    sign: Annotated[Sign, Field(description="No effect: regions are never negative.")] = "positive"
    layers: Annotated[
        tuple[str, ...], Field(max_length=1, description="Dotted path of the layer; only one can be factorised.")
    ] = ()
    concepts: Annotated[int, Field(ge=1, le=MOST, description="Number of regions to divide the picture into.")] = 5
    iterations: Annotated[int, Field(ge=1, le=1000, description="Of the factorisation.")] = 200
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, one with nothing in the layer, and two for each region.

        Raises:
            LayerError: several layers, or one that cannot carry a CAM, or whose activations are mostly negative.
        """
        parts = factorize(question, self.layers_of(question), self.concepts, self.iterations, self.seed)
        regions = regions_of(question, parts)
        answer = self.answer(self.project(regions.maps[:, :1]), parts.objective, parts.outputs, (parts.layer,))
        return replace(answer, regions=regions)
