"""Pointing game and energy in the box: whether a map lies where the target is known to lie."""

from abc import abstractmethod
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import Paper
from seewhy.explainers.trust.metrics.base import Metric, Subject, shares
from seewhy.explainers.trust.metrics.catalogue import metric


@dataclass(frozen=True, kw_only=True)
class Localisation(Metric):
    """Base of metrics that compare a map with the place of its target."""

    needs_truth: ClassVar[bool] = True

    @abstractmethod
    def share(self, maps: Tensor, place: Tensor) -> Tensor:
        """Return how much of each map (N, H, W) lies in its place, (N, H, W) bool, as (N,) float32."""

    def score(self, subject: Subject) -> Tensor:
        """Return the share (N,), in [0, 1]; NaN where nobody knows where the target lies.

        Raises:
            OptionError: that is known of no picture.
        """
        if subject.truth is None:
            raise OptionError("The metric needs to know where the target lies; give boxes or masks.", "boxes")
        is_known = subject.truth.any(dim=2).any(dim=1)
        return torch.where(is_known, self.share(subject.maps, subject.truth), torch.nan)


@metric(
    "pointing-game",
    aspect="localisation",
    summary="Whether the largest value of the map lies in the target's box or mask.",
    paper=Paper(
        "Zhang, Bargal, Lin, Brandt, Shen, Sclaroff",
        "Top-down Neural Attention by Excitation Backprop",
        2016,
        "https://arxiv.org/abs/1608.00507",
    ),
    better="higher",
)
@dataclass(frozen=True, kw_only=True)
class PointingGame(Localisation):
    r"""Pointing game: whether the map's largest value lies where the target does.

    .. math:: \frac{|\{i \in T : M_i = \max M\}|}{|\{i : M_i = \max M\}|}

    where T are the pixels of the target's boxes or mask. Of several largest values each counts alike, so that a blank
    map does not win. The paper adds a tolerance of 15 pixels, which there is none of here.
    """

    def share(self, maps: Tensor, place: Tensor) -> Tensor:
        """Return 1 or 0 for each map; a share where several values are the largest."""
        largest = maps == maps.amax(dim=(1, 2), keepdim=True)
        return (largest & place).sum(dim=(1, 2)).float() / largest.sum(dim=(1, 2))


@metric(
    "energy-in-box",
    aspect="localisation",
    summary="Share of the map's positive mass in the target's box or mask.",
    paper=Paper(
        "Wang, Wang, Du, Yang, Zhang, Ding, Mardziel, Hu",
        "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks",
        2019,
        "https://arxiv.org/abs/1910.01279",
    ),
    better="higher",
)
@dataclass(frozen=True, kw_only=True)
class EnergyInBox(Localisation):
    r"""Energy-based pointing game: the share of the positive mass where the target lies.

    .. math:: \frac{\sum_{i \in T} \max(M_i, 0)}{\sum_i \max(M_i, 0)}

    where T are the pixels of the target's boxes or mask.
    """

    def share(self, maps: Tensor, place: Tensor) -> Tensor:
        """Return the share of mass; of a blank map that of a map that is the same everywhere."""
        return (shares(maps) * place).sum(dim=(1, 2)).float()
