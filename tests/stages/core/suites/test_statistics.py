"""Statistics of suites, each against a definition written out or a value worked out by hand."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stages.core.suites.statistics import (
    PopulationScore,
    ScoreEstimate,
    average,
    cluster_of,
    compare,
    estimate,
    pass_at_k,
    passing,
    population,
    powers,
)

SUITES = Path(__file__).parents[4] / "infra" / "benchmarks"


def of_problems(values: Sequence[float]) -> ScoreEstimate:
    """The estimate for problems that share nothing."""
    return estimate({f"p{number}": value for number, value in enumerate(values)})


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
    once = of_problems([1.0, 0.0, 0.5])
    assert twice == once
    assert twice.mean == 0.5 and twice.problems == 3
    assert twice.stderr == pytest.approx(math.sqrt(0.25 / 3))  # not sqrt(0.25 / 6): six attempts are no six problems


def test_without_shared_programs_the_error_is_the_usual_one_to_the_last_bit() -> None:
    values = [0.1 * (number % 7) + 0.01 * number for number in range(37)]
    mean = math.fsum(values) / 37
    assert of_problems(values).stderr == math.sqrt(math.fsum((value - mean) ** 2 for value in values) / 36 / 37)


def test_problems_about_one_program_are_no_independent_ones() -> None:
    """A model that gives the same verdict in both directions knows no more than with one: 4 programs, not 8 problems."""
    verdicts = {"sample_0": 1.0, "sample_1": 0.0, "sample_2": 1.0, "sample_3": 1.0}
    both = estimate({f"{name}/{way}": value for name, value in verdicts.items() for way in "oi"})
    assert (both.mean, both.problems) == (0.75, 8)
    assert both.stderr == pytest.approx(estimate(verdicts).stderr) and both.stderr > 0.24
    # by hand: the mean is 3/5, the sums about it are 4/5, -1/5 and -3/5, their squares 26/25 in all
    uneven = estimate({"a/o": 1.0, "a/i": 1.0, "b/o": 1.0, "b/i": 0.0, "c": 0.0})
    assert uneven.stderr == pytest.approx(math.sqrt(3 / 2 * 26 / 25) / 5)
    assert estimate({"a/o": 1.0, "a/i": 1.0}).stderr is None  # one program
    found = compare({"a/o": 1.0, "a/i": 1.0, "b/o": 0.0, "b/i": 0.0}, dict.fromkeys(("a/o", "a/i", "b/o", "b/i"), 0.0))
    assert (found.difference, found.stderr, found.problems, found.better) == (0.5, pytest.approx(0.5), 4, 2)


@pytest.mark.parametrize("suite", ["probe-dev", "probe-test", "staircase-dev", "staircase-test"])
def test_clusters_are_the_programs_of_the_project_s_own_suites(suite: str) -> None:
    rows = pq.read_table(SUITES / f"{suite}.parquet", columns=["problem_id", "program"]).to_pylist()
    of_program: dict[str, set[str]] = {}
    for row in rows:
        of_program.setdefault(row["program"], set()).add(cluster_of(row["problem_id"]))
    assert all(len(names) == 1 for names in of_program.values())
    assert len({name for names in of_program.values() for name in names}) == len(of_program)


@pytest.mark.parametrize("name", ["HumanEval/0", "Mbpp/2", "1873_A", "test/algebra/1072.json", "gsm8k/12", "minerva/7", "p/o/x"])
def test_other_problems_are_clusters_of_their_own(name: str) -> None:
    assert cluster_of(name) == name


def test_no_error_of_one_problem_and_no_mean_of_none() -> None:
    assert of_problems([1.0]).stderr is None
    with pytest.raises(ValueError, match="no problem"):
        of_problems([])


def test_paired_errors_ignore_what_both_share() -> None:
    hard = {f"p{number}": float(number % 2) for number in range(20)}
    better = hard | {"p0": 1.0}
    found = compare(better, hard)
    assert (found.difference, found.better, found.worse, found.problems) == (0.05, 1, 0, 20)
    assert found.stderr == pytest.approx(0.05) and found.z == pytest.approx(1.0)
    assert estimate(better).stderr > 2 * found.stderr
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
        own = [of_problems(each) for each in members]
        exact = of_problems([sum(each) / len(members) for each in zip(*members, strict=True)])
        found = population([one.mean for one in own], [one.stderr for one in own])
        assert found.mean == pytest.approx(exact.mean) and found.stderr >= exact.stderr - 1e-12
        assert (found.stderr == pytest.approx(exact.stderr)) == (members[0] is members[1])


def test_the_ks_that_are_given() -> None:
    assert [powers(n) for n in (0, 1, 2, 5, 8)] == [[], [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]
