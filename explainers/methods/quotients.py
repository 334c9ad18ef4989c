"""Quotients whose denominator is a sum that rounding may decide."""

import torch
from torch import Tensor

CERTAIN = 2.0**-6
"""Smallest sum, as a share of the magnitudes of its terms, that is divided by as it is."""


def quotient(numerator: Tensor, denominator: Tensor, magnitude: Tensor) -> Tensor:
    """Return n / d where the sum d is certain; elsewhere the quotient falls to zero with d.

    Rounding decides a sum that is small beside its terms, and so the sign of a quotient by it. For d between -δ and δ,
    with δ the share `CERTAIN` of the magnitude, the quotient is n d / δ², which is continuous and bounded.

    Args:
        numerator: n.
        denominator: d, a sum.
        magnitude: the sum of the magnitudes of its terms.
    """
    least = torch.maximum(denominator.abs(), CERTAIN * magnitude)
    ratio = torch.where(least > 0, denominator / torch.where(least > 0, least, 1.0), 0.0)
    return torch.where(least > 0, numerator / torch.where(least > 0, least, 1.0), 0.0) * ratio
