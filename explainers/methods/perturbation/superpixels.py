"""Perturbations of superpixels, regions of similar colour: feature ablation, LIME and Kernel SHAP."""

from abc import abstractmethod
from dataclasses import replace
from itertools import product
from math import comb
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Seed
from seewhy.explainers.methods.perturbation.base import Perturbation, Score, Segmentation, spread, superpixels


@dataclass(frozen=True, kw_only=True)
class Superpixels(Perturbation):
    """Base of the methods that give each superpixel a value; the map has that value at all of its pixels.

    Attributes:
        segmentation, segments: see `seewhy.explainers.methods.perturbation.base.superpixels`.
        shrinks: whether a penalty makes the values smaller than the changes of the score.
    """

    shrinks: ClassVar[bool] = False

    segmentation: Annotated[
        Segmentation,
        Field(description="Segmentation algorithm: `slic`, `quickshift`, or a regular `grid`."),
    ] = "slic"
    segments: Annotated[
        int, Field(ge=1, le=1000, description="Approximate number of superpixels; quickshift chooses its own number.")
    ] = 50

    @abstractmethod
    def coalitions(self, regions: int) -> Tensor:
        """Return the coalitions: for each masked copy which superpixels it shows, (R, regions) of 0 and 1, float64."""

    @abstractmethod
    def values(self, coalitions: Tensor, scores: Tensor, plain: Tensor) -> Tensor:
        """Return the value of each superpixel, (regions,) float64.

        Args:
            coalitions: (R, regions) float64.
            scores: (R,) float64, the scores of these masked copies.
            plain: scalar float64, the score of the picture itself.
        """

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and one per coalition of superpixels."""
        images = question.images
        labels = [superpixels(image, self.segmentation, self.segments) for image in images]
        coalitions = [self.coalitions(int(regions.max()) + 1) for regions in labels]

        def masks(picture: int, part: slice) -> Tensor:
            return coalitions[picture][part].float().to(images.device)[:, labels[picture]]

        objective, outputs = question.plain()
        plain = self.scores(objective, outputs).double().cpu()
        scores = self.probe_all(question, objective, list(map(len, coalitions)), masks)
        values = map(self.values, coalitions, scores, plain)
        changes = torch.stack(
            [value.to(regions.device)[regions] for value, regions in zip(values, labels, strict=True)]
        )
        if self.shrinks:  # small values say nothing about rounding; only the scores do
            change = torch.stack([spread(part) for part in scores]).to(changes.device)
            maps = self.project(torch.where((change > 0)[:, None, None], changes, 0.0)[:, None])
            return replace(self.answer(maps, objective, outputs), change=change)
        return self.answer_of_changes(changes, objective, outputs)


@method("feature-ablation", family="perturbation", forwards="1 + segments", backwards="0", fine=True)
class FeatureAblation(Superpixels):
    r"""Feature ablation: decrease of the score when a superpixel is hidden.

    .. math:: \phi_k = S(x) - S(x_{\setminus k})

    where superpixel k is replaced by the baseline in :math:`x_{\setminus k}`. In the paper, attributes are columns of a
    table, missing attributes are averaged over their values, and the difference of information and the weight of
    evidence are considered besides the difference of probabilities. Here the attributes are superpixels, and the score
    is the logit.
    """

    def coalitions(self, regions: int) -> Tensor:
        """Return all sets without one superpixel."""
        return 1 - torch.eye(regions, dtype=torch.float64)

    def values(self, coalitions: Tensor, scores: Tensor, plain: Tensor) -> Tensor:
        """Return the decreases of the score."""
        return plain - scores


@method("lime", family="perturbation", forwards="1 + samples", backwards="0", fine=True)
class LIME(Superpixels):
    r"""LIME: weights of a linear model of the score, fitted to random sets of hidden superpixels.

    .. math:: w = \arg\min_w \min_b \sum_i \pi(z_i) \big( f(z_i) - b - w^\top z_i \big)^2 + \alpha \lVert w \rVert^2,
              \qquad \pi(z) = \exp\big( -D(z)^2 / \sigma^2 \big)

    where :math:`z_i` says which superpixels are shown, each with probability 1/2 (the first sample shows all), f is the
    softmax probability, and D is the distance from the picture (section 3.4). As in the authors' program for pictures,
    all superpixels get a weight by ridge regression, and D is the cosine distance of z and a vector of ones; the paper
    first selects K superpixels by Lasso, and uses the Euclidean distance for pictures. The program uses the square root
    of :math:`\pi` with a width of 0.25, which equals a width of 0.35 here. By default it replaces a hidden superpixel
    by its own mean colour.
    """

    shrinks: ClassVar[bool] = True

    score: Score = "probability"
    samples: Annotated[int, Field(ge=2, le=20_000, description="Number of sets of superpixels.")] = 1000
    width: Annotated[
        float, Field(ge=0.01, le=100, description="Width of the kernel that weights samples by their distance.")
    ] = 0.35
    ridge: Annotated[float, Field(gt=0, le=1e6, description="Strength of the penalty on the weights.")] = 1.0
    seed: Seed = 0

    def coalitions(self, regions: int) -> Tensor:
        """Return the set of all superpixels, and then random ones."""
        generator = torch.Generator().manual_seed(self.seed)
        coalitions = (torch.rand(self.samples, regions, generator=generator) < 0.5).double()
        coalitions[0] = 1
        return coalitions

    def values(self, coalitions: Tensor, scores: Tensor, plain: Tensor) -> Tensor:
        """Return the weights of the linear model."""
        # The cosine of z and ones is |z| / sqrt(|z| K); where nothing is shown it is taken to be 0.
        distance = 1 - coalitions.mean(dim=1).sqrt()
        nearness = torch.exp(-(distance**2) / self.width**2)
        return weighted_ridge(coalitions, scores, nearness, self.ridge)


@method("kernel-shap", family="perturbation", forwards="2 + samples", backwards="0", fine=True)
class KernelSHAP(Superpixels):
    r"""Kernel SHAP: Shapley values of superpixels, by weighted least squares over sets of hidden superpixels.

    .. math:: \phi = \arg\min_\phi \sum_z \pi(z) \Big( f(z) - f(0) - \phi^\top z \Big)^2, \quad
              \sum_k \phi_k = f(x) - f(0), \qquad
              \pi(z) = \frac{K - 1}{\binom{K}{|z|}\, |z|\, (K - |z|)}

    where z says which of K superpixels are shown, and f(0) is the score of the baseline alone (theorem 2; its two
    infinite weights are the constraint). If ``samples`` is large enough, all sets run, and the values are the exact
    Shapley values of the score. Otherwise sets are drawn by their kernel weight, each together with its complement,
    which lowers the variance; the paper does not specify how to draw them. The values are not penalised.
    """

    samples: Annotated[int, Field(ge=2, le=20_000, description="Number of sets of superpixels.")] = 1000
    seed: Seed = 0

    def coalitions(self, regions: int) -> Tensor:
        """Return the empty set, and then all others but the full one, or a draw of them by their kernel weight."""
        if regions < 40 and 2**regions - 2 <= self.samples:
            return torch.tensor(list(product((0, 1), repeat=regions))[: max(1, 2**regions - 1)], dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        sizes = torch.arange(1, regions, dtype=torch.float64)
        # All sets of one size have the same kernel weight: together that of (K - 1) / (|z| (K - |z|)).
        draws = torch.multinomial(1 / (sizes * (regions - sizes)), self.samples // 2, True, generator=generator) + 1
        ranks = torch.rand(len(draws), regions, generator=generator).argsort(dim=1).argsort(dim=1)
        half = (ranks < draws[:, None]).double()
        pairs = torch.stack([half, 1 - half], dim=1).flatten(0, 1)
        if torch.linalg.matrix_rank(pairs[:, :-1] - pairs[:, -1:]) < regions - 1:
            raise OptionError(
                f"{self.samples} samples do not determine the values of {regions} superpixels; use at least "
                f"{4 * regions}, or fewer segments.",
                field="samples",
            )
        return torch.cat([torch.zeros(1, regions, dtype=torch.float64), pairs])

    def values(self, coalitions: Tensor, scores: Tensor, plain: Tensor) -> Tensor:
        """Return the Shapley values."""
        regions, empty = coalitions.shape[1], scores[0]
        total = plain - empty
        if regions == 1:
            return total[None]
        sets, gains = coalitions[1:], scores[1:] - empty
        # A draw by the kernel weight counts its sets alike; all sets count by the kernel weight itself.
        weights = torch.ones_like(gains)
        if len(sets) == 2**regions - 2:
            kernel = [1 / (comb(regions, size) * size * (regions - size)) for size in range(1, regions)]
            weights = torch.tensor(kernel, dtype=torch.float64)[sets.sum(dim=1).long() - 1]
        # The values sum to the total, so the last one is the total minus the others: it leaves the equations.
        roots = weights.sqrt()
        sides = (gains - total * sets[:, -1]) * roots
        first = torch.linalg.lstsq((sets[:, :-1] - sets[:, -1:]) * roots[:, None], sides[:, None]).solution[:, 0]
        return torch.cat([first, total[None] - first.sum()])


def weighted_ridge(features: Tensor, scores: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """Return the coefficients (K,) of ridge regression with weighted samples and an intercept without penalty.

    Args:
        features: (R, K).
        scores, weights: (R,).
        penalty: on the squared coefficients.
    """
    share = weights / weights.sum()
    centred, sides = features - share @ features, scores - share @ scores
    gram = (centred * weights[:, None]).T @ centred
    gram.diagonal().add_(penalty)
    coefficients: Tensor = torch.linalg.solve(gram, (centred * weights[:, None]).T @ sides)
    return coefficients
