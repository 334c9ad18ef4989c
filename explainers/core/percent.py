"""Shares in percent, for people."""

from decimal import ROUND_HALF_UP, Decimal


def percent(share: float) -> str:
    """Return a share in percent, to a tenth; ``<0.1%`` or ``>99.9%`` if it is close to 0 or 1."""
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    tenths = Decimal(100 * float(share)).quantize(Decimal("0.1"), ROUND_HALF_UP)  # as `toFixed` of JavaScript rounds
    return f"{tenths:z.1f}%"


def points(difference: float) -> str:
    """Return a difference of shares in percentage points, to a tenth: ``-22.3 points``."""
    return f"{100 * difference:z.1f} points"
