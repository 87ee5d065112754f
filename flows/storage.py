"""The artifact store: one URL decides where runs are stored, `file:///folder` or `s3://bucket/prefix`.

Names of artifacts are relative to the store's root: `{run_id}/generation=0000/tasks.parquet`.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from flows.store.errors import AccessRefused, Damaged, NotStored, StoreRefused, StoreUnavailable
from flows.store.file_store import FileStore
from flows.store.names import Uris, check_run_id, check_uri

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
    "open_store",
]


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
