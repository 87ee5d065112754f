"""Which prompts begin alike, so that the beginning is computed once.

The prompts of one kind share their instructions; other kinds share less. Prompts are put into clusters, each with one common
prefix, so that as many tokens as possible are saved.
"""

from collections.abc import Sequence
from itertools import pairwise

MIN_PREFIX = 16
"""A shorter prefix costs more in an additional pass than it saves."""


def shared_prefixes(prompts: Sequence[tuple[int, ...]], shortest: int = MIN_PREFIX) -> list[int]:
    """Return how many tokens each prompt shares with the others of its cluster: 0 or at least `shortest`, less than its length.

    Prompts are in the same cluster exactly if they begin with the same shared tokens.
    """
    order = sorted(range(len(prompts)), key=lambda index: prompts[index])
    common = [_common(prompts[one], prompts[two]) for one, two in pairwise(order)]
    lengths = [0] * len(prompts)
    pending = [(0, len(order))]
    while pending:
        first, last = pending.pop()
        length, parts = _split(common, first, last)
        apart = sum((stop - start - 1) * _length(common, start, stop) for start, stop in parts if stop - start > 1)
        if length < shortest or apart > (last - first - 1) * length:
            pending += [part for part in parts if part[1] - part[0] > 1]
            continue
        for index in order[first:last]:
            lengths[index] = length
    return lengths


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    """Return how many tokens both begin with, less than the length of either: the last token's logits must be computed."""
    limit = min(len(one), len(two)) - 1
    return next((place for place in range(limit) if one[place] != two[place]), max(0, limit))


def _length(common: Sequence[int], first: int, last: int) -> int:
    return min(common[first : last - 1], default=0)


def _split(common: Sequence[int], first: int, last: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the prefix of the prompts first … last - 1 in sorted order, and the parts that share more than that."""
    length = _length(common, first, last)
    cuts = [place + 1 for place in range(first, last - 1) if common[place] == length]
    return length, list(pairwise([first, *cuts, last]))
