"""Novelty of text, by compression: a measure of coverage and diversity that parses nothing.

With C(x) the bits that LZMA needs for x, novelty is (C(old + new) - C(old)) / C(new): near 1 if the old text does not help to
compress the new, near 0 for repetition. The distance of two texts is the normalised compression distance (Cilibrasi and Vitanyi,
2005): (C(xy) - min(C(x), C(y))) / max(C(x), C(y)), made symmetric by the mean of both orders.
"""

import lzma
from collections.abc import Sequence

HISTORY = 1 << 17
"""Characters of the past that new text is compared with: its newest ones."""

_FILTERS = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20, "lc": 3, "lp": 0, "pb": 0, "mode": lzma.MODE_NORMAL, "nice_len": 64}]


def compressed(text: str) -> int:
    """Bytes of the compressed text; raw, so that the empty text needs next to none."""
    return len(lzma.compress(text.encode("utf-8", "surrogatepass"), format=lzma.FORMAT_RAW, filters=_FILTERS))


def novelty(new: Sequence[str], old: str) -> float:
    """Return the share of the new texts' bits that the old text does not explain; NaN without new texts."""
    if not new:
        return float("nan")
    past, fresh = old[-HISTORY:], "\n".join(new)
    return (compressed(past + "\n" + fresh) - compressed(past)) / compressed(fresh)


def distance(one: Sequence[str], other: Sequence[str]) -> float:
    """Return the normalised compression distance of two sets of texts; NaN if one is empty."""
    if not one or not other:
        return float("nan")
    first, second = "\n".join(one), "\n".join(other)
    sizes = compressed(first), compressed(second)
    both = (compressed(first + "\n" + second) + compressed(second + "\n" + first)) / 2
    return (both - min(sizes)) / max(sizes)
