"""Quotients whose denominator is a sum that rounding may decide."""

import torch
from torch import Tensor

CERTAIN = 2.0**-6
"""How large a sum must be, of the magnitudes of its terms, to be divided by as it is."""


def quotient(numerator: Tensor, denominator: Tensor, magnitude: Tensor) -> Tensor:
    """Return n / d where the sum d is certain; elsewhere it falls to zero with d, instead of growing without bound.

    A sum that is small beside its terms is what rounding made of it, and so is the sign of a quotient by it. Between
    plus and minus δ, a share `CERTAIN` of the magnitude, the quotient is n d / δ², which is continuous.

    Args:
        numerator: n.
        denominator: d, a sum.
        magnitude: the sum of the magnitudes of its terms.
    """
    least = torch.maximum(denominator.abs(), CERTAIN * magnitude)
    ratio = torch.where(least > 0, denominator / torch.where(least > 0, least, 1.0), 0.0)
    return torch.where(least > 0, numerator / torch.where(least > 0, least, 1.0), 0.0) * ratio
