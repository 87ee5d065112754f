"""Copies of artifacts on this machine, which its processes share: usually, the weights of an adapter are read from S3 once.

A copy is named by its digest and verified by whoever reads it, so a damaged one is only a missing one. Whatever goes wrong with
copies, the artifact is read from the store. One process reads an artifact while the others wait for its copy. Where there is a
copy, nobody asks whether the store still has the artifact: the manifest that named the digest is what counts.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import get_ident

from flows.store.errors import StoreRefused

LIMIT = "POPULORA_COPIES_GB"
DEFAULT_GB = "8"
SPARE_BYTES = 2**30  # that a copy leaves free on the disk
WAIT_SECONDS = 60.0  # for another process that reads the artifact
ABANDONED_SECONDS = 3600.0


class LocalCopies:
    """Copies of at most `limit` bytes in `folder`; those read least recently go first. With a limit of 0, none."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def read(self, digest: str, from_store: Callable[[], bytes]) -> bytes:
        """Return the bytes with this sha256: the copy, or what `from_store` returns and verifies, which is copied."""
        if not self.limit:
            return from_store()
        data = self._copy(digest)
        if data is not None:
            return data
        with self._turn(digest):
            data = self._copy(digest)  # of the process that was waited for
            if data is None:
                data = from_store()
                self._write(digest, data)
        return data

    def keep(self, digest: str, data: bytes) -> None:
        """Copy the bytes, whose sha256 this is, unless there is a copy or no room."""
        with suppress(OSError):
            if self.limit and not (self.folder / digest).exists():
                self._write(digest, data)

    def _copy(self, digest: str) -> bytes | None:
        place = self.folder / digest
        try:
            data = place.read_bytes()
        except OSError:
            return None
        with suppress(OSError):
            os.utime(place)
        return data if sha256(data).hexdigest() == digest else None

    def _write(self, digest: str, data: bytes) -> None:
        part = self.folder / f".{digest}.{os.getpid()}.{get_ident()}"
        with suppress(OSError):
            if not self._make_room(len(data)):
                return
            try:
                part.write_bytes(data)
                part.replace(self.folder / digest)
            finally:
                part.unlink(missing_ok=True)

    def _make_room(self, size: int) -> bool:
        """Remove what a killed process left, and copies until `size` more bytes fit; return whether they do.

        Those read least recently go first. Processes that write at the same time may exceed the limit by what they write.
        """
        if size > self.limit:
            return False
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        copies, kept = [], size
        for place in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another process removed it
                known = place.stat()
                if place.name.startswith(".") and time.time() - known.st_mtime > ABANDONED_SECONDS:
                    place.unlink()
                elif place.is_file():
                    kept += known.st_size
                    copies += [] if place.name.startswith(".") else [(known.st_mtime_ns, known.st_size, place)]
        for _, held, place in sorted(copies):
            if kept <= self.limit and self._fits(size):
                break
            place.unlink(missing_ok=True)
            kept -= held
        return self._fits(size)

    def _fits(self, size: int) -> bool:
        return shutil.disk_usage(self.folder).free >= size + SPARE_BYTES

    @contextmanager
    def _turn(self, digest: str) -> Iterator[None]:
        """Let one process at a time look for the artifact; after WAIT_SECONDS go ahead without waiting."""
        handle = None
        with suppress(OSError):
            locks = self.folder / "locks"
            locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(locks / digest[:2], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if handle is not None:
                _wait_for(handle)
            yield
        finally:
            if handle is not None:
                with suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child would hold it as long as it lives
                    os.close(handle)


def of_store(url: str, environment: Mapping[str, str] = os.environ) -> LocalCopies:
    """Return the copies of a store's artifacts on this machine: none for a folder. Raises StoreRefused for a wrong limit."""
    text = environment.get(LIMIT, "").strip() or DEFAULT_GB
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise StoreRefused(f"{LIMIT}={text}: give the gigabytes that copies of adapters may take on this machine, or 0 for none")
    folder = _cache_folder(environment)
    if folder is None or not url.startswith("s3:"):
        return LocalCopies(Path(), 0)
    return LocalCopies(folder / "populora" / "adapters", int(limit * 1e9))


def _cache_folder(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None


def _wait_for(handle: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return
        else:
            return
