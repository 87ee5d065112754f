"""Stages that generate in parts: the members of each part, and how the parts' tables are joined.

Propose, solve and benchmark have up to `engine.shards` parts, each for a share of the members that write, on separate machines if
needed. The number of shards is part of the run's identity: parts are the same wherever they run, and joined they have the order
that the whole stage would have written.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from flows.stages import stage_of
from stages.core import tables
from stages.core.suites.scores import Contestant

WRITERS = {"teachers": "teacher_id", "students": "student_id"}
"""The column of `matches` by which a stage is sharded, by its value of `flows.stages.Stage.shards`."""


def writer_column(stage: str) -> str:
    """Return the column of `matches` with the members that generate in this stage."""
    shards = stage_of(stage).shards
    assert shards in WRITERS, stage
    return WRITERS[shards]


def shard(members: Iterable[str], shards: int, part: str | None) -> list[str]:
    """Return the `members` of a part, in order and without repetitions; all of them if the stage is not sharded."""
    listed = list(dict.fromkeys(members))
    if part is None:
        return listed
    count, number = min(shards, len(listed)), int(part)
    return listed[len(listed) * number // count : len(listed) * (number + 1) // count]


def own_matches(matches: pa.Table, stage: str, shards: int, part: str | None) -> pa.Table:
    """Return the matches whose writers belong to a part."""
    column = matches[writer_column(stage)]
    wanted = shard(column.to_pylist(), shards, part)
    return matches.filter(pc.is_in(column, pa.array(wanted, pa.string())))


def joined_proposals(matches: pa.Table, parts: list[pa.Table]) -> pa.Table:
    """Return PROPOSALS match by match."""
    return _ordered(tables.join(parts, tables.PROPOSALS), {"match_id": matches["match_id"].to_pylist()})


def joined_rollouts(matches: pa.Table, tasks: pa.Table, parts: list[pa.Table]) -> pa.Table:
    """Return ROLLOUTS task by task as posed, replayed tasks last, match by match."""
    rollouts = tables.join(parts, tables.ROLLOUTS)
    posed = tasks["task_id"].to_pylist()
    fresh = pc.is_in(rollouts["task_id"], pa.array(posed, pa.string()))
    again = rollouts.filter(pc.invert(fresh))
    return tables.join(
        [_ordered(rollouts.filter(fresh), {"task_id": posed}), _ordered(again, {"match_id": matches["match_id"].to_pylist()})],
        tables.ROLLOUTS,
    )


def split_answers(parts: list[pa.Table], panels: list[list[Contestant]], rows_each: int) -> Iterator[pa.Table]:
    """Yield the ANSWERS of each panel; a part has `rows_each` rows per contestant of its share, one panel after the other."""
    begins = [0] * len(parts)
    for contestants in panels:
        found = []
        for number, table in enumerate(parts):
            length = rows_each * len(own_contestants(contestants, len(parts), f"{number:02d}"))
            found.append(table.slice(begins[number], length))
            begins[number] += length
        answers = tables.join(found, tables.ANSWERS)
        yield _ordered(answers, {"greedy": [True, False], "member_id": [one.member_id for one in contestants]})


def own_contestants(contestants: list[Contestant], shards: int, part: str) -> list[Contestant]:
    """Return the contestants of a panel that belong to one of `shards` parts; empty if the panel has fewer than that."""
    number = int(part)
    return contestants[len(contestants) * number // shards : len(contestants) * (number + 1) // shards]


def _ordered(table: pa.Table, orders: dict[str, list]) -> pa.Table:
    """Return rows in the order in which the columns' values are listed, first column first; equal rows keep their order."""
    keys = []
    for column, order in orders.items():
        place = {value: number for number, value in enumerate(order)}
        keys.append([place[value] for value in table[column].to_pylist()])
    rows = sorted(range(table.num_rows), key=lambda row: [key[row] for key in keys])
    return table.take(pa.array(rows, pa.int64()))
