"""Each estimator against values worked out by hand, and what all of them promise."""

import numpy as np
import pytest

from stages.core.method.advantages import (
    dr_grpo,
    grpo,
    positive_only,
    reinforce_plus_plus_baseline,
    trr_plus_plus,
    whiten,
)

ESTIMATORS = {function.__name__: function for function in (reinforce_plus_plus_baseline, trr_plus_plus, grpo, dr_grpo)}
REWARDS = [1.0, -0.5, -0.5, 1.0, 1.0, 0.0]
GROUPS = ["a", "a", "a", "b", "b", "c"]
KINDS = ["deduction"] * 3 + ["abduction"] * 3
ROLES = ["student"] * 6
LENGTHS = [2, 4, 3, 5, 1, 2]


def naive_whitening(values: list[float], lengths: list[int]) -> list[float]:
    """Over a list with one entry a token."""
    tokens = np.repeat(values, lengths)
    return list((np.asarray(values) - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8))


def test_reinforce_plus_plus_baseline_centres_by_group_and_whitens_by_token() -> None:
    found = reinforce_plus_plus_baseline(REWARDS, GROUPS, KINDS, ROLES, LENGTHS)
    assert found.baseline_S.tolist() == [0, 0, 0, 1, 1, 0]  # the group of one subtracts 0, as in veRL
    assert found.centred_S.tolist() == [1, -0.5, -0.5, 0, 0, 0]
    np.testing.assert_allclose(found.advantage_S, naive_whitening([1, -0.5, -0.5, 0, 0, 0], LENGTHS), rtol=1e-6)


def test_without_shift_constant_groups_keep_advantage_zero() -> None:
    shifted = reinforce_plus_plus_baseline(REWARDS, GROUPS, KINDS, ROLES, LENGTHS)
    scaled = reinforce_plus_plus_baseline(REWARDS, GROUPS, KINDS, ROLES, LENGTHS, shift=False)
    assert shifted.advantage_S[3] != 0 and scaled.advantage_S[3:].tolist() == [0, 0, 0]
    np.testing.assert_allclose(np.diff(scaled.advantage_S), np.diff(shifted.advantage_S), rtol=1e-12)


def test_a_lone_proposal_may_take_the_mean_of_its_kind() -> None:
    found = reinforce_plus_plus_baseline(REWARDS, GROUPS, KINDS, ROLES, LENGTHS, lone_by_kind=True)
    assert found.baseline_S[5] == pytest.approx(2 / 3)


def test_roles_are_whitened_apart() -> None:
    roles = ["teacher"] * 3 + ["student"] * 3
    found = reinforce_plus_plus_baseline([1, 0, 0, 8, 0, -8], ["a"] * 6, KINDS, roles, LENGTHS)
    alone = reinforce_plus_plus_baseline([1, 0, 0], ["a"] * 3, KINDS[:3], roles[:3], LENGTHS[:3])
    assert found.advantage_S[:3].tolist() == alone.advantage_S.tolist()


def test_trr_plus_plus_whitens_rewards_by_kind_and_role() -> None:
    found = trr_plus_plus(REWARDS, GROUPS, KINDS, ROLES, LENGTHS)
    for part in (slice(0, 3), slice(3, 6)):
        np.testing.assert_allclose(found.advantage_S[part], naive_whitening(REWARDS[part], LENGTHS[part]), rtol=1e-6)
        assert np.dot(found.centred_S[part], LENGTHS[part]) == pytest.approx(0, abs=1e-7)


def test_grpo_divides_by_the_deviation_of_the_group_and_dr_grpo_does_not() -> None:
    plain, scaled = dr_grpo(REWARDS, GROUPS, KINDS, ROLES, LENGTHS), grpo(REWARDS, GROUPS, KINDS, ROLES, LENGTHS)
    assert plain.advantage_S.tolist() == [1, -0.5, -0.5, 0, 0, 0]
    deviation = np.std([1, -0.5, -0.5], ddof=1) + 1e-6
    np.testing.assert_allclose(scaled.advantage_S, [1 / deviation, -0.5 / deviation, -0.5 / deviation, 0, 0, 0], rtol=1e-12)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_centred_is_reward_minus_baseline_and_equal_rewards_centre_to_exact_zeros(name: str) -> None:
    estimator = ESTIMATORS[name]
    found = estimator(REWARDS, GROUPS, KINDS, ROLES, LENGTHS)
    np.testing.assert_array_equal(found.centred_S, np.asarray(REWARDS) - found.baseline_S)
    equal = estimator([0.1, 0.1, 0.1, 0.7, 0.7, 0.7], ["a"] * 3 + ["b"] * 3, KINDS, ROLES, LENGTHS)
    assert equal.centred_S.tolist() == [0] * 6 and equal.advantage_S.tolist() == [0] * 6


@pytest.mark.parametrize("name", ["reinforce_plus_plus_baseline", "grpo", "dr_grpo"])
def test_centred_sums_to_zero_in_every_group(name: str) -> None:
    rng = np.random.default_rng(0)
    groups = [f"g{i // 4}" for i in range(24)]
    found = ESTIMATORS[name](rng.normal(size=24), groups, ["induction"] * 24, ["student"] * 24, rng.integers(1, 9, 24))
    np.testing.assert_allclose(found.centred_S.reshape(-1, 4).sum(1), 0, atol=1e-12)


def test_one_token_whitens_to_zero() -> None:
    assert whiten(np.array([3.0]), np.array([1]), shift=True).tolist() == [0]


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_equal_values_whiten_to_zero(value: float, shift: bool) -> None:
    assert whiten(np.full(3, value), np.array([4, 1, 9]), shift=shift).tolist() == [0, 0, 0]


def test_positive_only_is_supervised_training_on_what_was_rewarded() -> None:
    found = positive_only(np.array([1.0, -0.5, -1.0, 1.0, 0.0]), list("aabbb"), ["deduction"] * 5, ["student"] * 5, np.full(5, 7))
    assert found.advantage_S.tolist() == found.centred_S.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert found.baseline_S.tolist() == [0.0, -0.5, -1.0, 0.0, 0.0]
