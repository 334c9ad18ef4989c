"""Shares in percent, for people."""


def percent(share: float) -> str:
    """Return a share, or a difference of shares, in whole percent; one that is hardly 0 or 1 says so."""
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:z.0%}"


def tenths(share: float) -> str:
    """Return a share in percent, to a tenth; one that is hardly 0 says so."""
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"
