"""Stages that generate in parts: the members that a part is for, and how the parts' tables become one.

Propose, solve and benchmark have up to `engine.shards` parts, each for a share of the members that write, on a machine of its own
if need be. The number of shards is part of the run's identity: parts are the same wherever they run, and joined they stand in the
order that the whole stage would have written.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from flows.stages import stage_of
from stages.benchmark import Player
from stages.core import tables

WRITERS = {"teachers": "teacher_id", "students": "student_id"}
"""The column of `matches` that names whose work a stage's shards divide (`flows.stages.Stage.shards`)."""


def writer_column(stage: str) -> str:
    """The column of `matches` that names who writes in a stage sharded by its writers."""
    shards = stage_of(stage).shards
    assert shards in WRITERS, stage
    return WRITERS[shards]


def shard(members: Iterable[str], shards: int, part: str | None) -> list[str]:
    """Those of `members` that a part is for, in order and without repetitions; all of them where the stage runs whole."""
    listed = list(dict.fromkeys(members))
    if part is None:
        return listed
    count, number = min(shards, len(listed)), int(part)
    return listed[len(listed) * number // count : len(listed) * (number + 1) // count]


def own_matches(matches: pa.Table, stage: str, shards: int, part: str | None) -> pa.Table:
    """The matches whose writers a part is for."""
    column = matches[writer_column(stage)]
    wanted = shard(column.to_pylist(), shards, part)
    return matches.filter(pc.is_in(column, pa.array(wanted, pa.string())))


def joined_proposals(matches: pa.Table, parts: list[pa.Table]) -> pa.Table:
    """PROPOSALS match by match."""
    return _ordered(tables.join(parts, tables.PROPOSALS), {"match_id": matches["match_id"].to_pylist()})


def joined_rollouts(matches: pa.Table, tasks: pa.Table, parts: list[pa.Table]) -> pa.Table:
    """ROLLOUTS task by task as posed, replayed tasks last, match by match."""
    rollouts = tables.join(parts, tables.ROLLOUTS)
    posed = tasks["task_id"].to_pylist()
    fresh = pc.is_in(rollouts["task_id"], pa.array(posed, pa.string()))
    again = rollouts.filter(pc.invert(fresh))
    return tables.join(
        [_ordered(rollouts.filter(fresh), {"task_id": posed}), _ordered(again, {"match_id": matches["match_id"].to_pylist()})],
        tables.ROLLOUTS,
    )


def split_answers(parts: list[pa.Table], panels: list[list[Player]], rows_each: int) -> Iterator[pa.Table]:
    """The ANSWERS of each panel; a part holds `rows_each` rows for every player of its share, one panel after the other."""
    begins = [0] * len(parts)
    for players in panels:
        found = []
        for number, table in enumerate(parts):
            length = rows_each * len(own_players(players, len(parts), f"{number:02d}"))
            found.append(table.slice(begins[number], length))
            begins[number] += length
        answers = tables.join(found, tables.ANSWERS)
        yield _ordered(answers, {"greedy": [True, False], "member_id": [player.member_id for player in players]})


def own_players(players: list[Player], shards: int, part: str) -> list[Player]:
    """The players of a panel that one of `shards` parts is for; none where the panel has fewer players than that."""
    number = int(part)
    return players[len(players) * number // shards : len(players) * (number + 1) // shards]


def _ordered(table: pa.Table, orders: dict[str, list]) -> pa.Table:
    """Rows in the order in which the columns' values are listed, first column first; equal rows keep their order."""
    keys = []
    for column, order in orders.items():
        place = {value: number for number, value in enumerate(order)}
        keys.append([place[value] for value in table[column].to_pylist()])
    rows = sorted(range(table.num_rows), key=lambda row: [key[row] for key in keys])
    return table.take(pa.array(rows, pa.int64()))
