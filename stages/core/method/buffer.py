"""The task buffer: the tasks shown to proposers. One snapshot per generation, a pure function of the earlier tables."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.prompts.styles import Kind, Triplet


def snapshot(seeds: pa.Table, earlier: Sequence[pa.Table], size: int, teacher_id: str | None = None) -> dict[Kind, list[dict]]:
    """Return the newest `size` stored tasks of each kind: seed rows, then TASKS of earlier generations, oldest first.

    A task is stored if it is valid, repeats no earlier one and no gate stopped it. When its cap is reached, Absolute Zero
    Reasoner keeps the oldest rows, and it keeps duplicates; we drop both. `teacher_id` keeps only that teacher's own tasks
    and the seeds.
    """
    rows = seeds.to_pylist()
    for tasks in earlier:
        stored = pc.and_(pc.and_(pc.equal(tasks["status"], "valid"), pc.invert(tasks["duplicate"])), pc.is_null(tasks["gate"]))
        kept = tasks.filter(stored)
        if teacher_id is not None:
            kept = kept.filter(pc.equal(kept["teacher_id"], teacher_id))
        rows += kept.select(tables.SEEDS.names).to_pylist()
    return {kind: [row for row in rows if row["kind"] == kind][-size:] for kind in Kind}


def snapshots(
    seeds: pa.Table, earlier: Sequence[pa.Table], size: int, teachers: Iterable[str], own: bool
) -> dict[str, dict[Kind, list[dict]]]:
    """Return the snapshot of each teacher: one shared by all, or with `own` one each."""
    if own:
        return {teacher: snapshot(seeds, earlier, size, teacher) for teacher in teachers}
    return dict.fromkeys(teachers, snapshot(seeds, earlier, size))


def triplet(row: dict) -> Triplet:
    """Return the part of a stored deduction or abduction task that a prompt shows."""
    return Triplet(row["program"], row["inputs"][0], row["outputs"][0])


def task_key(kind: str, program_key: str, inputs: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Return the key by which two tasks are the same: kind, normalised program, and inputs."""
    return kind, program_key, tuple(text.strip() for text in inputs)
