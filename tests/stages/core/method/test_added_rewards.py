"""What is added to a student's reward, and which weights would let a wrong answer earn as much as a right one."""

import pyarrow as pa
import pytest

from stages.core import tables
from stages.core.method.added_rewards import AddedRewards
from stages.core.method.rewards import Event, azr, form, populora
from stages.core.method.trailing_text import written_past

NOTHING = AddedRewards(0.0, 0.0)


def rollouts() -> pa.Table:
    """Three attempts: the first ends with its answer, the second wrote on behind two tokens of four, the third has no answer."""
    return pa.table({"rollout_id": ["r0", "r1", "r2"], "answer_tokens": pa.array([None, 2, None], pa.int64())})


def test_text_behind_an_answer_is_deducted_whatever_the_verdict() -> None:
    assert written_past(rollouts()) == ["r1"]
    assert AddedRewards(0.0, 0.5).of(tables.TASKS.empty_table(), rollouts(), tables.GRADES.empty_table(), None) == {"r1": -0.5}
    assert NOTHING.of(tables.TASKS.empty_table(), rollouts(), tables.GRADES.empty_table(), None) == {}


def test_rollouts_of_an_older_version_say_nothing_about_what_follows_an_answer() -> None:
    assert written_past(rollouts().drop_columns("answer_tokens")) == []


def test_weights_that_would_pay_a_wrong_answer_like_a_right_one_are_refused() -> None:
    def narrow(event: Event) -> float:
        return {"correct": 0.5, "wrong": 0.25}.get(event.status, 0.0)

    for rule in (populora, azr):
        AddedRewards(0.99, 0.0).check(rule)
        AddedRewards(0.9, 0.5).check(rule)
    AddedRewards(0.2, 0.0).check(narrow)
    for weight, rule, gap in ((0.25, narrow, "0.25"), (0.1, form, "0"), (0.1, lambda event: -populora(event), "-1.5")):
        with pytest.raises(ValueError, match=f"less than {gap}, by which a right answer earns more"):
            AddedRewards(weight, 0.0).check(rule)
        with pytest.raises(ValueError, match=f"less than {gap}, by which a right answer earns more"):
            AddedRewards(0.0, weight).check(rule)


def test_weights_that_would_pay_the_unreadable_and_the_invalid_better_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 0\.5, by which a wrong answer earns more than an unreadable one"):
        AddedRewards(0.0, 0.6).check(populora)
    AddedRewards(0.0, 0.0, likeness=0.9).check(populora)
    AddedRewards(0.0, 0.0, likeness=0.5).check(azr)
    with pytest.raises(ValueError, match=r"at most 0\.5, by which any valid task earns more than an invalid one"):
        AddedRewards(0.0, 0.0, likeness=0.6).check(azr)
