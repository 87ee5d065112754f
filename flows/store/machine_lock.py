"""A lock among the processes of one machine, which makes a check and the write that depends on it atomic."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.store.durable_folders import make_folder
from flows.store.errors import StoreUnavailable, explained

LOCK_SECONDS = 30.0


@contextmanager
def locked(path: Path, run_id: str, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock file `path` exclusively on this machine. Raises StoreUnavailable if its holder is stuck for so long."""
    uri = f"{run_id}/.lock"
    with explained(uri, writing=True):
        make_folder(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        with explained(uri, writing=True):
            _wait_for_lock(handle, run_id, seconds)
        yield
    finally:
        with suppress(OSError):  # EIO, ENOSPC and other errors of network file systems: the lock is released either way
            os.close(handle)


def _wait_for_lock(handle: int, run_id: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
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
                    f"run {run_id}: process {who} has been committing for {seconds:.0f} s; wake or terminate it"
                ) from None
            time.sleep(0.005)
