"""Shares in percent, for people."""

from decimal import ROUND_HALF_UP, Decimal


def percent(share: float) -> str:
    """Return a share in percent, to a tenth (below 1%, to two digits); ``<0.01%`` or ``>99.9%`` near 0 or 1."""
    if 0 < share < 1e-4:
        return "<0.01%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{_rounded(share)}%"


def likelihood(probability: float) -> str:
    """Return a probability in percent; one that is rounded to 1 is ``>99.9%``, too."""
    return ">99.9%" if probability == 1 else percent(probability)


def points(difference: float) -> str:
    """Return a difference of shares in percentage points, rounded likewise: ``-22.3 points``."""
    return f"{_rounded(difference)} points"


def more_points(difference: float) -> str:
    """Return the same of a change, with its sign: ``+0.080 points``."""
    return f"{_rounded(difference, '+')} points"


def _rounded(share: float, sign: str = "") -> str:
    hundredths = Decimal(100 * float(share))
    size = abs(hundredths)
    digits = 3 if 0.01 <= size < 0.0995 else 2 if 0.0995 <= size < 0.995 else 1
    return f"{hundredths.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):{sign}z.{digits}f}"  # as `toFixed` rounds
