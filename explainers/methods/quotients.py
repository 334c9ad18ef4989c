"""Quotients by sums that rounding may dominate."""

import torch
from torch import Tensor

CERTAIN = 2.0**-6
"""Least certain sum, as a share of the magnitudes of its terms."""


def quotient(numerator: Tensor, denominator: Tensor, magnitude: Tensor) -> Tensor:
    """Return n / d where the sum d is certain; elsewhere the quotient falls to zero with d.

    Rounding may decide the sign of a sum that is small beside its terms. For d between -δ and δ, with δ the share
    `CERTAIN` of the magnitude, the quotient is n d / δ², which is continuous and bounded.

    Args:
        numerator: n.
        denominator: d, a sum.
        magnitude: the sum of the magnitudes of its terms.
    """
    least = torch.maximum(denominator.abs(), CERTAIN * magnitude)
    ratio = torch.where(least > 0, denominator / torch.where(least > 0, least, 1.0), 0.0)
    return torch.where(least > 0, numerator / torch.where(least > 0, least, 1.0), 0.0) * ratio
