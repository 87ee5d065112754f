"""A benchmark in parts: joined, the answers stand as the whole stage would have written them."""

from typing import Any

import pyarrow as pa

from flows.benchmarks import schedule
from stages.core import tables
from stages.core.suites.scores import Contestant

BLANK = {"string": "", "int64": 0, "double": 0.0, "bool": False}


def rows(schema: pa.Schema, *known: dict[str, Any]) -> pa.Table:
    """Rows of a table with what matters filled in."""

    def blank(field: pa.Field) -> Any:
        return [] if pa.types.is_list(field.type) else BLANK.get(str(field.type), 0)

    return tables.table([{field.name: blank(field) for field in schema} | one for one in known], schema)


def test_answers_of_parts_go_to_their_panels() -> None:
    def answers(contestants: list[Contestant]) -> list[dict[str, Any]]:
        named = [(player, greedy) for greedy in (True, False) for player in contestants]
        return [
            {"member_id": p.member_id, "adapter_id": p.adapter_id, "greedy": g, "problem_id": q} for p, g in named for q in "xy"
        ]

    panels = [[Contestant(f"s{n}", "student", f"s{n}-g{g}", "sha") for n in range(size)] for g, size in ((1, 3), (2, 1))]
    parts = []
    for part in ("00", "01"):
        mine = [schedule.own_contestants(contestants, 2, part) for contestants in panels]
        parts.append(tables.join([rows(tables.ANSWERS, *answers(contestants)) for contestants in mine], tables.ANSWERS))
    found = list(schedule.split_answers(parts, panels, rows_each=4))
    assert len(found) == 2
    for table, contestants in zip(found, panels, strict=True):
        assert table.equals(rows(tables.ANSWERS, *answers(contestants)))
