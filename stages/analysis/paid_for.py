"""Metrics of what teachers are paid for: answers that can be guessed, and attempts that ran out of tokens."""

import re
from collections.abc import Collection, Iterator

import pyarrow as pa

from stages.core import tables
from stages.core.method.leak import admitted
from stages.core.statistics.estimates import only
from stages.core.statistics.metric_rows import Row, value_row

_FEW = re.compile(r"True|False|None|-?[0-7]")
"""Values that chance finds often: a student that cannot compute them is right now and then, and 1 - s stays high."""


def paid_for(tasks: pa.Table, rollouts: pa.Table, samples: pa.Table) -> pa.Table:
    """Return METRICS of all teachers and of each: the shares of their positive rewards that two kinds of tasks earned.

    `reward.guessable_share` is that of valid tasks whose first output is a bool, None or an int from -7 to 7, and
    `reward.cut_off_share` that of tasks with an attempt that the length limit ended. NaN where nothing was earned; no rows where
    no teacher wrote.
    """
    rows = zip(tasks["task_id"].to_pylist(), tasks["outputs"].to_pylist(), admitted(tasks), strict=True)
    guessable = {task_id for task_id, outputs, claimed in rows if outputs and not claimed and _FEW.fullmatch(outputs[0])}
    cut_off = set(only(rollouts, truncated=True)["task_id"].to_pylist())
    teachers = only(samples, role="teacher")
    read = (teachers[name].to_pylist() for name in ("member_id", "sample_id", "reward"))
    if not teachers.num_rows:
        return tables.METRICS.empty_table()
    paid = [(member, task_id, reward) for member, task_id, reward in zip(*read, strict=True) if reward > 0]
    shares = [*_shares("reward.guessable_share", paid, guessable), *_shares("reward.cut_off_share", paid, cut_off)]
    return tables.table(shares, tables.METRICS)


def _shares(name: str, paid: list[tuple[str, str, float]], counted: Collection[str]) -> Iterator[Row]:
    """Yield the share that the counted tasks earned of all pay, and of each teacher's."""
    for member in (None, *sorted({member for member, _, _ in paid})):
        own = [(task_id, reward) for one, task_id, reward in paid if member in (None, one)]
        total = sum(reward for _, reward in own)
        share = sum(reward for task_id, reward in own if task_id in counted) / total if total else float("nan")
        yield value_row(name, share, len(own), member_id=member, role="teacher")
