"""Metrics of the deduction for text behind an answer: how often students write on."""

import pyarrow as pa

from stages.core import tables
from stages.core.method.trailing_text import written_past
from stages.core.statistics.metric_rows import student_rows


def trailing(rollouts: pa.Table) -> pa.Table:
    """Return METRICS of all students and of each: `solve.trailing_share`, the share of attempts with text behind the answer.

    Answers of one task are one observation.
    """
    past = set(written_past(rollouts))
    rows = zip(*(rollouts[name].to_pylist() for name in ("rollout_id", "task_id", "student_id")), strict=True)
    found = [(float(rollout_id in past), task_id, student) for rollout_id, task_id, student in rows]
    return tables.table(student_rows("solve.trailing_share", found), tables.METRICS)
