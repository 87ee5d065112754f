"""The artifact store: one URL decides where runs live, `file:///folder` or `s3://bucket/prefix`.

Names of artifacts are relative to the store's root: `{run_id}/generation=0000/tasks.parquet`. Also the bytes of a table.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from flows.store.file_store import (
    Damaged,
    FileStore,
    NotStored,
    StoreRefused,
    StoreUnavailable,
    Uris,
    check_run_id,
    check_uri,
)
from stages.core.tables import conform

__all__ = [
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


class Store(Protocol):
    """Where artifacts live. Every method raises StoreUnavailable when the store fails, StoreRefused for a user's mistake."""

    url: str

    def read(self, uri: str) -> bytes:
        """The whole artifact. Raises NotStored."""
        ...

    def open(self, uri: str) -> BinaryIO:
        """The artifact as a file on this machine, to read piece by piece; it stays what it is now. Raises NotStored."""
        ...

    def create(self, uri: str, data: bytes) -> str | None:
        """Writes the artifact unless one is there already and returns its stamp; None: somebody else did, theirs is untouched."""
        ...

    def replace(self, uri: str, data: bytes) -> None:
        """Overwrites a dotted file, such as a lease; nothing else may be overwritten."""
        ...

    def exists(self, uri: str) -> bool:
        """Whether the artifact is there."""
        ...

    def size(self, uri: str) -> int:
        """Bytes of the artifact. Raises NotStored."""
        ...

    def stamp(self, uri: str) -> str:
        """A text that changes when the artifact is written anew with other bytes; empty when there is none."""
        ...

    def sweep(self, prefix: str) -> None:
        """Removes what killed writers left half-written under `prefix` (temporaries, uploads begun)."""
        ...

    def delete(self, uri: str) -> None:
        """Removes debris or a retired artifact; nothing happens when there is none."""
        ...

    def list(self, prefix: str, hidden: bool = False) -> Uris:
        """All artifacts whose name starts with `prefix`, sorted; dotted ones (leases, temporaries) only if `hidden`."""
        ...

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of every artifact whose name starts with `prefix`, dotted ones left out; one listing, not a question each."""
        ...

    def folders(self, prefix: str) -> Uris:
        """Names directly below `prefix` (empty, or ending in /) that hold artifacts, sorted; dotted ones left out."""
        ...

    def free(self) -> int | None:
        """Bytes that can still be written; None where the store does not say."""
        ...

    def lock(self, run_id: str) -> AbstractContextManager[None]:
        """Makes a check and the write that depends on it one step, where the store can do that (files: yes, S3: no)."""
        ...


def open_store(url: str) -> Store:
    """The store at `url`: `file:///folder`, a plain path, or `s3://bucket/prefix`. Raises StoreRefused for anything else."""
    if not url or "\0" in url:
        raise StoreRefused(f"store {url!r}: give a folder, file:///folder or s3://bucket/prefix")
    if "://" not in url:
        return FileStore(Path(url))
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise StoreRefused(f"store {url!r}: a file URL has three slashes, file:///folder")
        return FileStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        from flows.store.s3_store import S3Store  # noqa: PLC0415 (boto3 takes a quarter of a second, and most runs are in a folder)

        return S3Store(url)
    raise StoreRefused(f"store {url!r}: unknown scheme {parts.scheme!r}, use file:// or s3://")


def encode_table(data: pa.Table) -> bytes:
    """Parquet bytes; equal rows and schema give equal bytes (one chunk, fixed writer settings, no pandas metadata)."""
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


def decode_table(data: bytes, schema: pa.Schema, uri: str = "table") -> pa.Table:
    """The table in `data`, with exactly `schema`. Raises Damaged when it cannot be, StoreRefused if a newer version wrote it."""
    try:
        found = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise Damaged(uri, f"not a Parquet file ({str(error).splitlines()[0]})") from error
    version = (found.schema.metadata or {}).get(b"schema", b"1")
    if int(version) > TABLE_SCHEMA:
        raise StoreRefused(f"{uri}: table schema {int(version)} is newer than this version reads ({TABLE_SCHEMA})")
    try:
        return conform(found, schema)
    except (ValueError, pa.ArrowException) as error:
        raise Damaged(uri, str(error).splitlines()[0]) from error
