"""A folder that appears whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.storage import StoreRefused


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder next to `folder` that becomes `folder` at the end, and is removed if anything fails.

    Raises StoreRefused if `folder` is a file, is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreRefused(f"{folder} already exists; choose another folder")
    target = folder.absolute()
    unfinished = target.parent / f".{target.name}.{os.getpid()}"
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(target)  # also onto an empty folder
    except OSError as error:
        raise StoreRefused(f"{folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
