"""Folders on the memory file system, named after the process that made them, so that what a killed one leaves is removed."""

import os
import re
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # in-memory file system on Linux; elsewhere the temporary folder is used
_NAME = re.compile(r"populora-(\d+)-")


def make_folder(parent: Path = MEMORY) -> Path:
    """Create a folder of this process, after removing those of processes that no longer run."""
    place = parent if parent.is_dir() else Path(tempfile.gettempdir())
    for folder in place.glob("populora-*-*"):
        found = _NAME.match(folder.name)
        if found is not None and not _runs(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"populora-{os.getpid()}-", dir=place))


def _runs(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True
