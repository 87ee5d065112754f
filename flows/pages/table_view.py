"""One page of a table: filtered, sorted, fifty rows at a time. Only the filter and sort columns are read completely."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.pages.bad_request import BadRequest
from flows.run.table_reader import TableFile, batch_rows, holds
from flows.storage import NotStored
from stages.core.number_text import MINUS

ROWS = 50
SORTED_BYTES = 32 << 20  # bytes of the column by which rows are sorted
TOKENS = ("prompt_ids", "completion_ids", "logprobs")
NULL = "–"
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")


@dataclass(frozen=True)
class TableQuery:
    """What the address requests of a table: page `page` of the rows in which `column` has `value`, sorted by `sort`."""

    column: str = ""
    value: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 1


@dataclass(frozen=True)
class TablePage:
    """A page of a table. `rows` are (number in the file, values). Token lists are replaced by their lengths."""

    columns: list[str]
    sortable: list[str]
    total: int
    found: int
    pages: int
    rows: list[tuple[int, dict[str, Any]]]


def view(file: TableFile, asked: TableQuery) -> TablePage:
    """Return the requested rows. Raises BadRequest for an unknown column, or a value that the column cannot have."""
    schema = file.schema_arrow
    order = _order(file, schema, asked)
    pages = max(1, -(-len(order) // ROWS))
    if not 1 <= asked.page <= pages:
        raise BadRequest(f"There is no page {asked.page}: the requested rows fill {pages}.")
    chosen = order[(asked.page - 1) * ROWS : asked.page * ROWS]
    values = rows_at(file, chosen.tolist(), lengths=True)
    numbered = list(zip(chosen.tolist(), values, strict=True))
    return TablePage(schema.names, _sortable(schema), file.metadata.num_rows, len(order), pages, numbered)


def row(file: TableFile, number: int) -> dict[str, Any]:
    """Return one complete row. Raises NotStored if the table has no such row."""
    if not 0 <= number < file.metadata.num_rows:
        raise NotStored(f"There is no row {number}: the table has {file.metadata.num_rows:,} rows, counted from 0.")
    return rows_at(file, [number])[0]


def rows_at(file: TableFile, numbers: list[int], lengths: bool = False) -> list[dict[str, Any]]:
    """Return rows by number, in that order. With `lengths`, token lists are replaced by their lengths."""
    found: dict[int, dict[str, Any]] = {}
    wanted = sorted(numbers)
    for start, batch in _batches(file, None, wanted[-1] + 1 if wanted else 0):
        inside = [number for number in wanted if start <= number < start + batch.num_rows]
        if inside:
            taken = batch.take(pa.array([number - start for number in inside]))
            found |= dict(zip(inside, (_shortened(taken) if lengths else taken).to_pylist(), strict=True))
    return [found[number] for number in numbers]


def _batches(file: TableFile, columns: list[str] | None, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number of its first row, batch), up to row `stop`."""
    start = 0
    if stop == 0:
        return
    for batch in file.iter_batches(batch_rows(file.schema_arrow, columns), columns=columns):
        yield start, batch
        start += batch.num_rows
        if start >= stop:
            return


def _shortened(batch: pa.RecordBatch) -> pa.RecordBatch:
    for place, name in enumerate(batch.schema.names):
        if name in TOKENS:
            batch = batch.set_column(place, name, pc.list_value_length(batch.column(name)))
    return batch


def _order(file: TableFile, schema: pa.Schema, asked: TableQuery) -> np.ndarray:
    """Return the numbers of the matching rows, in the requested order."""
    for name in (asked.column, asked.sort):
        if name and name not in schema.names:
            raise BadRequest(f"The table has no column {name[:60]!r}. Columns: {', '.join(schema.names)}.")
    if asked.sort and asked.sort not in _sortable(schema):
        raise BadRequest(f"Column {asked.sort} contains lists: rows cannot be sorted by it.")
    total = file.metadata.num_rows
    if not asked.column and not asked.sort:
        return np.arange(total)
    found, keys, size = [np.arange(0)], [], 0
    for start, batch in _batches(file, list(dict.fromkeys(filter(None, (asked.column, asked.sort)))), total):
        fits = np.flatnonzero(_fits(batch.column(asked.column), asked)) if asked.column else np.arange(batch.num_rows)
        found.append(start + fits)
        if asked.sort:
            keys.append(batch.column(asked.sort).take(pa.array(fits)))
            size += keys[-1].nbytes
        if size > SORTED_BYTES:
            raise BadRequest(f"Column {asked.sort} is too large to sort all these rows by it; filter them first.")
    order = np.concatenate(found)
    if asked.sort and len(order):
        # Not sort_indices: equal keys must keep their order in both sort directions.
        ranks = pc.rank(pa.chunked_array(keys), "descending" if asked.descending else "ascending", tiebreaker="min")
        order = order[np.argsort(ranks.to_numpy(), kind="stable")]
    return order


def _fits(column: pa.Array, asked: TableQuery) -> np.ndarray:
    """Return which rows have the value; for lists, which contain it."""
    if asked.value == NULL:
        return np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False))
    if pa.types.is_list(column.type):
        return np.asarray(holds(column, _read(asked, column.type.value_type)).to_numpy(zero_copy_only=False))
    equal = pc.fill_null(pc.equal(column, pa.scalar(_read(asked, column.type), column.type)), False)
    return np.asarray(equal.to_numpy(zero_copy_only=False))


def _read(asked: TableQuery, kind: pa.DataType) -> Any:
    """Return the value in the column's type."""
    try:
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False}[asked.value.lower()]
        if pa.types.is_integer(kind):
            return pa.scalar(int(_typed(asked.value)), kind).as_py()
        if pa.types.is_floating(kind):
            return float(_typed(asked.value))
        asked.value.encode()
    except (KeyError, ValueError, OverflowError, pa.ArrowException):
        raise BadRequest(f"Column {asked.column} contains {kind} values; {asked.value[:60]!r} is invalid.") from None
    return asked.value


def _typed(number: str) -> str:
    """Return a number that was copied from a page as it would be typed. A decimal comma stays, which no number has."""
    plain = number.strip().replace(MINUS, "-")
    return plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain


def _sortable(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if not pa.types.is_list(field.type)]
