"""The browser's access to a run while a site is written: all rows of all tables are shown, so each table is decoded once."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from flows.pages.library import Library
from flows.pages.pedigree import Pedigree
from flows.run.manifest import Ref
from flows.run.run import Run
from flows.run.table_reader import TableFile, batch_rows
from flows.storage import Store

LARGEST = 64 << 20
"""Decoded bytes of a table that is kept; a larger one is decoded for each page, as in the browser."""
KEPT = 256 << 20


class DecodedTable:
    """A table in memory, read like a `pyarrow.parquet.ParquetFile`."""

    def __init__(self, table: pa.Table, metadata: Any) -> None:
        self._table = table
        self.schema_arrow, self.metadata, self.nbytes = table.schema, metadata, table.nbytes

    def iter_batches(self, batch_size: int, columns: Sequence[str] | None = None) -> Iterable[pa.RecordBatch]:
        """Return its rows in order, at most so many at once, with these columns (None: all)."""
        table = self._table if columns is None else self._table.select(list(columns))
        batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=batch_size)
        return batches


class SiteLibrary(Library):
    """A library that keeps decoded tables, the latest ones, up to `KEPT` bytes."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._tables: OrderedDict[str, DecodedTable] = OrderedDict()
        self._large: set[str] = set()
        self._pedigrees: dict[str, Pedigree] = {}

    def pedigree(self, run: Run) -> Pedigree:
        """Return the ancestry of the run's adapters, read once: the run is a snapshot."""
        if run.run_id not in self._pedigrees:
            self._pedigrees[run.run_id] = super().pedigree(run)
        return self._pedigrees[run.run_id]

    def parquet(self, run: Run, ref: Ref) -> TableFile:
        """Return the verified table: in memory, or decoded on request if it is large."""
        key = f"{ref.origin or run.run_id}/{ref.uri} {ref.sha256}"
        if key in self._tables:
            self._tables.move_to_end(key)
            return self._tables[key]
        file = super().parquet(run, ref)
        found = None if key in self._large else decoded(file)
        if found is None:
            self._large.add(key)
            return file
        self._tables[key] = found
        while sum(table.nbytes for table in self._tables.values()) > KEPT:
            self._tables.popitem(last=False)
        return found


def decoded(file: TableFile) -> DecodedTable | None:
    """Return the whole table in memory; None if it takes more than `LARGEST` bytes there, whatever it takes in the file."""
    parts, size = list[pa.RecordBatch](), 0
    for batch in file.iter_batches(batch_rows(file.schema_arrow, None)):
        parts.append(batch)
        size += batch.nbytes
        if size > LARGEST:
            return None
    return DecodedTable(pa.Table.from_batches(parts, file.schema_arrow), file.metadata)
