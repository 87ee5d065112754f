"""Metrics of the gate experiment: how many wrong verdicts passed. docs/metrics.md says which metrics count true verdicts."""

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.method.leak import admitted
from stages.core.statistics.metric_rows import mean_row


def leaked(tasks: pa.Table, grades: pa.Table, paid: pa.Table) -> pa.Table:
    """Return METRICS of what passed in a generation: `grades` as the judge found them, `paid` as they were paid.

    `leak.tasks` is the share of invalid proposals that were posed, `leak.posed` the share of posed tasks that are invalid, and
    `leak.answers` the share of readable answers that were rejected, but paid. Answers of one task are one observation.
    """
    passed = admitted(tasks)
    statuses = zip(tasks["status"].to_pylist(), tasks["gate"].to_pylist(), passed, strict=True)
    invalid = [one for one, status in zip(passed, tasks["status"].to_pylist(), strict=True) if status != "valid"]
    posed = [one for status, gate, one in statuses if one or (status == "valid" and gate is None)]
    rejected = pc.and_(pc.invert(grades["correct"]), pc.not_equal(grades["status"], "format"))
    through = paid.filter(rejected)
    rows = [
        mean_row("leak.tasks", invalid),
        mean_row("leak.posed", posed),
        mean_row("leak.answers", through["correct"].to_pylist(), through["task_id"].to_pylist()),
    ]
    return tables.table(rows, tables.METRICS)
