"""Artifacts as files: checked against their digest and read in chunks, never held in memory as a whole."""

import hashlib
import io
import os
from typing import Any, BinaryIO

from flows.run.history import History
from flows.run.manifest import Ref
from flows.run.run import Retired, Run
from flows.storage import Damaged, NotStored

PIECE = 1 << 20


def open_verified(run: Run, ref: Ref) -> BinaryIO:
    """Open the artifact as a file whose bytes match the digest in its manifest. Raises NotStored, Retired or Damaged.

    Later reads return what was checked, whatever happens to the store's object meanwhile.
    """
    place = run.history.place(ref.uri, ref.origin)
    for _ in range(2):  # twice, since the network may have garbled what is intact in the store
        try:
            file = run.store.open(place)
        except NotStored:
            holder = History(run.store, ref.origin) if ref.origin else run.history
            if tombstone := holder.tombstone(ref.uri):
                raise Retired(f"{ref.uri} was retired: {tombstone['reason']}") from None
            raise
        if sha256_of(file) == ref.sha256:
            return file
        file.close()
    raise Damaged(place, f"its digest is not {ref.sha256[:12]}…, as its manifest states")


def sha256_of(file: BinaryIO) -> str:
    """Return the digest of the whole file."""
    found, reader = hashlib.sha256(), Reader(file)
    while piece := reader.read(PIECE):
        found.update(piece)
    return found.hexdigest()


class Reader(io.RawIOBase):
    """An independent position in an open file that several readers can share. The file stays open as long as one of them."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file, self._at = file, 0
        self.size = os.fstat(file.fileno()).st_size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to that position."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read what fits."""
        view = memoryview(buffer).cast("B")
        data = os.pread(self._file.fileno(), len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
