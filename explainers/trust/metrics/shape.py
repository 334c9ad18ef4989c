"""Sparseness and complexity: the number of pixels over which a map is spread, whatever the network."""

import numpy as np
import torch
from torch import Tensor

from seewhy.explainers.trust.metrics.base import Metric, Subject, shares
from seewhy.explainers.trust.metrics.catalogue import metric


@metric("sparseness", aspect="complexity", better="higher")
class Sparseness(Metric):
    r"""Sparseness: Gini index of the map's magnitudes, from 0 for a uniform map to 1 for a single pixel.

    .. math:: \frac{\sum_{i=1}^{n} (2i - n - 1)\, a_{(i)}}{n \sum_i a_{(i)}}, \qquad a = |M| \text{ in ascending order}

    The map is resized to the model's input.
    """

    def score(self, subject: Subject) -> Tensor:
        """Return the index (N,), in [0, 1); 0 for a blank map."""
        # NumPy sorts many times faster than PyTorch on a CPU.
        values = np.sort(subject.maps.abs().flatten(1).cpu().numpy(), axis=1)
        count, totals = values.shape[1], values.sum(axis=1, dtype=np.float64)
        weights = 2.0 * np.arange(1, count + 1) - count - 1
        return torch.from_numpy(values @ weights / (count * np.where(totals > 0, totals, 1))).to(subject.maps)


@metric("complexity", aspect="complexity", better="lower")
class Complexity(Metric):
    r"""Complexity: entropy of the map's magnitudes, which is small if few pixels have most of the mass.

    .. math:: -\sum_i q_i \ln q_i, \qquad q_i = \frac{|M_i|}{\sum_j |M_j|}

    The map is resized to the model's input.
    """

    def score(self, subject: Subject) -> Tensor:
        """Return the entropy (N,), in [0, ln(H W)]; the maximum for a blank map."""
        entropies: Tensor = torch.special.entr(shares(subject.maps.abs())).flatten(1).sum(dim=1)
        return entropies.float()
