"""What a generation asks about the tasks before it: the known keys and covered cells (`SeenTasks`), the buffer (`StoredTasks`).

Both grow by segments: small tables, made of the TASKS of one generation or joined from the segments of several. Joined segments
equal the segment of all their tasks, so it does not matter in which pieces a process reads the past.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.judging.shapes import cell
from stages.core.method.buffer import task_digest
from stages.core.method.references import mixed_references
from stages.core.prompts.styles import Kind
from stages.core.statistics.novelty import HISTORY

Row = dict[str, Any]
_READ = ["kind", "program", "inputs", "program_key", "syntax", "value_types", "executed_lines"]


class SeenTasks:
    """The seeds and the valid tasks of earlier generations, as far as a new task is compared with them.

    Attributes:
        keys: What a new task must differ from: the digests of the seeds and of all valid tasks.
        valid: The number of valid tasks, without seeds.
        programs: Their program keys.
        cells: The cells of the problem space that they are in (`judging.shapes`).
        texts: The newest characters of their programs, which novelty by compression compares with.
    """

    def __init__(self, seeds: pa.Table, earlier: Iterable[pa.Table] = ()) -> None:
        rows = seeds.select(["kind", "program_key", "inputs"]).to_pylist()
        self.keys: set[str] = {task_digest(**row) for row in rows}
        self.valid, self.texts = 0, ""
        self.programs: set[str] = set()
        self.cells: set[str] = set()
        for tasks in earlier:
            self.add(keys_of(tasks))

    def add(self, keys: pa.Table) -> None:
        """Add the next EARLIER_KEYS."""
        self.keys.update(keys["key"].to_pylist())
        self.programs.update(keys["program_key"].to_pylist())
        self.cells.update(keys["cell"].drop_null().to_pylist())
        texts = keys["text"].drop_null().to_pylist()
        if texts:
            self.texts = "\n".join([self.texts, *texts] if self.valid else texts)[-HISTORY:]
        self.valid += keys.num_rows


class StoredTasks:
    """The tasks that prompts may show and batches may repeat, oldest first.

    A task is stored if it is valid, repeats no earlier one and no gate stopped it. Rows stay in their Arrow table until they are
    asked for: a prompt shows six of many thousands.
    """

    def __init__(self, seeds: pa.Table, earlier: Iterable[pa.Table] = ()) -> None:
        self._parts = [tables.conform(seeds.select(tables.SEEDS.names), tables.EARLIER_ROWS)]
        for tasks in earlier:
            self.add(rows_of(tasks))

    def add(self, rows: pa.Table) -> None:
        """Add the next EARLIER_ROWS."""
        self._parts.append(rows)

    def snapshot(
        self, size: int, teacher_id: str | None = None, among: Collection[str] | None = None
    ) -> dict[Kind, "StoredRows"]:
        """Return the buffer that proposers see: the newest `size` stored tasks of each kind, seed rows first, oldest first.

        When its cap is reached, Absolute Zero Reasoner keeps the oldest rows, and it keeps duplicates; we drop both. `teacher_id`
        keeps only that teacher's own tasks and the seeds, `among` only tasks with these ids.
        """
        table = self._joined()
        wanted = np.ones(table.num_rows, bool)
        if teacher_id is not None:
            wanted = pc.fill_null(pc.equal(table["teacher_id"], teacher_id), True).to_numpy()
        if among is not None:
            wanted = wanted & pc.is_in(table["task_id"], pa.array(list(among), pa.string())).to_numpy()
        kinds = {kind: pc.equal(table["kind"], str(kind)).to_numpy() & wanted for kind in Kind}
        return {kind: StoredRows(table, np.flatnonzero(mask)[-size:]) for kind, mask in kinds.items()}

    def snapshots(
        self, size: int, teachers: Iterable[str], own: bool, among: Collection[str] | None = None
    ) -> dict[str, dict[Kind, "StoredRows"]]:
        """Return the snapshot of each teacher: one shared by all, or with `own` one each."""
        if own:
            return {teacher: self.snapshot(size, teacher, among) for teacher in teachers}
        return dict.fromkeys(teachers, self.snapshot(size, among=among))

    def mixed_snapshots(
        self, size: int, teachers: Sequence[str], own: bool, mixed: Collection[str], references: int
    ) -> dict[str, dict[Kind, "StoredRows"]]:
        """Return what each teacher's prompts may show: the tasks in `mixed`, or for a kind with too few of them the snapshot."""
        whole, limited = (self.snapshots(size, teachers, own, among) for among in (None, mixed))
        return {teacher: mixed_references(whole[teacher], limited[teacher], references) for teacher in teachers}

    def rows(self, task_ids: Collection[str]) -> list[Row]:
        """Return the stored tasks with these ids, oldest first."""
        table = self._joined()
        chosen = pc.is_in(table["task_id"], pa.array(list(task_ids), pa.string()))
        return _plain(table.filter(chosen))

    def _joined(self) -> pa.Table:
        if len(self._parts) > 1:
            self._parts = [pa.concat_tables(self._parts).combine_chunks()]
        return self._parts[0]


class StoredRows(Sequence[Row]):
    """Rows of SEEDS, made when they are asked for."""

    def __init__(self, table: pa.Table, places: np.ndarray) -> None:
        self._table, self._places = table, places

    def __len__(self) -> int:
        return len(self._places)

    def task_ids(self) -> list[str]:
        """Return the ids of the rows, without making these."""
        ids: list[str] = self._table["task_id"].take(pa.array(self._places)).to_pylist()
        return ids

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> "StoredRows": ...

    def __getitem__(self, index: int | slice) -> "Row | StoredRows":
        if isinstance(index, slice):
            return StoredRows(self._table, self._places[index])
        return _plain(self._table.slice(int(self._places[index]), 1))[0]

    def __iter__(self) -> Iterator[Row]:
        return iter(_plain(self._table.take(pa.array(self._places))))


def keys_of(tasks: pa.Table) -> pa.Table:
    """Return the EARLIER_KEYS of a generation's TASKS."""
    rows = tasks.filter(pc.equal(tasks["status"], "valid")).select(_READ).to_pylist()
    return _recent(
        tables.table(
            (
                {
                    "key": task_digest(row["kind"], row["program_key"], row["inputs"]),
                    "program_key": row["program_key"],
                    "cell": cell(row),
                    "text": row["program"],
                }
                for row in rows
            ),
            tables.EARLIER_KEYS,
        )
    )


def rows_of(tasks: pa.Table) -> pa.Table:
    """Return the EARLIER_ROWS of a generation's TASKS."""
    kept = pc.and_(pc.equal(tasks["status"], "valid"), pc.and_(pc.invert(tasks["duplicate"]), pc.is_null(tasks["gate"])))
    return tables.conform(tasks.filter(kept).select(tables.EARLIER_ROWS.names), tables.EARLIER_ROWS)


def joined_keys(segments: Sequence[pa.Table]) -> pa.Table:
    """Return the EARLIER_KEYS of all tasks in these segments, oldest first."""
    return _recent(tables.join(segments, tables.EARLIER_KEYS))


def joined_rows(segments: Sequence[pa.Table]) -> pa.Table:
    """Return the EARLIER_ROWS of all tasks in these segments, oldest first."""
    return tables.join(segments, tables.EARLIER_ROWS)


def _recent(keys: pa.Table) -> pa.Table:
    """Keep the texts of the newest rows: as many as hold HISTORY characters when they are joined by line ends."""
    texts, first, length = keys["text"], keys.num_rows, -1
    while first and length < HISTORY:
        first -= 1
        length += len(texts[first].as_py()) + 1
    kept = pa.concat_arrays([pa.nulls(first, pa.string()), texts.combine_chunks().slice(first)]) if first else texts
    return tables.conform(keys.set_column(keys.schema.get_field_index("text"), "text", kept), tables.EARLIER_KEYS)


def _plain(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.select(tables.SEEDS.names).to_pylist()
    return rows
