"""Average drop, average increase and ARCC: the picture masked by its map."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.correlations import correlations
from seewhy.explainers.methods.perturbation.base import masked
from seewhy.explainers.trust.metrics.base import FillOption, Metric, Seed, Subject, probability
from seewhy.explainers.trust.metrics.catalogue import metric
from seewhy.explainers.trust.metrics.road import ROAD, ImputationOption, NoiseOption


@dataclass(frozen=True, kw_only=True)
class Masking(Metric):
    """Base of metrics that show the network the picture masked by its map."""

    fill: FillOption = "zero"

    def seen(self, subject: Subject) -> Tensor:
        """Return the probabilities (N,) of the pictures, each masked by its map."""
        copies = through(subject, subject.filled(self.fill))
        return subject.probe(1, lambda pictures, _: copies[pictures], probability)[:, 0]


@metric("average-drop", aspect="faithfulness", better="lower", forwards="1")
class AverageDrop(Masking):
    r"""Average drop: share of the probability that is lost when the picture is masked by its map.

    .. math:: \frac{\max\big(0,\; p(x) - p(m \odot x)\big)}{p(x)}, \qquad m = \frac{\max(M, 0)}{\max M}

    Equation 13, as a share instead of percent.
    """

    def score(self, subject: Subject) -> Tensor:
        """Return the share (N,), in [0, 1]; NaN if the probability of the whole picture is not positive."""
        whole = subject.probabilities
        drops = (whole - self.seen(subject)).clamp_min(0)
        return torch.where(whole > 0, drops / whole, torch.nan)


@metric("average-increase", aspect="faithfulness", better="higher", forwards="1")
class AverageIncrease(Masking):
    r"""Average increase: how often the probability rises when the picture is masked by its map.

    .. math:: \mathbb{1}\big[p(m \odot x) > p(x)\big], \qquad m = \frac{\max(M, 0)}{\max M}

    Equation 14, as a share instead of percent.
    """

    def score(self, subject: Subject) -> Tensor:
        """Return 1 or 0 for each map, (N,)."""
        return (self.seen(subject) > subject.probabilities).float()


@metric("arcc", aspect="faithfulness", better="higher", forwards="8", explanations="1")
class ARCC(Metric):
    r"""ARCC: harmonic mean of ROAD, coherency and conciseness of a map.

    .. math:: 3 \left(\frac{1}{\min(1, \max(0, 2 R))} + \frac{1}{(1 + \rho)/2} + \frac{1}{1 - \bar{m}}\right)^{-1}

    where R is ``road``, :math:`m = \max(M, 0)/\max M` is the map as a mask, :math:`\bar{m}` is its mean, and
    :math:`\rho` is Pearson's correlation between m and the same method's mask for the masked picture. The result is 0
    if one of the three terms is 0.
    """

    imputation: ImputationOption = "fast"
    noise: NoiseOption = 0.01
    seed: Seed = 0

    def score(self, subject: Subject) -> Tensor:
        """Return the harmonic means (N,), in [0, 1]."""
        road = ROAD(imputation=self.imputation, noise=self.noise, seed=self.seed).score(subject)
        own = mask_of(subject.raw)
        again = mask_of(subject.explained(through(subject, subject.filled("zero"))))
        coherency = (1 + correlations(own.flatten(1), again.flatten(1))) / 2
        conciseness = 1 - mask_of(subject.maps).mean(dim=(1, 2))
        parts = torch.stack([(2 * road).clamp(0, 1), coherency, conciseness])
        return torch.where((parts > 0).all(dim=0), 3 / (1 / parts).sum(dim=0), 0)


def mask_of(maps: Tensor) -> Tensor:
    """Return maps (N, h, w) without negative values, divided by their maximum: in [0, 1]."""
    values = maps.clamp_min(0)
    largest = values.amax(dim=(1, 2), keepdim=True)
    return values / largest.where(largest > 0, 1)


def through(subject: Subject, other: Tensor) -> Tensor:
    """Return the pictures, each masked by its map; the other picture appears where the map is zero."""
    return masked(subject.images, other, mask_of(subject.maps))
