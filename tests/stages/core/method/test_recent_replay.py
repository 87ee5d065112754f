"""Replays of recent tasks: which count as easy or mixed, and how many a match poses again."""

import pyarrow as pa

from stages.core import tables
from stages.core.method.recent_replay import easy_tasks, mixed_tasks, reasons, recent_replays
from tests.stages.core.method.test_top_up import matches, tasks


def graded(*outcomes: tuple[str, str]) -> pa.Table:
    """(task, attempts as a text of 1 and 0) each."""
    rows = [
        {
            "rollout_id": f"{task_id}-r{number:02d}",
            "task_id": task_id,
            "match_id": "g0000-m00",
            "student_id": "s0",
            "kind": "deduction",
            "status": "correct" if right == "1" else "wrong",
            "correct": right == "1",
            "detail": "",
        }
        for task_id, all_ in outcomes
        for number, right in enumerate(all_)
    ]
    return tables.table(rows, tables.GRADES)


def stored(name: str) -> dict:
    return {"task_id": name, "kind": "deduction", "program_key": name, "inputs": ["1"]}


QUARTER, HALF = reasons(0.25, 0.8, 0.0)[0], reasons(0.0, 0.8, 0.5)[0]


def test_easy_is_what_most_attempts_solved_in_its_own_generation() -> None:
    posed = tasks(*[("g0000-m00", "deduction", "valid", None)] * 3)
    names = posed["task_id"].to_pylist()
    grades = graded((names[0], "11110"), (names[1], "1110"), ("replayed", "1111"))
    assert easy_tasks([(posed, grades)], 0.8) == [names[0]]
    assert easy_tasks([(posed, grades)], 0.75) == names[:2]
    assert easy_tasks([], 0.8) == []


def test_a_share_of_a_matchs_tasks_is_easy_and_none_is_posed_twice() -> None:
    two = matches("s0", "s1")
    posed = tasks(*[("g0001-m00", "deduction", "valid", None)] * 6, ("g0001-m01", "deduction", "timeout", None))
    equal = posed.slice(0, 1).to_pylist()[0] | {"task_id": "equal"}
    easy = [equal, *(stored(f"old-{number}") for number in range(9))]
    drawn = recent_replays(QUARTER, two, posed, easy, {"g0001-m00": [stored("old-3")]}, 7, 1)
    assert list(drawn) == ["g0001-m00", "g0001-m01"]
    first = [row["task_id"] for row in drawn["g0001-m00"]]
    assert len(first) == len(set(first)) == 2  # 6 tasks are three quarters of 8
    assert set(first) <= {f"old-{number}" for number in range(9) if number != 3}
    assert drawn["g0001-m01"] == []  # it posed nothing
    assert drawn == recent_replays(QUARTER, two, posed, easy, {"g0001-m00": [stored("old-3")]}, 7, 1)
    assert drawn != recent_replays(QUARTER, two, posed, easy, {"g0001-m00": [stored("old-3")]}, 8, 1)


def test_the_share_is_of_all_tasks_those_that_fill_the_batch_too() -> None:
    posed, filling = tasks(*[("g0001-m00", "deduction", "valid", None)] * 2), [stored(f"top-up-{number}") for number in range(4)]
    easy = [stored(f"old-{number}") for number in range(9)]
    drawn = recent_replays(QUARTER, matches("s0"), posed, easy, {"g0001-m00": filling}, 7, 1)
    assert len(drawn["g0001-m00"]) == 2  # of 8


def test_too_few_easy_tasks_are_all_posed() -> None:
    posed = tasks(*[("g0001-m00", "deduction", "valid", None)] * 6)
    drawn = recent_replays(HALF, matches("s0"), posed, [stored("old")], {}, 0, 1)
    assert [row["task_id"] for row in drawn["g0001-m00"]] == ["old"]
    assert recent_replays(HALF, matches("s0"), posed, [], {}, 0, 1) == {"g0001-m00": []}


def test_mixed_is_what_the_last_attempts_solved_in_part() -> None:
    first = tasks(*[("g0000-m00", "deduction", "valid", None)] * 4)
    names = first["task_id"].to_pylist()
    second = tasks(("g0001-m00", "deduction", "valid", None))
    (later,) = second["task_id"].to_pylist()
    before = (first, graded((names[0], "0110"), (names[1], "1111"), (names[2], "0100"), (names[3], "0000")))
    after = (second, graded((names[2], "1111"), (names[3], "0001"), ("of long ago", "01"), (later, "10")))
    assert mixed_tasks([before]) == [names[0], names[2]]
    assert mixed_tasks([before, after]) == [names[0], names[3], later]
    assert mixed_tasks([]) == []


def test_each_reason_has_its_share_and_its_own_draw() -> None:
    assert reasons(0.0, 0.8, 0.0) == []
    both = reasons(0.25, 0.8, 0.5)
    assert [(one.name, one.share) for one in both] == [("easy", 0.25), ("mixed", 0.5)]
    posed = tasks(*[("g0001-m00", "deduction", "valid", None)] * 2)
    old = [stored(f"old-{number}") for number in range(40)]
    easy, mixed = (recent_replays(one, matches("s0"), posed, old, {}, 7, 1)["g0001-m00"] for one in reasons(0.5, 0.8, 0.5))
    assert len(easy) == len(mixed) == 2 and easy != mixed
