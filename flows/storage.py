"""The artifact store: one URL decides where runs are stored, `file:///folder` or `s3://bucket/prefix`.

Names of artifacts are relative to the store's root: `{run_id}/generation=0000/tasks.parquet`. Also encodes and decodes tables.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from flows.store.errors import AccessRefused, Damaged, NotStored, StoreRefused, StoreUnavailable
from flows.store.file_store import FileStore
from flows.store.names import Uris, check_run_id, check_uri
from stages.core.tables import conform

__all__ = [
    "AccessRefused",
    "Damaged",
    "NotStored",
    "Store",
    "StoreRefused",
    "StoreUnavailable",
    "Uris",
    "check_run_id",
    "check_uri",
    "decode_table",
    "encode_table",
    "open_store",
]

TABLE_SCHEMA = 1
ROW_GROUP = 1 << 20
SMALL = 1 << 20  # bytes of a file
ROOM, ROOM_PER_ROW = 1 << 24, 1 << 21
"""Bytes that a table may declare before compression. 2 MiB are a completion of 128,000 tokens, on the average of all rows."""


class Store(Protocol):
    """A store of artifacts. Each method raises StoreUnavailable if the store fails, StoreRefused for a user's mistake."""

    url: str

    def read(self, uri: str) -> bytes:
        """Return the whole artifact. Raises NotStored."""
        ...

    def open(self, uri: str) -> BinaryIO:
        """Open the artifact as a file on this machine, to read piece by piece. Its content does not change. Raises NotStored."""
        ...

    def create(self, uri: str, data: bytes) -> str | None:
        """Write the artifact and return its stamp. If one already exists, leave it untouched and return None."""
        ...

    def replace(self, uri: str, data: bytes) -> None:
        """Overwrite a dotted file, such as a lease. Nothing else may be overwritten."""
        ...

    def exists(self, uri: str) -> bool:
        """Return whether the artifact exists."""
        ...

    def size(self, uri: str) -> int:
        """Return the artifact's size in bytes. Raises NotStored."""
        ...

    def stamp(self, uri: str) -> str:
        """Return a text that changes when the artifact is rewritten with other bytes; empty if there is no artifact."""
        ...

    def sweep(self, prefix: str) -> None:
        """Remove what killed writers left incomplete under `prefix` (temporaries, unfinished uploads)."""
        ...

    def delete(self, uri: str) -> None:
        """Remove debris or a retired artifact, if it exists."""
        ...

    def list(self, prefix: str, hidden: bool = False) -> Uris:
        """Return all artifacts whose name starts with `prefix`, sorted; dotted ones (leases, temporaries) only if `hidden`."""
        ...

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of each artifact whose name starts with `prefix`, dotted ones excluded, in a single listing."""
        ...

    def folders(self, prefix: str) -> Uris:
        """Return the names directly below `prefix` (empty, or ending in /) that contain artifacts, sorted, no dotted ones."""
        ...

    def free(self) -> int | None:
        """Return how many bytes can still be written; None if the store does not report it."""
        ...

    def lock(self, run_id: str) -> AbstractContextManager[None]:
        """Make a check and the write that depends on it atomic, if the store can (files: yes, S3: no)."""
        ...


def open_store(url: str, patience: float = 0.0) -> Store:
    """Open the store at `url`: `file:///folder`, a plain path, or `s3://bucket/prefix`. Raises StoreRefused for anything else.

    An outage of a bucket is waited out for `patience` seconds, and in any case for a few.
    """
    if not url or "\0" in url:
        raise StoreRefused(f"store {url!r}: give a folder, file:///folder or s3://bucket/prefix")
    if "://" not in url:
        return _folder(Path(url), url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise StoreRefused(f"store {url!r}: a file URL has three slashes, file:///folder")
        return _folder(Path(unquote(parts.path)), url)
    if parts.scheme == "s3":
        from flows.store.s3_calls import Patience  # noqa: PLC0415 (boto3 takes 0.25 s to load, and most runs use a folder)
        from flows.store.s3_store import S3Store  # noqa: PLC0415 (likewise)

        return S3Store(url, patience=Patience(patience))
    raise StoreRefused(f"store {url!r}: unknown scheme {parts.scheme!r}, use file:// or s3://")


def _folder(path: Path, url: str) -> FileStore:
    try:
        other = path.exists() and not path.is_dir()
    except OSError as error:  # a name too long, or a folder above it that may not be searched
        raise StoreRefused(f"store {url!r}: {error.strerror}") from error
    if other:
        raise StoreRefused(f"store {url!r} is a file; give a folder, file:///folder or s3://bucket/prefix")
    return FileStore(path)


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
