"""Folders on the memory file system: of this process, and never those that a killed one left."""

import os
import subprocess
import sys
from pathlib import Path

from stages.core.engines.memory_folders import make_folder


def test_what_a_dead_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, used = tmp_path / f"populora-{ended.pid}-abc", tmp_path / f"populora-{os.getppid()}-abc"
    others = [tmp_path / "populora-engine-abc", tmp_path / f"other-{ended.pid}-abc"]
    for folder in (left, used, *others):
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
    made = make_folder(tmp_path)
    assert made.parent == tmp_path and made.name.startswith(f"populora-{os.getpid()}-")
    assert sorted(tmp_path.iterdir()) == sorted([made, used, *others])


def test_without_a_memory_file_system_the_temporary_folder_is_used(tmp_path: Path) -> None:
    made = make_folder(tmp_path / "missing")
    assert made.is_dir()
    made.rmdir()
