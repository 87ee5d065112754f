"""Artifacts in a folder: created atomically, once, and durable before `create` returns.

Also defines the errors and the path rules that both kinds of store share.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stages.core.unavailable import Unavailable

Uris = list[str]

RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_PART = re.compile(r"[A-Za-z0-9._=+@-]{1,200}")
_NO_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_WRONG_NAME = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
LOCK_SECONDS = 30.0
TEMPORARY = ".tmp-"
_PIECE = 1 << 24


class StoreUnavailable(Unavailable):
    """The store is unreachable or full. A retry may succeed; this says nothing about the data."""


class StoreRefused(ValueError):
    """The request cannot succeed, however often it is retried: an invalid name, an unusable address, no access."""

    exit_code = 2


class AccessRefused(StoreRefused):
    """The store refuses this user, whatever the name: wrong or expired credentials, missing rights, a missing bucket.

    It says nothing about whether the artifact exists.
    """


class NotStored(LookupError):
    """There is no artifact of that name."""

    exit_code = 1


class Damaged(Exception):
    """An artifact does not match its manifest. `uri` names it, `detail` states how."""

    exit_code = 1

    def __init__(self, uri: str, detail: str) -> None:
        super().__init__(f"{uri}: {detail}")
        self.uri, self.detail = uri, detail


def check_run_id(run_id: str) -> str:
    """Return `run_id`. Raises StoreRefused unless it consists of at most 40 lower-case letters, digits and hyphens."""
    if not RUN_ID.fullmatch(run_id):
        raise StoreRefused(
            f"run id {run_id[:60]!r}: use 1 to 40 lower-case letters, digits and hyphens, not starting with a hyphen"
        )
    return run_id


def check_uri(uri: str) -> str:
    """Return `uri`. Raises StoreRefused unless it is a plain relative path."""
    parts = uri.split("/")
    if len(uri) > 900 or any(not _PART.fullmatch(part) or not part.strip(".") for part in parts):
        raise StoreRefused(f"artifact name {uri[:120]!r} is not a plain relative path")
    return uri


class FileStore:
    """A folder. A file is written under a dotted name, fsynced, linked to its final name, and its folder fsynced."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()
        self._base = str(self.root).rstrip("/")

    def read(self, uri: str) -> bytes:
        """Return the whole artifact. Raises NotStored."""
        with _explained(uri), open(f"{self._base}/{check_uri(uri)}", "rb", buffering=0) as file:  # a Path takes longer to make
            return file.read()

    def open(self, uri: str) -> BinaryIO:
        """Open the artifact as a file, to read in chunks. Raises NotStored."""
        with _explained(uri):
            return self._path(uri).open("rb", buffering=0)

    def create(self, uri: str, data: bytes) -> str | None:
        """Write the artifact and return its stamp. Return None and change nothing if it already exists."""
        path = self._path(uri)
        with _explained(uri, writing=True):
            _make_folder(path.parent)
            temporary, stamp = _write_temporary(path.parent, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                stamp = None
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(path.parent)
        return stamp

    def replace(self, uri: str, data: bytes) -> None:
        """Overwrite a dotted file, such as a lease; nothing else may be overwritten."""
        path = self._path(uri)
        assert path.name.startswith("."), uri
        with _explained(uri, writing=True):
            _make_folder(path.parent)
            temporary, _ = _write_temporary(path.parent, data)
            try:
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)

    def exists(self, uri: str) -> bool:
        """Return whether the artifact exists."""
        with _explained(uri):
            return self._path(uri).is_file()

    def size(self, uri: str) -> int:
        """Return the artifact's size in bytes. Raises NotStored."""
        with _explained(uri):
            return self._path(uri).stat().st_size

    def stamp(self, uri: str) -> str:
        """Return a text that changes when the artifact is rewritten; empty if there is none."""
        with suppress(NotStored), _explained(uri):
            return _stamp(self._path(uri).stat())
        return ""

    def sweep(self, prefix: str) -> None:
        """Remove the temporary files that killed writers left under `prefix`."""
        for uri in self.list(prefix, hidden=True):
            if uri.rpartition("/")[2].startswith(TEMPORARY):
                self.delete(uri)

    def delete(self, uri: str) -> None:
        """Remove debris or a retired artifact; do nothing if there is none."""
        path = self._path(uri)
        with suppress(NotStored), _explained(uri):
            path.unlink()
            _sync_folder(path.parent)

    def list(self, prefix: str, hidden: bool = False) -> Uris:
        """List all artifacts whose name starts with `prefix`, sorted; dotted ones (leases, temporary files) only if `hidden`."""
        with _explained(prefix):
            return sorted(uri for uri, _ in self._files(prefix, hidden))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of every artifact whose name starts with `prefix`, except dotted ones."""
        folder = prefix.rpartition("/")[0]
        with _explained(prefix):
            found = _sizes(str(self._path(folder) if folder else self.root), f"{folder}/" if folder else "")
        return found if prefix.endswith("/") else {uri: size for uri, size in found.items() if uri.startswith(prefix)}

    def folders(self, prefix: str) -> Uris:
        """List the folders directly below `prefix` (empty, or ending in /) that hold artifacts, sorted, except dotted ones."""
        with (
            suppress(NotStored),
            _explained(prefix),
            os.scandir(self._path(prefix.rstrip("/")) if prefix else self.root) as inside,
        ):
            named = [entry for entry in inside if entry.is_dir() and not entry.name.startswith(".")]
            return sorted(entry.name for entry in named if _holds_artifacts(entry.path))
        return []

    def free(self) -> int | None:
        """Return the free bytes on the disk that holds, or will hold, the folder."""
        folder = self.root
        while not folder.is_dir():
            folder = folder.parent
        with _explained(str(folder)):
            return shutil.disk_usage(folder).free

    @contextmanager
    def lock(self, run_id: str) -> Iterator[None]:
        """Make a check and the write that depends on it atomic among this machine's processes (flock)."""
        with locked(self._path(f"{check_run_id(run_id)}/.lock"), run_id):
            yield

    def _files(self, prefix: str, hidden: bool) -> Iterator[tuple[str, str]]:
        """Yield the name and the path of each file whose name starts with `prefix`."""
        folder = prefix.rpartition("/")[0]
        for at, folders, files in os.walk(self._path(folder) if folder else self.root, onerror=_raise_unless_missing):
            inside = Path(at).relative_to(self.root).as_posix()
            base = "" if inside == "." else f"{inside}/"
            if inside == (folder or "."):  # a prefix such as run/.epoch- must not cost a walk through the run
                folders[:] = [name for name in folders if f"{base}{name}".startswith(prefix)]
            if not hidden:
                folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                if (hidden or not name.startswith(".")) and f"{base}{name}".startswith(prefix):
                    yield f"{base}{name}", os.path.join(at, name)

    def _path(self, uri: str) -> Path:
        return self.root / check_uri(uri)


@contextmanager
def locked(path: Path, run_id: str) -> Iterator[None]:
    """Hold the lock file `path` exclusively on this machine. Raises StoreUnavailable if its holder is stuck."""
    uri = f"{run_id}/.lock"
    with _explained(uri, writing=True):
        _make_folder(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        with _explained(uri, writing=True):
            _wait_for_lock(handle, run_id)
        yield
    finally:
        with suppress(OSError):  # EIO, ENOSPC and other errors of network file systems: the lock is released either way
            os.close(handle)


def _wait_for_lock(handle: int, run_id: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # informational: a full disk must not prevent locking
                os.pwrite(handle, f"{os.getpid():10d}".encode(), 0)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                who = os.pread(handle, 10, 0).decode(errors="replace").strip()
                raise StoreUnavailable(
                    f"run {run_id}: process {who} has been committing for {LOCK_SECONDS:.0f} s; wake or terminate it"
                ) from None
            time.sleep(0.005)


def _write_temporary(folder: Path, data: bytes) -> tuple[Path, str | None]:
    """Write a durable file with a dotted name that no one else uses, and return it with its stamp."""
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        with open(path, "xb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(data))
            os.fsync(file.fileno())
            return path, _stamp(os.fstat(file.fileno()))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write_all(descriptor: int, data: memoryview) -> None:
    """Write in chunks that the kernel flushes immediately: the disk is busy while the rest is copied and hashed."""
    done = 0
    while done < len(data):
        written = os.write(descriptor, data[done : done + _PIECE])
        if written == _PIECE and hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(descriptor, done, written, os.POSIX_FADV_DONTNEED)
        done += written


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"


def _make_folder(folder: Path) -> None:
    """Run a durable mkdir -p: each new folder's name is fsynced in its parent."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir()
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _holds_artifacts(folder: str) -> bool:
    """Return whether a folder has a file, at any depth, whose path has no dotted name: a killed writer leaves empty ones."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as inside:
            for entry in inside:
                if entry.name.startswith("."):
                    continue
                if not entry.is_dir():
                    return True  # the first file is enough: a folder of thousands is not listed
                if not entry.is_symlink():
                    waiting.append(entry.path)
    return False


def _raise_unless_missing(error: OSError) -> None:
    if error.errno != errno.ENOENT:
        raise error


def _sizes(folder: str, base: str) -> dict[str, int]:
    """Return the sizes of all files below a folder except dotted ones, by names that begin with `base`."""
    found, waiting = {}, [(folder, base)]
    while waiting:
        at, base = waiting.pop()
        with suppress(FileNotFoundError), os.scandir(at) as inside:  # removed meanwhile
            for entry in inside:
                name = entry.name
                if name[0] == ".":
                    continue
                if entry.is_dir():
                    if not entry.is_symlink():
                        waiting.append((entry.path, f"{base}{name}/"))
                    continue
                try:
                    found[base + name] = entry.stat().st_size
                except FileNotFoundError:  # removed meanwhile
                    continue
    return found


@contextmanager
def _explained(uri: str, writing: bool = False) -> Iterator[None]:
    """Turn an OSError into the store's own error with a one-line message."""
    try:
        yield
    except FileNotFoundError as error:
        if writing:
            raise StoreRefused(f"{uri}: its folder cannot be created") from error
        raise NotStored(f"{uri}: no such artifact") from error
    except OSError as error:
        kind: Callable[[str], Exception] = StoreUnavailable
        if error.errno in _NO_RIGHTS:
            kind = AccessRefused
        elif error.errno in _WRONG_NAME:
            kind = StoreRefused
        raise kind(f"{uri}: {error.strerror or error}") from error
