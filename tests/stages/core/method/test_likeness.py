"""How alike a teacher's tasks are, and what that costs them."""

from typing import Any

import pyarrow as pa

from stages.core import tables
from stages.core.method.added_rewards import AddedRewards
from stages.core.method.likeness import likeness


def task(task_id: str, syntax: str | None, teacher: str = "t0", kind: str = "deduction", **other: Any) -> dict[str, Any]:
    own = {"task_id": task_id, "teacher_id": teacher, "kind": kind, "syntax": syntax, "value_types": "(int) -> int"}
    return own | {"executed_lines": 3, "status": "valid", "gate": None} | other


def tasks(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows))


def test_a_task_is_compared_with_the_other_valid_tasks_of_its_teacher_and_kind() -> None:
    found = likeness(
        tasks(
            task("a", "chain"),
            task("b", "chain"),
            task("c", "chain", executed_lines=2),  # in powers of two the same
            task("d", "list"),
            task("e", "chain", value_types="(str) -> str"),
            task("f", "chain", status="error"),
            task("g", "chain", gate="identity"),
            task("h", "chain", teacher="t1"),
            task("i", "chain", kind="abduction"),
        )
    )
    assert found == {"a": 2 / 4, "b": 2 / 4, "c": 2 / 4}


def test_tasks_without_a_shape_are_alike() -> None:
    """Nobody escapes the penalty with a program that cannot be measured."""
    assert likeness(tasks(task("a", None), task("b", None), task("c", "chain"))) == {"a": 1 / 2, "b": 1 / 2}
    assert likeness(tasks(task("a", "chain"))) == {} and likeness(tables.TASKS.empty_table()) == {}


def test_the_penalty_is_the_weight_where_all_tasks_are_alike() -> None:
    same = tasks(*(task(name, "chain") for name in "abc"))
    nothing = tables.ROLLOUTS.empty_table(), tables.GRADES.empty_table(), None
    assert AddedRewards(0.0, 0.0, 0.5).of(same, *nothing) == {"a": -0.5, "b": -0.5, "c": -0.5}
    assert AddedRewards(0.0, 0.0).of(same, *nothing) == {}
