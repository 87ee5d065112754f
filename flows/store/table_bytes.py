"""Tables as bytes of Parquet: equal tables give equal bytes, and what no stage wrote is refused before it is decoded."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet as pq

from flows.store.errors import Damaged, StoreRefused
from stages.core.tables import conform

TABLE_SCHEMA = 1
ROW_GROUP = 1 << 20
SMALL = 1 << 20  # bytes of a file
ROOM, ROOM_PER_ROW = 1 << 24, 1 << 21
"""Bytes that a table may declare before compression. 2 MiB are a completion of 128,000 tokens, on the average of all rows."""


def encode_table(data: pa.Table) -> bytes:
    """Return Parquet bytes. Equal rows and schema give equal bytes (one chunk, fixed writer settings, no pandas metadata)."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        data.combine_chunks(),
        sink,
        row_group_size=ROW_GROUP,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        store_schema=True,
    )
    return sink.getvalue().to_pybytes()


def decode_table(
    data: bytes, schema: pa.Schema, uri: str = "table", columns: Collection[str] | None = None, rows: int | None = None
) -> pa.Table:
    """Return the table in `data` with exactly `schema`, or with these columns of it; the others are not decoded.

    Raises Damaged if it does not fit or has not as many `rows` as its manifest states, StoreRefused if it is too new.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))  # read_table makes a data set first, in twice the time
        _check_before_decoding(file, uri, rows)
        wanted = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
        found = file.read(wanted, use_threads=len(data) > SMALL)  # threads take longer to start than a small table to decode
    except (pa.ArrowException, OSError) as error:
        raise Damaged(uri, f"not a Parquet file ({str(error).splitlines()[0]})") from error
    if columns is not None:
        schema = pa.schema([field for field in schema if field.name in columns], schema.metadata)
    try:
        return conform(found, schema)
    except (ValueError, pa.ArrowException) as error:
        raise Damaged(uri, str(error).splitlines()[0]) from error


def _check_before_decoding(file: pq.ParquetFile, uri: str, rows: int | None) -> None:
    """Refuse a table by its footer: a file of a few kilobytes can decode to gigabytes."""
    version = (file.schema_arrow.metadata or {}).get(b"schema", b"1")
    if not version.isdigit():
        raise Damaged(uri, f"its table schema is {version[:20]!r}, which is not a number")
    if int(version) > TABLE_SCHEMA:
        raise StoreRefused(f"{uri}: table schema {int(version)} is newer than this version reads ({TABLE_SCHEMA})")
    footer = file.metadata
    if rows is not None and footer.num_rows != rows:
        raise Damaged(uri, f"its manifest states {rows} rows, it has {footer.num_rows}")
    size = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
    if size > ROOM + ROOM_PER_ROW * footer.num_rows:
        raise Damaged(uri, f"it would take {size:,} bytes of memory, which no stage writes in {footer.num_rows} rows")
