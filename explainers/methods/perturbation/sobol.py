"""Sobol indices: the share of the score's variance in which each cell of a random mask takes part."""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional
from torch.quasirandom import SobolEngine

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.projection import Sign
from seewhy.explainers.core.question import Question
from seewhy.explainers.errors import OptionError
from seewhy.explainers.methods.catalogue import method
from seewhy.explainers.methods.explainer import Seed
from seewhy.explainers.methods.perturbation.base import Perturbation, spread

MOST_PASSES = 1_000_000
"""Largest number of masked copies of one picture."""


@method("sobol", family="perturbation", forwards="1 + samples * (cells * cells + 2)", backwards="0")
class Sobol(Perturbation):
    r"""Sobol: share of the score's variance under random masks that involves each cell of the mask.

    .. math:: \hat S_{T_i} = \frac{\frac{1}{2N} \sum_{j=1}^{N} \big( f(A_j) - f(C_j^{(i)}) \big)^2}{\hat V}, \qquad
              \hat V = \frac{1}{2N} \sum_{j=1}^{N} \Big( \big( f(A_j) - \bar f \big)^2 +
              \big( f(B_j) - \bar f \big)^2 \Big)

    where the rows of A and B are masks whose cells are uniform between 0 and 1, and :math:`C^{(i)}` is A with the cell
    i of B. A and B are the halves of one scrambled Sobol sequence, so the masks cover their space evenly. A mask is
    constant within each cell, and blends the picture with the baseline. An index, of total order and by the
    estimator of Jansen, counts the effect of its cell alone and together with others; it has no sign. If the score
    varies only by rounding, the map is zero.
    """

    sign: Annotated[Sign, Field(description="No effect: a share of the variance is never negative.")] = "positive"
    cells: Annotated[int, Field(ge=1, le=64, description="Number of cells of the mask on each side.")] = 8
    samples: Annotated[
        int,
        Field(
            ge=2,
            le=4096,
            description="Number of rows of the two matrices of masks; powers of two cover the space best.",
        ),
    ] = 16
    seed: Seed = 0

    def attribute(self, question: Question) -> Attribution:
        """One forward pass, and one per mask: cells * cells + 2 for each sample."""
        images = question.images
        count, cells = len(images), self.cells**2
        if (total := self.samples * (cells + 2)) > MOST_PASSES:
            raise OptionError(
                f"{self.samples} samples of {self.cells} by {self.cells} cells take {total} passes; at most "
                f"{MOST_PASSES} are allowed. Use fewer samples, or fewer cells.",
                "samples",
            )
        sequence = SobolEngine(2 * cells, scramble=True, seed=self.seed).draw(self.samples)  # type: ignore[no-untyped-call]
        first, second = sequence[:, :cells], sequence[:, cells:]
        size = (images.shape[2], images.shape[3])

        def masks(_picture: int, part: slice) -> Tensor:
            numbers = torch.arange(part.start, part.stop)
            block, row = numbers // self.samples, numbers % self.samples
            # The first block of rows is A, the second B; then follows a block C for each cell.
            grids = torch.where((block == 1)[:, None], second[row], first[row])
            swapped = block >= 2
            grids[swapped, block[swapped] - 2] = second[row[swapped], block[swapped] - 2]
            grids = grids.reshape(-1, 1, self.cells, self.cells).to(images.device)
            return functional.interpolate(grids, size=size, mode="nearest")[:, 0]

        objective, outputs = question.plain()
        scores = torch.stack(self.probe_all(question, objective, [self.samples * (cells + 2)] * count, masks))
        maps = torch.stack([total_order(values.reshape(cells + 2, self.samples)) for values in scores])
        maps = maps.reshape(count, 1, self.cells, self.cells).to(images.device)
        changes = torch.stack([spread(values) for values in scores[:, : 2 * self.samples]])
        return replace(self.answer(self.project(maps), objective, outputs), change=changes)


def total_order(scores: Tensor) -> Tensor:
    """Return Jansen's estimates (d,) of the total-order indices; zero where nothing varies.

    Args:
        scores: (d + 2, N), those of A, of B, and of A with each column of B.
    """
    if not spread(scores[:2]):
        return torch.zeros(len(scores) - 2, dtype=scores.dtype)
    return (scores[0] - scores[2:]).square().mean(dim=1) / (2 * scores[:2].var(correction=0))
