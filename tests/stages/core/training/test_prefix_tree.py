"""Trees of completions against their definition: one position for each distinct beginning."""

import numpy as np
import pytest

from stages.core.training.prefix_tree import common, depth_first


def drawn(seed: int, vocabulary: int) -> list[list[int]]:
    """Completions that often begin alike, with equal and empty ones."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocabulary, rng.integers(0, 7)).tolist() for _ in range(12)] + [[0, 1], [0, 1], []]


def beginnings(completions: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(tokens[:length]) for tokens in completions for length in range(1, len(tokens) + 1)}


@pytest.mark.parametrize("vocabulary", [1, 2, 50])
@pytest.mark.parametrize("seed", range(5))
def test_each_position_follows_exactly_what_is_before_it_in_its_completions(seed: int, vocabulary: int) -> None:
    completions = drawn(seed, vocabulary)
    tree = depth_first(completions)
    assert len(tree.ids_L) == len(beginnings(completions))
    read = {}
    for tokens, path in zip(completions, tree.paths, strict=True):
        assert tree.ids_L[path].tolist() == tokens and tree.depths_L[path].tolist() == list(range(len(tokens)))
        read |= {int(place): {int(earlier) for earlier in path[:depth]} for depth, place in enumerate(path)}
    for place, before in read.items():
        assert {j for j in range(place) if place < tree.ends_L[j]} == before


def test_what_two_completions_begin_with() -> None:
    assert [common(one, other) for one, other in (([1, 2], [1, 2]), ([1, 2], [1, 3]), ([1], [1, 2]), ([], [1]), ([2], [1]))] == [
        2,
        1,
        1,
        0,
        0,
    ]
