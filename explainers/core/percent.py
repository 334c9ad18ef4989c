"""Shares in percent, for people."""


def percent(share: float) -> str:
    """Return a share, or a difference of shares, in percent, to a tenth; one that is hardly 0 or 1 says so."""
    if 0 < share < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < share < 1 else f"{share:z.1%}"
