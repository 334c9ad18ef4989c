"""RISE: random masks, weighted by the scores of the masked pictures."""

from torch import Tensor

from seewhy.explainers.core.objective import Objective
from seewhy.explainers.methods.catalogue import Paper, method
from seewhy.explainers.methods.perturbation.base import Score, scored
from seewhy.explainers.methods.perturbation.random_masks import RandomMasks


@method(
    "rise",
    family="perturbation",
    summary="Average of random masks, weighted by the score of the masked picture minus the mean score.",
    paper=Paper(
        "Petsiuk, Das, Saenko",
        "RISE: Randomized Input Sampling for Explanation of Black-box Models",
        2018,
        "https://arxiv.org/abs/1806.07421",
    ),
    forwards="1 + samples",
    backwards="0",
    fine=True,
)
class RISE(RandomMasks):
    r"""RISE: the increase of the expected score of a randomly masked picture when a pixel is shown.

    .. math:: S(\lambda) = \mathbb{E}\big[ f(I \odot M) \mid M(\lambda) = 1 \big] - \mathbb{E}\big[ f(I \odot M) \big]
              \approx \frac{\sum_i f_i\, M_i(\lambda)}{\sum_i M_i(\lambda)} - \frac{1}{N} \sum_i f_i,
              \qquad f_i = f(I \odot M_i)

    Section 3: f is the softmax probability. A mask is a grid of cells x cells, each shown with `probability`. The grid
    is enlarged bilinearly to one cell more than the picture along each side, and cropped at a random position. The size
    of a cell is rounded up, so the enlarged grid covers the picture at any position.

    Deviations: the paper divides by the number of masks times :math:`\mathbb{E}[M(\lambda)]`; here the sum of the masks
    is used. The mean score is subtracted, which preserves the order of the pixels; zero means that a pixel makes no
    difference. If the scores differ only by rounding, the map is zero.
    """

    score: Score = "probability"

    def scores(self, objective: Objective, outputs: Tensor) -> Tensor:
        """Return the scores (R,) float32 of outputs (R, ...)."""
        return scored(self.score, objective, outputs)
