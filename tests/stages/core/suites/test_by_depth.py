"""Scores by kind and depth: greedy, given form, pass@k, and groups without a signal."""

import pytest

from flows.benchmarks.score_text import depths_text
from stages.core import tables
from stages.core.suites.by_depth import depth_scores

RIGHT, WRONG, LOST = "correct", "wrong", "format"
GREEDY = {"p0": RIGHT, "p1": WRONG, "p2": LOST}
SAMPLED = {"p0": [RIGHT] * 8, "p1": [WRONG] * 8, "p2": [RIGHT, *[LOST] * 7]}


def answers(depth: int = 3, sampled: bool = True) -> list[dict[str, object]]:
    fixed = {"suite": "staircase-dev", "member_id": "s0", "adapter_id": "s0-start", "adapter_sha256": "0" * 64}
    fixed |= {"kind": "deduction", "band": depth, "text": ""}
    rows = []
    for problem, greedy in GREEDY.items():
        for attempt, status in enumerate([greedy, *(SAMPLED[problem] if sampled else [])]):
            row = {"problem_id": f"{problem}-{depth}", "attempt": attempt, "greedy": attempt == 0, "status": status}
            rows.append(fixed | row | {"correct": status == RIGHT, "answer": None if status == LOST else "1"})
    return rows


def test_a_depth_s_scores() -> None:
    (found,) = depth_scores(tables.table(answers(), tables.ANSWERS))
    assert (found.kind, found.depth, found.problems) == ("deduction", 3, 3)
    assert found.greedy is not None and found.greedy.mean == pytest.approx(1 / 3)
    assert (found.formed, found.right_of_formed) == (pytest.approx(2 / 3), 1 / 2)
    assert {k: one.mean for k, one in found.pass_at.items()} == {1: pytest.approx(9 / 24), 8: pytest.approx(2 / 3)}
    assert (found.all_wrong, found.all_right) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_a_prompt_without_room_has_no_answer_and_so_no_form() -> None:
    rows = [row | ({"status": "too_long"} if row["status"] == LOST else {}) for row in answers()]
    (found,) = depth_scores(tables.table(rows, tables.ANSWERS))
    assert (found.formed, found.right_of_formed) == (pytest.approx(2 / 3), 1 / 2)


def test_the_text_has_a_line_a_depth_and_dashes_where_nothing_was_sampled() -> None:
    text = depths_text(tables.table(answers(3) + answers(7, sampled=False), tables.ANSWERS)).splitlines()
    assert text[0] == "s0-start, deduction" and len(text) == 4
    assert text[2].split() == ["3", "3", "33.3", "33.3", "66.7", "50.0", "37.5", "66.7", "66.7", "33.3"]
    assert text[3].split()[:2] == ["7", "3"] and text[3].split()[-4:] == ["-"] * 4
