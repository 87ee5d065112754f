"""The estimators in infra/experiments/estimators.py, chosen as a configuration names them."""

import numpy as np
import pytest

from flows.choices import choose
from stages.core.method.advantages import Advantages
from stages.reward import ESTIMATORS

GROUPS = ["g0", "g0", "g0", "g0", "g1", "g1", "g0", "g0"]
ROLES = ["student"] * 6 + ["teacher"] * 2
REWARDS = np.array([1.0, -0.5, -0.5, -1.0, 1.0, 1.0, 0.0, 0.0])


def estimated(name: str) -> Advantages:
    function = choose("learning.estimator", f"infra/experiments/estimators.py:{name}", ESTIMATORS)
    found: Advantages = function(REWARDS, GROUPS, ["deduction"] * 8, ROLES, np.full(8, 3))
    return found


@pytest.mark.parametrize(
    ("name", "advantages"),
    [
        ("by_likelihood", [3.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]),
        ("by_rarity", [0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_rare_right_answer_weighs_more_and_equal_results_nothing(name: str, advantages: list[float]) -> None:
    found = estimated(name)
    np.testing.assert_allclose(found.advantage_S, advantages)
    np.testing.assert_allclose(found.baseline_S + found.centred_S, REWARDS)


def test_rewards_dealt_anew_are_those_of_the_placebo_and_equal_groups_teach_nothing() -> None:
    rewards = np.array([1.0, 0.0, 0.0, -1.0, 0.5, 0.5, 0.5, 0.5, 1.0, 0.0])
    given = (rewards, [*"aaaabbbbcc"], ["deduction"] * 10, ["student"] * 10, np.arange(20, 30))
    placebo: Advantages = choose("learning.estimator", "infra/experiments/placebo.py:permuted", ESTIMATORS)(*given)
    dealt: Advantages = choose("learning.estimator", "infra/experiments/dealt_anew.py:dealt_anew", ESTIMATORS)(*given)
    np.testing.assert_array_equal(dealt.centred_S, placebo.centred_S)  # the same draw
    first = (dealt.centred_S + dealt.baseline_S)[:4]
    assert sorted(first) == sorted(rewards[:4]) and not np.array_equal(first, rewards[:4])
    assert (dealt.advantage_S[4:8] == 0).all()
    assert (placebo.advantage_S[4:8] != 0).all()
