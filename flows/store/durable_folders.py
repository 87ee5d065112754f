"""Folders whose names survive a power cut."""

import os
from contextlib import suppress
from pathlib import Path


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
        os.fsync(handle)
    finally:
        os.close(handle)
