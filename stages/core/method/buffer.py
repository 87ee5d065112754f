"""The task buffer: what proposers are shown. One snapshot a generation, a pure function of the tables before it."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.prompts.styles import Kind, Triplet


def snapshot(seeds: pa.Table, earlier: Sequence[pa.Table], size: int, teacher_id: str | None = None) -> dict[Kind, list[dict]]:
    """The newest `size` stored tasks of each kind: seed rows, then TASKS of earlier generations, oldest first.

    Stored are valid tasks that repeat no earlier one and that no gate stopped. Absolute Zero Reasoner keeps the oldest rows
    when its cap is reached, and duplicates; we drop the oldest and the duplicates. `teacher_id` keeps only that teacher's
    own tasks beside the seeds.
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
    """The snapshot of each teacher: one shared by all, or with `own` one each."""
    if own:
        return {teacher: snapshot(seeds, earlier, size, teacher) for teacher in teachers}
    return dict.fromkeys(teachers, snapshot(seeds, earlier, size))


def triplet(row: dict) -> Triplet:
    """What a prompt shows of a stored deduction or abduction task."""
    return Triplet(row["program"], row["inputs"][0], row["outputs"][0])


def task_key(kind: str, program_key: str, inputs: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """What makes two tasks the same: kind, normalised program, and inputs."""
    return kind, program_key, tuple(text.strip() for text in inputs)
