"""A few columns and rows of a stored table, verified, without decoding the rest of it (token lists are most of a table)."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.run.run import Run
from flows.storage import Damaged, NotStored

BATCH = 8192


def parquet_file(data: bytes, name: str) -> pq.ParquetFile:
    """The table in bytes whose digest has been verified; rows are decoded when they are asked for. Raises Damaged."""
    try:
        return pq.ParquetFile(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise Damaged(name, f"not a Parquet file ({str(error).splitlines()[0]})") from error


def batches(file: pq.ParquetFile, columns: Sequence[str] | None, **equal: object) -> Iterator[pa.RecordBatch]:
    """Rows in which each column of `equal` has that value, with these columns (None: all)."""
    wanted = None if columns is None else list(dict.fromkeys([*columns, *equal]))
    for batch in file.iter_batches(BATCH, columns=wanted):
        for column, value in equal.items():
            batch = batch.filter(pc.equal(batch.column(column), value))
        yield batch


def rows(run: Run, uri: str, columns: Sequence[str] | None = None, **equal: object) -> list[dict]:
    """Those rows as plain values; none where no stage has written the table. Raises Damaged, or NotStored when it is gone."""
    try:
        ref = run.history.find(uri)
    except NotStored:
        return []
    file = parquet_file(run.read_blob(ref), f"{run.run_id}/{uri}")
    return [row for batch in batches(file, columns, **equal) for row in batch.to_pylist()]
