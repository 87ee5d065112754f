"""The operators on raw factors, as published, and DARE on average."""

import itertools

import numpy as np
import pytest

from stages.core.lora.delta import A_SUFFIX, B_SUFFIX, factors, modules
from stages.core.lora.operators import dare, on_weights
from tests.stages.core.lora.test_operators import (
    SHAPES,
    SPACES,
    adapter,
    child_of,
    deltas,
    distance,
    in_other_gauge,
)


class Coins:
    """A generator whose `random` gives these numbers."""

    def __init__(self, tosses: list[np.ndarray]) -> None:
        self.tosses = iter(tosses)

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(next(self.tosses), shape)


def test_dare_gives_the_mean_of_the_parents_on_average():
    """Over all equally likely outcomes, where truncation cannot bite: two parents of rank 2 in adapters of rank 4."""
    parents = [adapter(1, 4), adapter(2, 4)]
    for parent in parents:
        for name in modules(parent):
            parent[name + B_SUFFIX][:, 2:] = 0
    total = [np.zeros(shape) for shape in SHAPES]
    for tosses in itertools.product((0.0, 1.0), repeat=4):
        coins = Coins([np.array([*tosses[:2], 1.0, 1.0]), np.array([*tosses[2:], 1.0, 1.0])])
        operator = on_weights(lambda both, rng: dare(both, rng, p=0.5, keep_norm=False))
        child = operator(parents, coins)[0]
        if not any(tosses):  # every triplet dropped: an empty sum, for which the child takes the first parent
            assert distance(child, parents[0]) == 0.0
            continue
        total = [sum_ + made / 16 for sum_, made in zip(total, deltas(child), strict=True)]
    for made, one, two in zip(total, *map(deltas, parents), strict=True):
        assert np.allclose(made, (one + two) / 2, atol=1e-5 * np.linalg.norm(one))


def test_dare_keeps_the_norm_of_the_parents():
    parents = [adapter(1, 4), adapter(2, 4)]
    for made, one, two in zip(deltas(child_of("X1", parents, 3)), *map(deltas, parents), strict=True):
        assert np.linalg.norm(made) == pytest.approx((np.linalg.norm(one) + np.linalg.norm(two)) / 2, rel=1e-4)


def test_factor_space_means_and_lerps_factors():
    better, worse = adapter(1), adapter(2)
    half = child_of("C2", [better, worse], 0, "paper")
    child, parameters = SPACES["paper"]["X4"]([better, worse], np.random.default_rng(0))
    for key in better:
        assert np.allclose(half[key], (better[key] + worse[key]) / 2, atol=1e-6)
        assert np.allclose(child[key], worse[key] + parameters["eta"] * (better[key] - worse[key]), atol=1e-5)
    assert 1.0 <= parameters["eta"] <= 1.5


def test_factor_space_depends_on_the_gauge():
    """Why the default does not work there: the same two adapters in another basis have quite another midpoint."""
    first, second = adapter(1), adapter(2)
    turned = in_other_gauge(first, 3)
    assert distance(child_of("C2", [turned, second], 0, "paper"), child_of("C2", [first, second], 0, "paper")) > 0.2
    assert distance(child_of("C2", [turned, second]), child_of("C2", [first, second])) < 1e-4


def test_factor_space_noise():
    parent = adapter(0, 32, shapes=((512, 256),) * 3)
    child = child_of("M5", [parent], 1, "paper")
    gaussian = child_of("M4", [parent], 1, "paper")
    touched = 0
    some = child_of("M2", [parent], 1, "paper")
    for name, A_RI, B_OR in factors(parent):
        assert np.array_equal(child[name + B_SUFFIX], B_OR)
        assert np.abs(child[name + A_SUFFIX] - A_RI).max() <= 10 / np.sqrt(A_RI.size) * (1 + 1e-5)
        for suffix, values in ((A_SUFFIX, A_RI), (B_SUFFIX, B_OR)):
            assert (gaussian[name + suffix] - values).std() == pytest.approx(0.15 * values.std(), rel=0.05)
        touched += not np.array_equal(some[name + B_SUFFIX], B_OR)
    assert touched == max(1, int(0.33 * 3))


def test_factor_space_dare_drops_entries():
    first, second = (adapter(seed, 32, shapes=((256, 256),)) for seed in (1, 2))
    child = child_of("X1", [first, second], 0, "paper")
    zeros = np.mean([np.mean(values == 0) for values in child.values()])
    assert zeros == pytest.approx(0.49, abs=0.02)
    error = np.concatenate([(child[key] - (first[key] + second[key]) / 2).ravel() for key in child])
    assert abs(error.mean()) < 5 * error.std() / np.sqrt(error.size)


def test_factor_space_masking_leaves_dead_components():
    for _, A_RI, B_OR in factors(child_of("M3", [adapter(1, 4)], 0, "paper")):
        assert (np.linalg.norm(A_RI, axis=1) == 0).sum() == (np.linalg.norm(B_OR, axis=0) == 0).sum() == 2
