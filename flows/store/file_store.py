"""Artifacts in a folder: created atomically, once, and durable before `create` returns."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from flows.store.durable_folders import make_folder, sync, sync_folder
from flows.store.errors import NotStored, explained
from flows.store.machine_lock import locked
from flows.store.names import Uris, check_run_id, check_uri

TEMPORARY = ".tmp-"
LEASE = ".lease"
"""Written every few seconds, and worth nothing after a power cut."""
_PIECE = 1 << 24


class FileStore:
    """A folder. A file is written under a dotted name, fsynced, linked to its final name, and its folder fsynced."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()
        self._base = str(self.root).rstrip("/")

    def read(self, uri: str) -> bytes:
        """Return the whole artifact. Raises NotStored."""
        with explained(uri), open(f"{self._base}/{check_uri(uri)}", "rb", buffering=0) as file:  # a Path takes longer to make
            return file.read()

    def open(self, uri: str) -> BinaryIO:
        """Open the artifact as a file, to read in chunks. Raises NotStored."""
        with explained(uri):
            return self._path(uri).open("rb", buffering=0)

    def create(self, uri: str, data: bytes) -> str | None:
        """Write the artifact and return its stamp. Return None and change nothing if it already exists."""
        path = self._path(uri)
        with explained(uri, writing=True):
            make_folder(path.parent)
            temporary, stamp = _write_temporary(path.parent, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                stamp = None
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(path.parent)
        return stamp

    def replace(self, uri: str, data: bytes) -> None:
        """Overwrite a dotted file, such as a lease; nothing else may be overwritten. It is durable, except a lease."""
        path = self._path(uri)
        assert path.name.startswith("."), uri
        with explained(uri, writing=True):
            make_folder(path.parent)
            temporary, _ = _write_temporary(path.parent, data)
            try:
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            if path.name != LEASE:
                sync_folder(path.parent)

    def exists(self, uri: str) -> bool:
        """Return whether the artifact exists."""
        with explained(uri), suppress(FileNotFoundError, NotADirectoryError):
            return S_ISREG(os.stat(self._path(uri)).st_mode)
        return False

    def size(self, uri: str) -> int:
        """Return the artifact's size in bytes. Raises NotStored."""
        with explained(uri):
            return self._path(uri).stat().st_size

    def stamp(self, uri: str) -> str:
        """Return a text that changes when the artifact is rewritten; empty if there is none."""
        with suppress(NotStored), explained(uri):
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
        with suppress(NotStored), explained(uri):
            path.unlink()
            sync_folder(path.parent)

    def list(self, prefix: str, hidden: bool = False) -> Uris:
        """List all artifacts whose name starts with `prefix`, sorted; dotted ones (leases, temporary files) only if `hidden`."""
        with explained(prefix):
            return sorted(uri for uri, _ in self._files(prefix, hidden))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of every artifact whose name starts with `prefix`, except dotted ones."""
        folder = prefix.rpartition("/")[0]
        with explained(prefix):
            found = _sizes(str(self._path(folder) if folder else self.root), f"{folder}/" if folder else "")
        return found if prefix.endswith("/") else {uri: size for uri, size in found.items() if uri.startswith(prefix)}

    def folders(self, prefix: str) -> Uris:
        """List the folders directly below `prefix` (empty, or ending in /) that hold artifacts, sorted, except dotted ones.

        Runs that belong to other users, and that this one may not enter, are none of this store's.
        """
        private = () if prefix else (PermissionError,)
        with (
            suppress(NotStored),
            explained(prefix),
            os.scandir(self._path(prefix.rstrip("/")) if prefix else self.root) as inside,
        ):
            found = []
            for entry in (one for one in inside if one.is_dir() and not one.name.startswith(".")):
                with suppress(*private):
                    found += [entry.name] if _holds_artifacts(entry.path) else []
            return sorted(found)
        return []

    def free(self) -> int | None:
        """Return the free bytes on the disk that holds, or will hold, the folder."""
        folder = self.root
        while not folder.is_dir():
            folder = folder.parent
        with explained(str(folder)):
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


def _write_temporary(folder: Path, data: bytes) -> tuple[Path, str | None]:
    """Write a durable file with a dotted name that no one else uses, and return it with its stamp."""
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        with open(path, "xb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(data))
            sync(file.fileno())
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


def _holds_artifacts(folder: str) -> bool:
    """Return whether a folder has a file, at any depth, whose path has no dotted name: a killed writer leaves empty ones."""
    waiting = [folder]
    while waiting:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as inside:  # removed meanwhile
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
