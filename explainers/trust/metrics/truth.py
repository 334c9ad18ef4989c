"""Pointing game and energy in the box: whether a map lies at the known place of the target."""

from abc import abstractmethod
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.errors import OptionError
from seewhy.explainers.trust.metrics.base import Metric, Subject, shares
from seewhy.explainers.trust.metrics.catalogue import metric


@dataclass(frozen=True, kw_only=True)
class Localisation(Metric):
    """Base of metrics that compare a map with the place of its target."""

    needs_truth: ClassVar[bool] = True

    @abstractmethod
    def share(self, maps: Tensor, place: Tensor) -> Tensor:
        """Return the share (N,) float32 of each map (N, H, W) in its target's place, (N, H, W) bool."""

    def score(self, subject: Subject) -> Tensor:
        """Return the share (N,), in [0, 1]; NaN if the target's place is unknown."""
        if subject.truth is None:
            raise OptionError("The metric needs to know where the target lies; give boxes or masks.", "boxes")
        is_known = subject.truth.any(dim=2).any(dim=1)
        return torch.where(is_known, self.share(subject.maps, subject.truth), torch.nan)


@metric("pointing-game", aspect="localisation", better="higher")
class PointingGame(Localisation):
    r"""Pointing game: whether the largest value of the map lies in the target's box or mask.

    .. math:: \frac{|\{i \in T : M_i = \max M\}|}{|\{i : M_i = \max M\}|}

    where T are the pixels of the target's boxes or mask. If several values are the largest, the result is the share of
    them in T, so a blank map does not win. The paper allows a tolerance of 15 pixels; here there is none.
    """

    def share(self, maps: Tensor, place: Tensor) -> Tensor:
        """Return 1 or 0 for each map; a share if several values are the largest."""
        largest = maps == maps.amax(dim=(1, 2), keepdim=True)
        return (largest & place).sum(dim=(1, 2)).float() / largest.sum(dim=(1, 2))


@metric("energy-in-box", aspect="localisation", better="higher")
class EnergyInBox(Localisation):
    r"""Energy-based pointing game: share of the map's positive mass in the target's box or mask.

    .. math:: \frac{\sum_{i \in T} \max(M_i, 0)}{\sum_i \max(M_i, 0)}

    where T are the pixels of the target's boxes or mask.
    """

    def share(self, maps: Tensor, place: Tensor) -> Tensor:
        """Return the share of mass; for a blank map, the share of a uniform map."""
        return (shares(maps) * place).sum(dim=(1, 2)).float()
