"""Metrics of the deduction for text behind an answer: how often students write on."""

import pyarrow as pa

from stages.core import tables
from stages.core.method.trailing_text import written_past
from stages.core.statistics.metric_rows import mean_row


def trailing(rollouts: pa.Table) -> pa.Table:
    """Return METRICS of all students and of each: `solve.trailing_share`, the share of attempts with text behind the answer.

    Answers of one task are one observation.
    """
    past = set(written_past(rollouts))
    rows = zip(*(rollouts[name].to_pylist() for name in ("rollout_id", "task_id", "student_id")), strict=True)
    found = [(float(rollout_id in past), task_id, student) for rollout_id, task_id, student in rows]
    measured = [_mean(found, None)]
    for student in sorted({student for _, _, student in found}):
        measured.append(_mean([one for one in found if one[2] == student], student))
    return tables.table(measured, tables.METRICS)


def _mean(found: list[tuple[float, str, str]], student: str | None) -> dict:
    role = None if student is None else "student"
    return mean_row("solve.trailing_share", [share for share, _, _ in found], [task for _, task, _ in found], student, role)
