"""Everything that a generation asks about the tasks before it: the buffer, the known keys, the covered cells. Grows by `add`."""

from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.judging.shapes import cell
from stages.core.method.buffer import task_key
from stages.core.prompts.styles import Kind
from stages.core.statistics.novelty import HISTORY

TaskKey = tuple[str, str, tuple[str, ...]]
Row = dict[str, Any]
_READ = [*tables.SEEDS.names, "teacher_id", "duplicate", "gate", "syntax", "value_types", "executed_lines"]


class EarlierTasks:
    """The seeds and the valid tasks of the generations added so far, oldest first. A generation costs only what it adds.

    Attributes:
        keys: What a new task must differ from: the keys of the seeds and of all valid tasks.
        valid: The number of valid tasks, without seeds.
        programs: Their program keys.
        cells: The cells of the problem space that they are in (`judging.shapes`).
        texts: The newest characters of their programs, which novelty by compression compares with.
    """

    def __init__(self, seeds: pa.Table, earlier: Iterable[pa.Table] = ()) -> None:
        rows = seeds.select(tables.SEEDS.names).to_pylist()
        self.keys: set[TaskKey] = {_key(row) for row in rows}
        self.valid, self.texts = 0, ""
        self.programs: set[str] = set()
        self.cells: set[str] = set()
        self._stored: list[tuple[str | None, Row]] = [(None, row) for row in rows]
        for tasks in earlier:
            self.add(tasks)

    def add(self, tasks: pa.Table) -> None:
        """Add the TASKS of the next generation."""
        rows = tasks.filter(pc.equal(tasks["status"], "valid")).select(_READ).to_pylist()
        self.keys |= {_key(row) for row in rows}
        self.programs |= {row["program_key"] for row in rows}
        self.cells |= {place for row in rows if (place := cell(row)) is not None}
        programs = [row["program"] for row in rows]
        self.texts = "\n".join([self.texts, *programs] if self.valid else programs)[-HISTORY:] if programs else self.texts
        self.valid += len(rows)
        kept = [row for row in rows if not row["duplicate"] and row["gate"] is None]
        self._stored += [(row["teacher_id"], {name: row[name] for name in tables.SEEDS.names}) for row in kept]

    def snapshot(self, size: int, teacher_id: str | None = None) -> dict[Kind, list[Row]]:
        """Return the buffer that proposers see: the newest `size` stored tasks of each kind, seed rows first, oldest first.

        A task is stored if it is valid, repeats no earlier one and no gate stopped it. When its cap is reached, Absolute Zero
        Reasoner keeps the oldest rows, and it keeps duplicates; we drop both. `teacher_id` keeps only that teacher's own tasks
        and the seeds.
        """
        found: dict[Kind, list[Row]] = {kind: [] for kind in Kind}
        for teacher, row in self._stored:
            if teacher_id is None or teacher is None or teacher == teacher_id:
                found[Kind(row["kind"])].append(row)
        return {kind: rows[-size:] for kind, rows in found.items()}

    def snapshots(self, size: int, teachers: Iterable[str], own: bool) -> dict[str, dict[Kind, list[Row]]]:
        """Return the snapshot of each teacher: one shared by all, or with `own` one each."""
        if own:
            return {teacher: self.snapshot(size, teacher) for teacher in teachers}
        return dict.fromkeys(teachers, self.snapshot(size))

    def rows(self, task_ids: Collection[str]) -> list[Row]:
        """Return the stored tasks with these ids, oldest first."""
        return [row for _, row in self._stored if row["task_id"] in task_ids]


def _key(row: Row) -> TaskKey:
    return task_key(row["kind"], row["program_key"], row["inputs"])
