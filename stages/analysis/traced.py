"""Metrics of the reward for traces: how far the traces of wrong deductions are right."""

import pyarrow as pa

from stages.core import tables
from stages.core.method.trace_reward import trace_shares
from stages.core.statistics.metric_rows import student_rows


def traced(rollouts: pa.Table, grades: pa.Table, traces: pa.Table) -> pa.Table:
    """Return METRICS of all students and of each: `solve.trace_share`, the share of the steps that a wrong deduction gets right.

    Answers of one task are one observation. Tasks whose run could not be recorded are left out.
    """
    shares = trace_shares(rollouts, grades, traces)
    rows = zip(*(rollouts[name].to_pylist() for name in ("rollout_id", "task_id", "student_id")), strict=True)
    found = [(shares[rollout_id], task_id, student) for rollout_id, task_id, student in rows if rollout_id in shares]
    return tables.table(student_rows("solve.trace_share", found), tables.METRICS)
