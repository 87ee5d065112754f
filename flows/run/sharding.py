"""A benchmark in parts: each scores a share of the contestants, and the parts' answers are joined in the panels' order.

Propose and solve are cut by completions, see stages.core.shards. The number of shards is part of the run's identity: parts are
the same wherever they run.
"""

from collections.abc import Iterator

import pyarrow as pa

from stages.core import tables
from stages.core.suites.scores import Contestant


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
