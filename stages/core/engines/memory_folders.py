"""Folders on the memory file system, locked by their process, so that what a killed process leaves is removed."""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # in-memory file system on Linux; elsewhere, or if it is small, the temporary folder is used
PREFIX, LOCK = "populora-adapters-", "lock"


def make_folder(parent: Path = MEMORY, needed: int = 0) -> Path:
    """Create a folder that stays locked until this process ends, after removing those that no process locks any more.

    It is in the temporary folder if `parent` is missing, or has less than `needed` bytes free, as in many containers.
    """
    for left in [left for place in (parent, spare()) for left in place.glob(f"{PREFIX}*")]:
        _remove_unlocked(left)
    place = parent if parent.is_dir() and shutil.disk_usage(parent).free >= needed else spare()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with suppress(FileNotFoundError):
            lock = os.open(folder / LOCK, os.O_CREAT | os.O_WRONLY, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)  # left open: the lock ends with us
            if (folder / LOCK).exists():  # else another process removed the folder before the lock was ours
                return folder


def spare() -> Path:
    """Return the folder on disk that is used where there is no memory file system, or no room on it."""
    return Path(tempfile.gettempdir())


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder of this user that no process locks. Anybody may have put something like it here: wait for nothing."""
    with suppress(OSError):  # locked, without a lock, or removed by somebody else
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return
        descriptor = os.open(folder / LOCK, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)
