"""Numbers as text for people: negative ones have a minus sign, not a hyphen."""

MINUS = "−"


def minus(text: str) -> str:
    """Return a formatted number with minus signs in the place of hyphens."""
    return text.replace("-", MINUS)


def fixed(value: float, digits: int) -> str:
    """Return the number with so many decimals."""
    return minus(f"{value:.{digits}f}")


def signed(value: float, digits: int) -> str:
    """Return the same with a sign, for differences and rewards."""
    return minus(f"{value:+.{digits}f}")
