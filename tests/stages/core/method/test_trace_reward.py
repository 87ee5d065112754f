"""What a trace adds to the reward of a wrong answer."""

import pytest

from stages.core import tables
from stages.core.method.added_rewards import AddedRewards
from stages.core.method.advantages import reinforce_plus_plus_baseline
from stages.core.method.rewards import populora
from stages.core.method.trace_reward import trace_shares
from stages.reward import reward
from stages.trace import missed_deductions, record_traces
from tests.support.fakes import TableSandbox

TRUE = ["c=12", "h=24", "k=6"]
WRITTEN = [
    ("d0", "deduction", "c=12\nh=24\nk=6⟨out⟩6", "correct"),
    ("d0", "deduction", "c=12\nh=24\nk=7⟨out⟩7", "wrong"),
    ("d0", "deduction", "c=12\nh=24\nk=6⟨out⟩7", "wrong"),
    ("d0", "deduction", "c=12\nc=12\nc=12⟨out⟩7", "wrong"),
    ("d0", "deduction", "⟨out⟩7", "wrong"),
    ("d0", "deduction", "c=12\nh=24⟨out⟩x + 1", "unparsed"),
    ("d0", "deduction", "c=12\nh=24", "format"),
    ("a0", "abduction", "c=12⟨in⟩7", "wrong"),
    ("d1", "deduction", "c=12⟨out⟩7", "wrong"),
]


def rollouts():
    rows = [
        {
            "rollout_id": f"r{number}",
            "task_id": task_id,
            "match_id": "m",
            "student_id": "s0",
            "kind": kind,
            "attempt": number,
            "adapter_id": "s0-start",
            "adapter_sha256": "0" * 64,
            "seed": 0,
            "prompt_ids": [1],
            "completion_ids": [2],
            "logprobs": [0.0],
            "text": text,
            "truncated": False,
            "answer": None,
        }
        for number, (task_id, kind, text, _) in enumerate(WRITTEN)
    ]
    return tables.table(rows, tables.ROLLOUTS)


def grades():
    rows = [
        {
            "rollout_id": f"r{number}",
            "task_id": task_id,
            "match_id": "m",
            "student_id": "s0",
            "kind": kind,
            "status": status,
            "correct": status == "correct",
            "detail": "",
        }
        for number, (task_id, kind, _, status) in enumerate(WRITTEN)
    ]
    return tables.table(rows, tables.GRADES)


def traces():
    rows = [{"task_id": "d0", "steps": 3, "lines": TRUE}, {"task_id": "d1", "steps": 0, "lines": []}]
    return tables.table(rows, tables.TRACES)


def test_the_share_is_that_of_the_true_steps_and_only_wrong_deductions_have_one() -> None:
    assert missed_deductions(grades()) == ["d0", "d1"]
    assert trace_shares(rollouts(), grades(), traces()) == {"r1": 2 / 3, "r2": 1.0, "r3": 1 / 3, "r4": 0.0}


def test_rewards_are_the_rules_with_the_bonus_and_a_whole_trace_stays_below_a_right_answer() -> None:
    added = AddedRewards(0.9, 0.0).of(tables.TASKS.empty_table(), rollouts(), grades(), traces())
    none = (tables.PROPOSALS.empty_table(), tables.TASKS.empty_table())
    found = reward(*none, rollouts(), grades(), populora, reinforce_plus_plus_baseline, "group", 0, added)
    assert found["reward"].to_pylist() == pytest.approx([1.0, 0.1, 0.4, -0.2, -0.5, -0.5, -1.0, -0.5, -0.5])
    without = reward(*none, rollouts(), grades(), populora, reinforce_plus_plus_baseline, "group", 0)
    assert without["reward"].to_pylist() == [1.0, -0.5, -0.5, -0.5, -0.5, -0.5, -1.0, -0.5, -0.5]


def test_a_task_without_a_trace_has_a_row_with_no_steps() -> None:
    columns = {field.name: "" for field in tables.SEEDS} | {"task_id": "d0", "kind": "deduction"}
    stored = [columns | {"task_id": name, "program": "p", "inputs": ["1"], "values": ["1"]} for name in ("d0", "d1")]
    found = record_traces(tables.TASKS.empty_table(), stored, grades(), TableSandbox({}))
    assert found.to_pylist() == [{"task_id": name, "steps": 0, "lines": []} for name in ("d0", "d1")]
