"""What has changed since an earlier generation: paired by problem, members averaged, the same slices as the scores."""

import math
from typing import Any

import pytest

from stages.core import tables
from stages.core.suites.changes import score_changes
from stages.core.suites.scores import by_slice

FIXED = {"suite": "cruxeval", "band": 0, "adapter_id": "a", "adapter_sha256": "0" * 64, "status": "correct"}


def answers(correct: dict[tuple[str, str], list[bool]], behind: str = "") -> Any:
    """Answers of each member to each problem: the greedy attempt, then the sampled ones."""
    rows = [
        FIXED
        | {"member_id": member, "problem_id": problem, "kind": "output", "attempt": number, "greedy": number == 0}
        | {"text": f" 1{behind}", "answer": "1", "correct": right}
        for (member, problem), attempts in correct.items()
        for number, right in enumerate(attempts)
    ]
    return tables.table(rows, tables.ANSWERS)


def test_members_are_averaged_within_a_problem_and_problems_are_paired() -> None:
    before = answers({("s0", "p"): [False], ("s1", "p"): [True], ("s0", "q"): [False], ("s1", "q"): [False]})
    after = answers({("s0", "p"): [True], ("s1", "p"): [True], ("s0", "q"): [False], ("s1", "q"): [False]})
    whole, strict = score_changes(after, before, by_slice)
    assert (whole.group, whole.measure, strict.group) == ("all", "pass@1 greedy", "output strict")
    assert (whole.found.difference, whole.found.better, whole.found.worse, whole.found.problems) == (0.25, 1, 0, 2)
    assert whole.found.stderr == pytest.approx(math.sqrt(2 * 0.25**2 / 2))


def test_newborns_are_compared_with_those_who_were_there() -> None:
    before, after = answers({("s0", "p"): [False], ("s0", "q"): [True]}), answers({("s7", "p"): [True], ("s7", "q"): [True]})
    assert [each.found.difference for each in score_changes(after, before, by_slice) if each.group == "all"] == [0.5]


def test_sampled_attempts_give_pass_at_1_and_at_all_that_there_are() -> None:
    before, after = answers({("s0", "p"): [False, False, True]}), answers({("s0", "p"): [False, True, True]})
    found = {each.measure: each.found.difference for each in score_changes(after, before, by_slice) if each.group == "all"}
    assert found == {"pass@1 greedy": 0.0, "pass@1": 0.5, "pass@2": 0.0}


def test_form_alone_changes_the_strict_score_alone() -> None:
    before, after = answers({("s0", "p"): [True]}, '  # "a comment"'), answers({("s0", "p"): [True]})
    assert {each.group: each.found.difference for each in score_changes(after, before, by_slice)} == {
        "all": 0.0,
        "output strict": 1.0,
    }


def test_members_that_answered_different_problems_are_not_averaged() -> None:
    before = answers({("s0", "p"): [True], ("s1", "q"): [True]})
    with pytest.raises(ValueError, match="different problems"):
        list(score_changes(before, before, by_slice))
