"""Invariant of the tasks in teachers' prompts: under `propose.references_from = mixed`, recent ones with mixed results."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from flows.config import RunConfig
from stages.core.earlier_tasks import StoredTasks
from stages.core.method.proposing import shown_from
from stages.core.method.recent_replay import mixed_tasks
from stages.core.prompts.styles import Kind


def reference_problems(
    found: Mapping[str, pa.Table],
    config: RunConfig,
    earlier: StoredTasks,
    recent: Sequence[tuple[pa.Table, pa.Table]] | None,
) -> Iterator[tuple[str, str]]:
    """Yield (table, problem) where a prompt shows a task that it may not show.

    `earlier` holds the tasks of every earlier generation, `recent` TASKS and GRADES of the last ones; None if they cannot be
    read.
    """
    if not config.propose.mixed_references or recent is None or "proposals" not in found:
        return
    rows = found["proposals"].select(["proposal_id", "teacher_id", "kind", "reference_ids"]).to_pylist()
    rule, teachers = config.propose, sorted({row["teacher_id"] for row in rows})
    mixed = mixed_tasks(recent, config.solve.mixed_rate)
    pools = earlier.mixed_snapshots(rule.buffer_size, teachers, rule.buffer == "own", mixed, rule.references)
    allowed = {
        (teacher, kind): {task_id for pool in shown_from(kind, own) for task_id in pool.task_ids()}
        for teacher, own in pools.items()
        for kind in Kind
    }
    odd = [row["proposal_id"] for row in rows if not set(row["reference_ids"]) <= allowed[row["teacher_id"], Kind(row["kind"])]]
    if odd:
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        yield "proposals", f"references that propose.references_from does not allow: {', '.join(odd[:3])}{more}"
