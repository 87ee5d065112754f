"""Statistics of suites, each against a definition written out or a value worked out by hand."""

import itertools
import math

import pytest

from stages.core.suites.statistics import average, compare, estimate, pass_at_k, passing, population, powers


@pytest.mark.parametrize(("attempts", "correct", "k"), [(5, 2, 1), (5, 2, 3), (8, 0, 4), (8, 8, 4), (6, 1, 6), (4, 3, 2)])
def test_pass_at_k_is_the_share_of_all_draws_with_a_right_one(attempts: int, correct: int, k: int) -> None:
    draws = list(itertools.combinations([True] * correct + [False] * (attempts - correct), k))
    assert pass_at_k(attempts, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("attempts", "k"), [(3, 4), (0, 1), (3, 0)])
def test_pass_at_k_of_fewer_attempts_is_undefined_and_not_one(attempts: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} is undefined for {attempts} attempts"):
        pass_at_k(attempts, attempts, k)
    with pytest.raises(ValueError, match="undefined"):
        passing({"a": [True] * 4, "b": [True]}, 4)


def test_the_error_is_over_problems_and_attempts_of_one_are_one_cluster() -> None:
    twice = average({"a": [True, True], "b": [False, False], "c": [True, False]})
    once = estimate([1.0, 0.0, 0.5])
    assert twice == once
    assert twice.mean == 0.5 and twice.problems == 3
    assert twice.stderr == pytest.approx(math.sqrt(0.25 / 3))  # not sqrt(0.25 / 6): six attempts are no six problems


def test_no_error_of_one_problem_and_no_mean_of_none() -> None:
    assert estimate([1.0]).stderr is None
    with pytest.raises(ValueError, match="no problem"):
        estimate([])


def test_paired_errors_ignore_what_both_share() -> None:
    hard = {f"p{number}": float(number % 2) for number in range(20)}
    better = hard | {"p0": 1.0}
    found = compare(better, hard)
    assert (found.difference, found.better, found.worse, found.problems) == (0.05, 1, 0, 20)
    assert found.stderr == pytest.approx(0.05) and found.z == pytest.approx(1.0)
    assert estimate(list(better.values())).stderr > 2 * found.stderr
    assert compare(hard, hard).z is None
    with pytest.raises(ValueError, match="no problem"):
        compare({"a": 1.0}, {"b": 1.0})


def test_a_population_is_its_mean_with_its_weakest_and_its_strongest() -> None:
    found = population({"s0": {"a": 1.0, "b": 0.0}, "s1": {"b": 1.0, "a": 1.0}, "s2": {"a": 0.0, "b": 0.0}})
    assert (found.mean, found.lowest, found.highest, found.members, found.problems) == (0.5, 0.0, 1.0, 3, 2)
    assert found.stderr == pytest.approx(math.sqrt(2 * (1 / 6) ** 2 / 1 / 2))  # means over members: 2/3 and 1/3
    with pytest.raises(ValueError, match="different problems"):
        population({"s0": {"a": 1.0}, "s1": {"b": 1.0}})


def test_the_ks_that_are_given() -> None:
    assert [powers(n) for n in (0, 1, 2, 5, 8)] == [[], [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]
