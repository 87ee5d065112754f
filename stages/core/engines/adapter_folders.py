"""Adapters as folders that vLLM's process reads: on the memory file system, or on disk where that is too small. Needs no vLLM."""

import errno
import shutil
from pathlib import Path

from stages.core.engines.memory_folders import MEMORY, make_folder
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import CONFIG_FILE, WEIGHTS_FILE, config_bytes, weights_bytes


class AdapterFolders:
    """The folders of at most `most` adapters at a time, made where all of them fit when the first is written.

    Attributes:
        folder: Where they are; None before the first.
    """

    def __init__(self, alpha: float, most: int, memory: Path = MEMORY) -> None:
        self.folder: Path | None = None
        self._alpha, self._most, self._memory = alpha, most, memory

    def write(self, number: int, weights: Weights) -> Path:
        """Write an adapter under a new number and return its folder. Raise OSError, which names the folder, if that is full."""
        data = weights_bytes(weights)
        if self.folder is None:
            self.folder = make_folder(self._memory, needed=self._most * len(data))
        place = self.folder / f"{number:06d}"
        try:
            place.mkdir()
            (place / WEIGHTS_FILE).write_bytes(data)
            (place / CONFIG_FILE).write_bytes(config_bytes(weights, "base", self._alpha))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            wanted = f"No space left for vLLM's adapters, {self._most * len(data) / 1e9:.1f} GB, in {self.folder.parent}"
            raise OSError(errno.ENOSPC, wanted, str(place)) from error
        return place

    def close(self) -> None:
        """Remove all of them."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
