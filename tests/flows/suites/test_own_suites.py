"""The project's own suites as stored: their problems, their keys, and names that are none of theirs."""

import hashlib

import pytest

from flows.benchmarks.suite_score import problems_of
from flows.config import ConfigError
from flows.suites.own_suites import PROBE, SUITES, OwnSuites
from flows.suites.suite_data import suite_names
from stages.benchmark import chosen_problems


def test_every_suite_is_stored_with_its_digest() -> None:
    suites = OwnSuites()
    assert [suites.problems(suite).num_rows > 0 for suite in PROBE] == [True] * 16
    file = SUITES / "probe-dev.parquet"
    assert suites.file("probe-dev") == file and suites.digest("probe-dev") == hashlib.sha256(file.read_bytes()).hexdigest()


def test_keys_are_those_of_the_chosen_suites_and_computed_once() -> None:
    suites = OwnSuites()
    assert suites.probe_keys(()) == frozenset() and suites.held_out(()).syntax == frozenset()
    both, one = suites.held_out(("staircase-dev", "staircase-test")), suites.held_out(("staircase-dev",))
    assert one.syntax < both.syntax and one.behaviour < both.behaviour
    assert suites.held_out(["staircase-dev"]) is one


def test_problems_are_chosen_by_id() -> None:
    stairs = OwnSuites().problems("staircase-test")
    deep = chosen_problems(stairs, 3, "test-deduction-07-*")
    assert deep["problem_id"].to_pylist() == [f"test-deduction-07-00{number}" for number in range(3)]
    assert chosen_problems(stairs, 0, "test-*-07-*").num_rows == 3 * 200
    assert [one.problem_id for one in problems_of("staircase-test", None, 3, pattern="test-deduction-07-*")] == [
        f"test-deduction-07-00{number}" for number in range(3)
    ]
    with pytest.raises(
        ConfigError, match=r"^suite staircase-test: no problem has an id that matches 'dev-\*'; the first of 6000 is"
    ):
        problems_of("staircase-test", None, 0, pattern="dev-*")


def test_one_kind_of_a_suite_is_a_suite_of_its_own() -> None:
    suites = OwnSuites()
    whole, part = (suites.problems(name) for name in ("staircase-dev", "staircase-dev-deduction"))
    assert 0 < part.num_rows < whole.num_rows and set(part["kind"].to_pylist()) == {"deduction"}
    assert set(part["problem_id"].to_pylist()) == {one for one in whole["problem_id"].to_pylist() if "-deduction-" in one}
    digests = {suites.digest(name) for name in ("staircase-dev", "staircase-dev-deduction", "staircase-dev-abduction")}
    assert len(digests) == 3, "scores of unlike problems must not be taken for one another's"
    assert {one.group for one in problems_of("probe-dev-induction", None, 6)} == {"induction"}
    assert set(PROBE) <= set(suite_names())


def test_an_unknown_suite_is_one_line_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"^benchmark\.suite: 'probe-dve' is not one of .*staircase-test.*probe-dev") as raised:
        OwnSuites().problems("probe-dve")
    assert "\n" not in str(raised.value)
