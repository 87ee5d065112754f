"""An evolution strategy: keyed antithetic noise, fitness from rewards, and a step that climbs."""

import numpy as np
import pytest

from stages.core.lora.adapter import Adapter
from stages.core.lora.strategy import (
    NoiseKey,
    Strategy,
    copy_id,
    fitness,
    mean_rewards,
    noise,
    perturbed,
    stepped,
)

KEY = NoiseKey(5, 3, "s0-g0002")
WEIGHTS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((4, 2), np.float32)}
STRATEGY = Strategy(4, 0.5, 0.1)


def test_equal_keys_give_equal_noise_and_every_part_of_a_key_counts() -> None:
    def drawn(key: NoiseKey, pair: int) -> bytes:
        return b"".join(noise(WEIGHTS, key, pair)[name].tobytes() for name in ("a", "b"))

    keys = [KEY, NoiseKey(6, 3, "s0-g0002"), NoiseKey(5, 4, "s0-g0002"), NoiseKey(5, 3, "s1-g0002")]
    found = [drawn(key, pair) for key in keys for pair in (0, 1)]
    assert found[0] == drawn(NoiseKey(5, 3, "s0-g0002"), 0) and len(set(found)) == 8
    assert {array.dtype for array in noise(WEIGHTS, KEY, 0).values()} == {np.dtype(np.float32)}


def test_noise_does_not_depend_on_the_order_of_the_names() -> None:
    turned = dict(reversed(WEIGHTS.items()))
    for name, array in noise(turned, KEY, 1).items():
        np.testing.assert_array_equal(array, noise(WEIGHTS, KEY, 1)[name])


def test_the_copies_of_a_pair_lie_opposite_and_b_gets_noise_though_it_is_zero() -> None:
    for pair in (0, 1):
        plus, minus = (perturbed(WEIGHTS, STRATEGY, KEY, 2 * pair + side) for side in (0, 1))
        for name, drawn in noise(WEIGHTS, KEY, pair).items():
            np.testing.assert_array_equal(plus[name], WEIGHTS[name] + np.float32(0.5) * drawn)
            np.testing.assert_array_equal(minus[name], WEIGHTS[name] - np.float32(0.5) * drawn)
        assert plus["b"].any() and plus["b"].dtype == np.float32
    assert not WEIGHTS["b"].any(), "the argument has changed"


def test_a_copy_has_a_name() -> None:
    assert copy_id("s0-g0007", 3) == "s0-g0007+03"


def test_a_mean_reward_is_that_of_the_completions_that_a_copy_wrote() -> None:
    assert mean_rewards([1, 0, 0, 0, 1, 1, 0, -1], 4) == [1.0, 0.5, 0.0, -0.5]
    assert mean_rewards([], 4) == []
    with pytest.raises(ValueError, match="6 completions cannot be dealt out evenly over 4 copies"):
        mean_rewards([0.0] * 6, 4)


def test_fitness_has_mean_0_and_variance_1_and_ignores_scale_and_difficulty() -> None:
    rewards = [1, 0, 0, 0, 1, 1, 0, -1]
    found = fitness({"student": rewards}, 4)
    means = np.array([1, 0.5, 0, -0.5])
    np.testing.assert_allclose(found, (means - means.mean()) / means.std(), rtol=1e-12)
    harder = [10 * reward - (7 if place > 3 else 0) for place, reward in enumerate(rewards)]
    np.testing.assert_allclose(fitness({"student": harder}, 4), found, rtol=1e-12)


def test_equal_copies_have_no_fitness_and_two_roles_count_alike() -> None:
    assert fitness({"student": [0.1, 0.2, 0.2, 0.1]}, 2) == [0.0, 0.0]
    assert fitness({}, 2) == [0.0, 0.0]
    assert fitness({"teacher": [0.8, 0.6, 0.4, 0.6]}, 2) == [0.0, 0.0]  # 1.2 each, in sums that round differently
    assert fitness({"teacher": [100.0, 0.0], "student": [0.0, 0.1]}, 2) == [0.0, 0.0]
    assert fitness({"teacher": [1.0, 0.0], "student": [1.0, 1.0]}, 2) == [0.5, -0.5]


def test_a_step_is_the_sum_of_fitness_times_noise() -> None:
    scores = [1.0, -0.5, 0.25, 2.0]
    after = stepped(Adapter(WEIGHTS, {"exp_avg.a": WEIGHTS["a"]}, 7), scores, STRATEGY, KEY)
    assert (after.moments, after.step) == ({}, 8)
    for name, before in WEIGHTS.items():
        pairs = [noise(WEIGHTS, KEY, pair)[name].astype(np.float64) for pair in (0, 1)]
        expected = before + 0.1 / (4 * 0.5) * (1.5 * pairs[0] - 1.75 * pairs[1])
        np.testing.assert_allclose(after.weights[name], expected, atol=1e-6)


def test_without_fitness_nothing_moves() -> None:
    after = stepped(Adapter(WEIGHTS, {}, 0), [0.0] * 4, STRATEGY, KEY)
    for name, before in WEIGHTS.items():
        np.testing.assert_array_equal(after.weights[name], before)


def test_steps_climb_a_quadratic() -> None:
    """Reward: minus the squared distance to a goal. Forty steps of eight copies come near it."""
    goal = {name: array + 1.0 for name, array in WEIGHTS.items()}
    strategy, adapter = Strategy(8, 0.05, 0.01), Adapter(WEIGHTS, {}, 0)

    def distance(weights: dict[str, np.ndarray]) -> float:
        return float(np.sqrt(sum(np.square(weights[name] - goal[name]).sum() for name in goal)))

    distances = [distance(adapter.weights)]
    for generation in range(40):
        key = NoiseKey(0, generation, "s0")
        rewards = [-(distance(perturbed(adapter.weights, strategy, key, copy)) ** 2) for copy in range(8)]
        adapter = stepped(adapter, fitness({"student": rewards}, 8), strategy, key)
        distances.append(distance(adapter.weights))
    assert distances[0] == pytest.approx(np.sqrt(14)) and distances[-1] < 0.3 * distances[0]
