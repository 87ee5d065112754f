"""Folders on the memory file system: locked while their process lives, and removed by the next one afterwards."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stages.core.engines.memory_folders import LOCK, PREFIX, make_folder

MAKER = """
import sys
from pathlib import Path
from stages.core.engines.memory_folders import make_folder
print(make_folder(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_what_a_dead_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    makers = [
        subprocess.Popen([sys.executable, "-c", MAKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = [Path(maker.stdout.readline().strip()) for maker in makers if maker.stdout is not None]
    for folder in folders:
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
    other = tmp_path / "another"
    other.mkdir()
    try:
        makers[0].kill()
        makers[0].wait()
        made = make_folder(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([made, folders[1], other])
        assert (folders[1] / "adapter_model.safetensors").is_file() and (made / LOCK).is_file()
    finally:
        for maker in makers:
            maker.communicate()
    assert make_folder(tmp_path) != made and made.is_dir(), "its own process still locks it"
    assert not folders[1].exists()


@pytest.mark.timeout(30)
def test_what_somebody_else_puts_there_is_left_alone_and_waited_for_by_nobody(tmp_path: Path) -> None:
    """A pipe or a link in the place of the lock, a link in that of a folder, and a folder of another user."""
    place, elsewhere = tmp_path / "memory", tmp_path / "elsewhere"
    left = [place / f"{PREFIX}{name}" for name in ("pipe", "link", "empty", "theirs")]
    for folder in (elsewhere, *left):
        folder.mkdir(parents=True)
    os.mkfifo(left[0] / LOCK)
    (elsewhere / LOCK).touch()
    (left[1] / LOCK).symlink_to(elsewhere / LOCK)
    (left[3] / LOCK).touch()
    if os.getuid() == 0:
        os.chown(left[3], 12345, 12345)
    else:
        left.pop()
    (place / f"{PREFIX}folder-link").symlink_to(elsewhere)
    made = make_folder(place)
    assert stat.S_IMODE((made / LOCK).stat().st_mode) == 0o600
    assert all(folder.is_dir() for folder in left) and (elsewhere / LOCK).exists()


def test_without_a_memory_file_system_the_temporary_folder_is_used(tmp_path: Path) -> None:
    made = make_folder(tmp_path / "missing")
    assert made.is_dir()
    (made / LOCK).unlink()
    made.rmdir()
