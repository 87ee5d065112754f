"""A few columns and rows of a stored table, verified, without decoding the rest of it (token lists are most of a table)."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.run.run import Run
from flows.run.verified import Reader, open_verified
from flows.storage import Damaged, NotStored

NARROW, WIDE = 65_536, 512  # rows decoded at once: of plain values, and with texts or lists among them
BUFFER = 1 << 18


class TableFile(Protocol):
    """A table whose rows are decoded on request: a `pyarrow.parquet.ParquetFile`, or something that reads like one."""

    schema_arrow: pa.Schema
    metadata: Any
    """`metadata.num_rows`."""

    def iter_batches(self, batch_size: int, columns: Sequence[str] | None = None) -> Iterable[pa.RecordBatch]:
        """Yield its rows in order, at most so many at once, with these columns (None: all)."""
        ...


def parquet_file(source: bytes | Reader, name: str) -> pq.ParquetFile:
    """Open the table in verified bytes or a verified file; rows are decoded on demand. Raises Damaged."""
    where = pa.BufferReader(source) if isinstance(source, bytes) else pa.PythonFile(source, mode="r")
    try:
        return pq.ParquetFile(where, buffer_size=BUFFER, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(name, f"not a Parquet file ({str(error).splitlines()[0]})") from error


def batch_rows(schema: pa.Schema, columns: Sequence[str] | None) -> int:
    """Return how many rows to decode at once, so that a long table with long texts takes no more memory than a short one."""
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    wanted = schema.names if columns is None else columns
    return NARROW if all(any(one(schema.field(name).type) for one in plain) for name in wanted) else WIDE


def batches(
    file: TableFile, columns: Sequence[str] | None, contains: Mapping[str, str] | None = None, **equal: object
) -> Iterator[pa.RecordBatch]:
    """Yield rows in which each column of `equal` has that value (or one of a list), with these columns (None: all).

    `contains` names text columns that contain the value, or list columns that have it as an element. A table of an earlier
    version may lack some of `columns`; its rows are without them.
    """
    contains = contains or {}
    known = file.schema_arrow.names
    wanted = None if columns is None else [name for name in dict.fromkeys([*columns, *contains, *equal]) if name in known]
    for batch in file.iter_batches(batch_rows(file.schema_arrow, wanted), columns=wanted):
        for column, value in equal.items():
            batch = batch.filter(_equal(batch.column(column), value))
        for column, text in contains.items():
            batch = batch.filter(holds(batch.column(column), text))
        if batch.num_rows:
            yield batch


def holds(column: pa.Array, value: object) -> pa.Array:
    """Return which texts contain the value, or which lists have it as an element."""
    if not pa.types.is_list(column.type):
        return pc.fill_null(pc.match_substring(column, value), False)
    mask = np.zeros(len(column), dtype=bool)
    same = pc.fill_null(pc.equal(pc.list_flatten(column), pa.scalar(value, column.type.value_type)), False)
    mask[pc.list_parent_indices(column).filter(same).to_numpy()] = True
    return pa.array(mask)


def rows(run: Run, uri: str, columns: Sequence[str] | None = None, **equal: object) -> list[dict]:
    """Return those rows as plain values; empty if no stage has written the table. Raises Damaged, or NotStored if it is gone."""
    try:
        ref = run.history.find(uri)
    except NotStored:
        return []
    with open_verified(run, ref) as opened:
        file = parquet_file(Reader(opened), f"{run.run_id}/{uri}")
        return [row for batch in batches(file, columns, None, **equal) for row in batch.to_pylist()]


def _equal(column: pa.Array, value: object) -> pa.Array:
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return pc.is_in(column, pa.array(list(value), column.type))
    return pc.equal(column, value)
