"""A folder that appears whole or not at all."""

import secrets
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
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise StoreRefused(f"{folder}: {error.strerror or error}") from error
    if taken:
        raise StoreRefused(f"{folder} already exists; choose another folder")
    target = folder.absolute()
    unfinished = target.parent / f".{target.name}.{secrets.token_hex(8)}"  # not the process's id: containers share those
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:  # before the removal below: what is there already belongs to another process
        raise StoreRefused(f"{folder}: {error.strerror or error}") from error
    try:
        yield unfinished
        unfinished.rename(target)  # also onto an empty folder
    except OSError as error:
        raise StoreRefused(f"{folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
