"""Metrics of the gate experiment: how many wrong verdicts passed. docs/metrics.md says which metrics count true verdicts."""

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.method.leak import admitted
from stages.core.statistics.condensed import CLUSTER, clusters
from stages.core.statistics.metric_rows import mean_row


def leaked(proposals: pa.Table, tasks: pa.Table, grades: pa.Table, paid: pa.Table) -> pa.Table:
    """Return METRICS of what passed in a generation: `grades` as the judge found them, `paid` as they were paid.

    `leak.tasks` is the share of invalid proposals that were posed, `leak.posed` the share of posed tasks that are invalid, and
    `leak.answers` the share of readable answers that were rejected, but paid. Proposals from one prompt are one observation, and
    so are answers of one task.
    """
    prompts = clusters(proposals.select(CLUSTER).to_pylist())
    written = [prompts.get(name, name) for name in tasks["task_id"].to_pylist()]
    rows = list(zip(written, tasks["status"].to_pylist(), tasks["gate"].to_pylist(), admitted(tasks), strict=True))
    invalid = [(one, prompt) for prompt, status, _, one in rows if status != "valid"]
    posed = [(one, prompt) for prompt, status, gate, one in rows if one or (status == "valid" and gate is None)]
    rejected = pc.and_(pc.invert(grades["correct"]), pc.not_equal(grades["status"], "format"))
    through = paid.filter(rejected)
    found = [
        mean_row("leak.tasks", *_columns(invalid)),
        mean_row("leak.posed", *_columns(posed)),
        mean_row("leak.answers", through["correct"].to_pylist(), through["task_id"].to_pylist()),
    ]
    return tables.table(found, tables.METRICS)


def _columns(pairs: list[tuple[bool, str]]) -> tuple[list[bool], list[str]]:
    return [value for value, _ in pairs], [cluster for _, cluster in pairs]
