"""The best of k against all its subsets, and what it does to a group that is nearly solved."""

from itertools import combinations

import numpy as np
import pytest

from stages.core.method.advantages import reinforce_plus_plus_baseline, whiten
from stages.core.method.pass_at_k import added_to_best, pass_at_k


def by_subsets(rewards: list[float], k: int) -> list[float]:
    """The definition, subset by subset."""
    subsets = list(combinations(range(len(rewards)), k))
    best = [max(rewards[each] for each in subset) for subset in subsets]
    found = []
    for place in range(len(rewards)):
        found.append(np.mean([value for value, subset in zip(best, subsets, strict=True) if place in subset]) - np.mean(best))
    return found


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_an_answer_earns_what_it_adds_to_the_best_of_k(k: int) -> None:
    for rewards in ([1.0, 0.5, -0.5, -0.5, 1.0, -1.0], [1.0] + [-0.5] * 6, [3.0, 2.0, 1.0, 0.0, -1.0, -2.0]):
        found = added_to_best(np.array(rewards), k)
        np.testing.assert_allclose(found, by_subsets(rewards, k), atol=1e-12)
        assert abs(found.sum()) < 1e-12


def test_it_is_the_published_advantage_for_right_and_wrong() -> None:
    """Chen et al. 2025, eqs. 12 and 13, before their division, for 3 right answers of 8 and k = 4."""
    found = added_to_best(np.array([1.0] * 3 + [0.0] * 5), 4)
    mean = 1 - 5 / 70  # C(5, 4) of C(8, 4) subsets hold no right answer
    np.testing.assert_allclose(found[:3], 1 - mean)
    np.testing.assert_allclose(found[3:], 1 - 4 / 35 - mean)  # C(4, 3) of C(7, 3) hold a given wrong answer and no right one


def test_what_k_answers_find_anyway_is_not_pushed_further() -> None:
    rare, usual = (added_to_best(np.array([1.0] * right + [0.0] * (16 - right)), 4) for right in (1, 12))
    assert rare[0] > 0.7 and abs(usual).max() < 0.01
    assert added_to_best(np.array([1.0] * 13 + [0.0] * 3), 4).tolist() == [0.0] * 16  # four cannot all miss


def test_a_group_of_at_most_k_has_no_advantage() -> None:
    assert not added_to_best(np.array([1.0, 0.0, 0.0]), 4).any() and not added_to_best(np.array([1.0]), 4).any()


def test_students_take_the_best_of_k_and_teachers_the_mean() -> None:
    rewards = [1.0, -0.5, -0.5, 1.0, 1.0, -1.0]
    groups, kinds, lengths = ["a", "a", "a", "b", "b", "b"], ["deduction"] * 6, [2, 4, 3, 5, 1, 2]
    student = pass_at_k(rewards, groups, kinds, ["student"] * 6, lengths, k=2)
    np.testing.assert_allclose(student.centred_S[:3], by_subsets(rewards[:3], 2))
    np.testing.assert_allclose(student.advantage_S, whiten(student.centred_S, np.array(lengths), shift=False))
    np.testing.assert_array_equal(student.centred_S, np.asarray(rewards) - student.baseline_S)
    teacher = pass_at_k(rewards, groups, kinds, ["teacher"] * 6, lengths, k=2)
    mean = reinforce_plus_plus_baseline(rewards, groups, kinds, ["teacher"] * 6, lengths, shift=False)
    assert teacher.advantage_S.tolist() == mean.advantage_S.tolist()


def test_the_best_of_one_is_the_mean() -> None:
    rewards, lengths = [1.0, 0.0, 0.0, 0.5], [3, 1, 2, 2]
    one = pass_at_k(rewards, ["a"] * 4, ["abduction"] * 4, ["student"] * 4, lengths, k=1)
    mean = reinforce_plus_plus_baseline(rewards, ["a"] * 4, ["abduction"] * 4, ["student"] * 4, lengths, shift=False)
    np.testing.assert_allclose(one.advantage_S, mean.advantage_S, atol=1e-12)
