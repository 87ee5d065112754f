"""Folders on the memory file system, locked by their process, so that what a killed process leaves is removed."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # in-memory file system on Linux; elsewhere, or if it is small, the temporary folder is used
PREFIX, LOCK = "populora-adapters-", "lock"


def make_folder(parent: Path = MEMORY, needed: int = 0) -> Path:
    """Create a folder that stays locked until this process ends, after removing those that no process locks any more.

    It is in the temporary folder if `parent` is missing, or has less than `needed` bytes free, as in many containers.
    """
    spare = Path(tempfile.gettempdir())
    for left in [left for place in (parent, spare) for left in place.glob(f"{PREFIX}*/{LOCK}")]:
        _remove_unlocked(left)
    place = parent if parent.is_dir() and shutil.disk_usage(parent).free >= needed else spare
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with suppress(FileNotFoundError):
            fcntl.flock(os.open(folder / LOCK, os.O_CREAT | os.O_WRONLY), fcntl.LOCK_EX)  # left open: the lock ends with us
            if (folder / LOCK).exists():  # else another process removed the folder before the lock was ours
                return folder


def _remove_unlocked(lock: Path) -> None:
    with suppress(OSError):  # locked, another user's, or removed by somebody else
        descriptor = os.open(lock, os.O_WRONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
        finally:
            os.close(descriptor)
