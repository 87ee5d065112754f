"""Adapters as folders that vLLM's process reads: on the memory file system, or on disk where that is too small. Needs no vLLM."""

import errno
import shutil
from collections.abc import Mapping
from pathlib import Path

from stages.core.engines.memory_folders import MEMORY, make_folder, spare
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import CONFIG_FILE, WEIGHTS_FILE, config_bytes, weights_bytes


class AdapterFolders:
    """The folders of at most `most` adapters at a time, made where all of them fit when the first is written.

    Engines of other cards choose at the same time and may fill the memory file system together. An adapter that then does not
    fit is written on disk, and so are all after it.

    Attributes:
        folder: Where the next one is written; None before the first.
    """

    def __init__(self, alpha: float, most: int, memory: Path = MEMORY) -> None:
        self.folder: Path | None = None
        self._alpha, self._most, self._memory = alpha, most, memory
        self._made = list[Path]()

    def write(self, number: int, weights: Weights) -> Path:
        """Write an adapter under a new number and return its folder. Raise OSError, which names the folder, on a full disk."""
        data = weights_bytes(weights)
        files = {WEIGHTS_FILE: data, CONFIG_FILE: config_bytes(weights, "base", self._alpha)}
        needed = self._most * len(data)
        if self.folder is None:
            self.folder = self._make(self._memory, needed)
        place = self.folder / f"{number:06d}"
        if _fits(place, files):
            return place
        if self.folder.parent != spare():
            self.folder = self._make(spare(), 0)
            place = self.folder / place.name
            if _fits(place, files):
                return place
        wanted = f"No space left for vLLM's adapters, {needed / 1e9:.1f} GB, in {self.folder.parent}"
        raise OSError(errno.ENOSPC, wanted, str(place))

    def close(self) -> None:
        """Remove all of them."""
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self, parent: Path, needed: int) -> Path:
        made = make_folder(parent, needed)
        self._made.append(made)
        return made


def _fits(place: Path, files: Mapping[str, bytes]) -> bool:
    """Write files into a new folder. Return False, and leave nothing behind, if there is no space for them."""
    try:
        place.mkdir()
        for name, data in files.items():
            (place / name).write_bytes(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        shutil.rmtree(place, ignore_errors=True)
        return False
    return True
