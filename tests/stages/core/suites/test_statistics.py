"""Statistics of suites, each against a definition written out or a value worked out by hand."""

import itertools
import math

import pytest

from stages.core.suites.statistics import PopulationScore, average, compare, estimate, pass_at_k, passing, population, powers


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
    found = population([0.5, 1.0, 0.0], [0.5, 0.0, 0.0])
    assert found == PopulationScore(0.5, pytest.approx(1 / 6), 0.0, 1.0, 3)
    assert population([0.5, 1.0], [0.5, None]).stderr is None


def test_the_error_of_a_population_is_an_upper_bound_and_exact_for_equal_members() -> None:
    """The exact error is that of the means over members, problem by problem."""
    first, second = [1.0, 0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0, 0.0]
    for members in ([first, second], [first, first], [second, second, second]):
        own = [estimate(each) for each in members]
        exact = estimate([sum(each) / len(members) for each in zip(*members, strict=True)])
        found = population([one.mean for one in own], [one.stderr for one in own])
        assert found.mean == pytest.approx(exact.mean) and found.stderr >= exact.stderr - 1e-12
        assert (found.stderr == pytest.approx(exact.stderr)) == (members[0] is members[1])


def test_the_ks_that_are_given() -> None:
    assert [powers(n) for n in (0, 1, 2, 5, 8)] == [[], [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]
