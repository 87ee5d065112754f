"""The completions of a prompt as a tree: what several begin with stands once in their row.

A token's hidden state depends only on it and the tokens before it, so completions that begin alike have the same states that far,
and equal completions have the same throughout. Depth first, a position's descendants follow it without a gap: position j is
before position i in some completion exactly if j < i < end_j, where end_j is the first position after the descendants of j.

Axes: L positions of a tree, in depth-first order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    if one == other:
        return len(one)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class Tree:
    """`paths` are each completion's positions in `ids_L`, `depths_L` the tokens before a position within its completions."""

    ids_L: np.ndarray
    depths_L: np.ndarray
    ends_L: np.ndarray
    paths: tuple[np.ndarray, ...]


def depth_first(completions: Sequence[list[int]]) -> Tree:
    """Return the tree. In sorted order, no earlier completion shares more with one than its predecessor does."""
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    path: list[int] = []
    before: list[int] = []
    paths: dict[int, np.ndarray] = {}
    for number in sorted(range(len(completions)), key=lambda row: completions[row]):
        tokens = completions[number]
        shared = common(before, tokens)
        _close(ends, path, shared, len(ids))
        path += range(len(ids), len(ids) + len(tokens) - shared)
        ids += tokens[shared:]
        depths += range(shared, len(tokens))
        ends += [0] * (len(tokens) - shared)
        paths[number], before = np.array(path, np.int64), tokens
    _close(ends, path, 0, len(ids))
    ids_L, depths_L, ends_L = (np.array(column, np.int64) for column in (ids, depths, ends))
    return Tree(ids_L, depths_L, ends_L, tuple(paths[number] for number in range(len(completions))))


def _close(ends: list[int], path: list[int], kept: int, end: int) -> None:
    """Leave the positions of a path after its first `kept`: all their descendants are known."""
    for position in path[kept:]:
        ends[position] = end
    del path[kept:]
