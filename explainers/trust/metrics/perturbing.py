"""Sensitivity-n and infidelity: whether the map's mass on pixels matches the loss of the score without them."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from seewhy.explainers.correlations import correlations
from seewhy.explainers.trust.metrics.base import FillOption, Metric, Seed, Subject, logit
from seewhy.explainers.trust.metrics.catalogue import metric

Masks = Annotated[int, Field(ge=2, le=10_000, description="Number of masks.")]


@dataclass(frozen=True, kw_only=True)
class Removals(Metric):
    """Base of metrics that hide parts of the pictures, the same parts of all pictures."""

    masks: Masks = 48
    fill: FillOption = "zero"
    seed: Seed = 0

    shares_forwards: ClassVar[bool] = True

    @abstractmethod
    def drawn(self, height: int, width: int) -> Tensor:
        """Return masks (masks, height, width) bool; true hides a pixel."""

    def measured(self, subject: Subject) -> tuple[Tensor, Tensor]:
        """Return the hidden mass of the map and the loss of the logit for each picture and mask: (N, masks).

        The first is float64, the second float32.
        """
        hidden = self.drawn(*subject.images.shape[2:]).to(subject.images.device)
        losses = subject.once(self, lambda: self._losses(subject, hidden))
        masses = subject.maps.flatten(1).double() @ hidden.flatten(1).double().T
        return masses, losses

    def _losses(self, subject: Subject, hidden: Tensor) -> Tensor:
        other = subject.filled(self.fill)

        def copies(pictures: Tensor, numbers: Tensor) -> Tensor:
            return torch.where(hidden[numbers][:, None], other[pictures], subject.images[pictures])

        return subject.logits[:, None] - subject.probe(len(hidden), copies, logit)


@metric("sensitivity-n", aspect="faithfulness", better="higher", forwards="masks")
class SensitivityN(Removals):
    r"""Sensitivity-n: correlation between the map's mass on hidden parts and the loss of the logit without them.

    .. math:: \mathrm{corr}_{S}\Big(\sum_{i \in S} M_i,\; y(x) - y\big(x_{S \to \tilde{x}}\big)\Big), \qquad |S| = n

    The paper hides sets of pixels. Here they are cells of a grid, because networks hardly react to single pixels.
    """

    cells: Annotated[int, Field(ge=2, le=1024, description="Number of cells along each side of the grid.")] = 14
    share: Annotated[float, Field(gt=0, lt=1, description="Share of the cells that each mask hides.")] = 0.25

    def drawn(self, height: int, width: int) -> Tensor:
        """Return random sets of cells."""
        rows, columns = min(self.cells, height), min(self.cells, width)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.rand(self.masks, rows * columns, generator=generator).argsort(dim=1)
        count = min(max(1, round(self.share * rows * columns)), rows * columns - 1)
        hidden = torch.zeros(self.masks, rows * columns, dtype=torch.bool).scatter_(1, order[:, :count], True)
        down, across = torch.arange(height) * rows // height, torch.arange(width) * columns // width
        return hidden.view(-1, rows, columns)[:, down[:, None], across]

    def score(self, subject: Subject) -> Tensor:
        """Return the correlations (N,), in [-1, 1]; 0 if either side is constant."""
        return correlations(*self.measured(subject))


@metric("infidelity", aspect="faithfulness", better="lower", forwards="masks")
class Infidelity(Removals):
    r"""Infidelity: squared difference between the map's mass on hidden squares and the loss of the logit without them.

    .. math:: \mathbb{E}_S \Big[\Big(\alpha \sum_{i \in S} M_i - \big(y(x) - y(x_{S \to \tilde{x}})\big)\Big)^2\Big]

    where S are random squares (the paper's *square removal*), and :math:`\alpha` is the factor with the least error, as
    in the authors' code, because maps have no unit. With ``scaled=false``, there is no factor.
    """

    scaled: Annotated[bool, Field(description="Multiply each map by the factor with the least error.")] = True
    share: Annotated[
        float, Field(gt=0, le=1, description="Largest side of a square, as a share of the picture's shorter side.")
    ] = 0.5

    def drawn(self, height: int, width: int) -> Tensor:
        """Return random squares."""
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.rand(3, self.masks, 1, 1, generator=generator)
        side = 1 + (draws[0] * (max(1, round(self.share * min(height, width))) - 1)).round()
        top, left = ((draws[1] * (height - side)).round(), (draws[2] * (width - side)).round())
        down, across = torch.arange(height)[:, None], torch.arange(width)
        return (down >= top) & (down < top + side) & (across >= left) & (across < left + side)

    def score(self, subject: Subject) -> Tensor:
        """Return the error (N,), in squared logits."""
        masses, losses = self.measured(subject)
        if self.scaled:
            squares = (masses**2).sum(dim=1, keepdim=True)
            factor = (masses * losses).sum(dim=1, keepdim=True) / squares.where(squares > 0, 1)
            masses = masses * factor
        return ((masses - losses) ** 2).mean(dim=1).float()
