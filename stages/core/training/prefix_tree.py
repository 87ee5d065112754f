"""The completions of a prompt as a tree: what several begin with stands once in their row.

A token's hidden state depends on the tokens before it alone, so completions that begin alike have the same states that far, and
equal completions have the same throughout. Depth first, a position's descendants follow it without a gap: position j is before
position i in some completion exactly if j < i < end_j, where end_j is the first position after the descendants of j.

Axes: L positions of a tree, in depth-first order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np


class GrowingTree:
    """The number of positions that each further completion adds to a tree."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    def added(self, tokens: Sequence[int]) -> int:
        """Return how many positions these tokens would add."""
        node, known = 0, 0
        for token in tokens:
            child = self._children.get((node, token))
            if child is None:
                break
            node, known = child, known + 1
        return len(tokens) - known

    def add(self, tokens: Sequence[int]) -> None:
        """Add these tokens."""
        node = 0
        for token in tokens:
            node = self._children.setdefault((node, token), len(self._children) + 1)


@dataclass(frozen=True)
class Tree:
    """`paths` are each completion's positions in `ids_L`, `depths_L` the tokens before a position within its completions."""

    ids_L: np.ndarray
    depths_L: np.ndarray
    ends_L: np.ndarray
    paths: tuple[np.ndarray, ...]


def depth_first(completions: Sequence[list[int]]) -> Tree:
    """Return the tree of these completions; in sorted order, each shares with the one before it what it shares with any."""
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    path: list[int] = []
    before: list[int] = []
    paths: dict[int, np.ndarray] = {}
    for number in sorted(range(len(completions)), key=lambda row: completions[row]):
        tokens = completions[number]
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, tokens, strict=False)))
        _close(ends, path, common, len(ids))
        path += range(len(ids), len(ids) + len(tokens) - common)
        ids += tokens[common:]
        depths += range(common, len(tokens))
        ends += [0] * (len(tokens) - common)
        paths[number], before = np.array(path, np.int64), tokens
    _close(ends, path, 0, len(ids))
    ids_L, depths_L, ends_L = (np.array(column, np.int64) for column in (ids, depths, ends))
    return Tree(ids_L, depths_L, ends_L, tuple(paths[number] for number in range(len(completions))))


def _close(ends: list[int], path: list[int], common: int, end: int) -> None:
    """Leave the positions of a path after its first `common`: all their descendants are known."""
    for position in path[common:]:
        ends[position] = end
    del path[common:]
