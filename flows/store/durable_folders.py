"""Files and folders that survive a power cut."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_NO_SUCH_CALL = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY}
"""What file systems of other machines say to F_FULLFSYNC."""


def make_folder(folder: Path) -> None:
    """Run a durable mkdir -p: each new folder's name is fsynced in its parent."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir()
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(handle)
    finally:
        os.close(handle)


def sync(handle: int) -> None:
    """Make an open file or folder durable. On macOS, fsync leaves it in the memory of the disk; what empties that has a name."""
    whole: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if whole is not None:
        try:
            fcntl.fcntl(handle, whole)
            return
        except OSError as error:
            if error.errno not in _NO_SUCH_CALL:
                raise
    os.fsync(handle)
