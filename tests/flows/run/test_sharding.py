"""Parts of a generating stage: every writer in one of them, and joined they stand as the whole stage would have written."""

from typing import Any

import pyarrow as pa
import pytest

from flows.run import sharding
from stages.core import tables
from stages.core.suites.scores import Contestant

TEACHERS = ["t0", "t1", "t2", "t3", "t4"]
BLANK = {"string": "", "int64": 0, "double": 0.0, "bool": False}


def rows(schema: pa.Schema, *known: dict[str, Any]) -> pa.Table:
    """Rows of a table with what matters filled in."""

    def blank(field: pa.Field) -> Any:
        return [] if pa.types.is_list(field.type) else BLANK.get(str(field.type), 0)

    return tables.table([{field.name: blank(field) for field in schema} | one for one in known], schema)


MATCHES = rows(
    tables.MATCHES,
    *({"match_id": f"m{number}", "teacher_id": name, "student_id": f"s{number % 3}"} for number, name in enumerate(TEACHERS)),
)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_every_writer_is_in_one_part_and_no_part_is_empty(count: int) -> None:
    parts = [sharding.shard(TEACHERS, count, f"{number:02d}") for number in range(min(count, len(TEACHERS)))]
    assert [name for part in parts for name in part] == TEACHERS
    assert all(parts) and max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sharding.shard(TEACHERS, count, None) == TEACHERS


def test_a_part_has_all_matches_of_its_students() -> None:
    found = [sharding.own_matches(MATCHES, "solve", 2, part)["match_id"].to_pylist() for part in ("00", "01")]
    assert found == [["m0", "m3"], ["m1", "m2", "m4"]]


def test_proposals_of_parts_stand_match_by_match() -> None:
    whole = rows(tables.PROPOSALS, *({"proposal_id": f"m{m}-p{p}", "match_id": f"m{m}"} for m in range(5) for p in range(3)))
    cut = [whole.slice(0, 6), whole.slice(6)]
    assert sharding.joined_proposals(MATCHES, cut).equals(whole)
    assert sharding.joined_proposals(MATCHES, cut[::-1]).equals(whole)


def test_rollouts_of_parts_stand_task_by_task_and_replays_last() -> None:
    tasks = rows(tables.TASKS, *({"task_id": f"t{n}", "match_id": f"m{n % 5}"} for n in range(6)))
    posed = [{"rollout_id": f"t{n}-r{a}", "task_id": f"t{n}", "match_id": f"m{n % 5}"} for n in range(6) for a in range(2)]
    again = [{"rollout_id": f"m{m}-old-r0", "task_id": "old", "match_id": f"m{m}"} for m in range(5)]
    whole = rows(tables.ROLLOUTS, *posed, *again)
    parts = []
    for part in ("00", "01", "02"):
        own = set(sharding.own_matches(MATCHES, "solve", 3, part)["match_id"].to_pylist())
        parts.append(rows(tables.ROLLOUTS, *(one for one in [*posed, *again] if one["match_id"] in own)))
    assert sharding.joined_rollouts(MATCHES, tasks, parts).equals(whole)


def test_answers_of_parts_go_to_their_panels() -> None:
    def answers(contestants: list[Contestant]) -> list[dict[str, Any]]:
        named = [(player, greedy) for greedy in (True, False) for player in contestants]
        return [
            {"member_id": p.member_id, "adapter_id": p.adapter_id, "greedy": g, "problem_id": q} for p, g in named for q in "xy"
        ]

    panels = [[Contestant(f"s{n}", "student", f"s{n}-g{g}", "sha") for n in range(size)] for g, size in ((1, 3), (2, 1))]
    parts = []
    for part in ("00", "01"):
        mine = [sharding.own_contestants(contestants, 2, part) for contestants in panels]
        parts.append(tables.join([rows(tables.ANSWERS, *answers(contestants)) for contestants in mine], tables.ANSWERS))
    found = list(sharding.split_answers(parts, panels, rows_each=4))
    assert len(found) == 2
    for table, contestants in zip(found, panels, strict=True):
        assert table.equals(rows(tables.ANSWERS, *answers(contestants)))
