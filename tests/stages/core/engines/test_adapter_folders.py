"""Adapters are where vLLM's process finds them: in memory where all fit, otherwise on disk."""

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stages.core.engines.adapter_folders import AdapterFolders
from stages.core.engines.memory_folders import LOCK
from stages.core.lora.adapter_files import WEIGHTS_FILE

WEIGHTS = {
    f"base_model.model.model.layers.0.self_attn.q_proj.lora_{name}.weight": np.ones(shape, np.float32)
    for name, shape in {"A": (2, 3), "B": (5, 2)}.items()
}


@pytest.fixture(autouse=True)
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder."""
    made = tmp_path / "spare"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


@pytest.mark.parametrize(("most", "on_disk"), [(4, False), (10**15, True)])
def test_they_are_on_disk_where_the_memory_file_system_has_no_room_for_all(tmp_path: Path, spare: Path, most: int, on_disk: bool):
    memory = tmp_path / "memory"
    memory.mkdir()
    folders = AdapterFolders(4.0, most, memory)
    assert folders.folder is None and not list(memory.iterdir())
    place = folders.write(1, WEIGHTS)
    assert place.is_relative_to(spare if on_disk else memory) and folders.write(2, WEIGHTS).parent == place.parent
    assert sorted(load_file(place / WEIGHTS_FILE)) == sorted(WEIGHTS)
    folders.close()
    assert not place.parent.exists()


def full(*folders: Path) -> Callable[[Path, bytes], int]:
    """A `write_bytes` that writes half a file where these folders are full."""
    write = Path.write_bytes

    def written(path: Path, data: bytes) -> int:
        if not any(path.is_relative_to(folder) for folder in folders):
            return write(path, data)
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    return written


def test_what_no_longer_fits_into_memory_goes_to_disk(tmp_path: Path, spare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine has filled the memory file system after this one chose it."""
    memory = tmp_path / "memory"
    memory.mkdir()
    folders = AdapterFolders(4.0, 4, memory)
    first = folders.write(1, WEIGHTS)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full(memory))
        second = folders.write(2, WEIGHTS)
    third = folders.write(3, WEIGHTS)
    assert first.is_relative_to(memory) and second.is_relative_to(spare) and third.parent == second.parent
    assert [(place / WEIGHTS_FILE).read_bytes() for place in (second, third)] == [(first / WEIGHTS_FILE).read_bytes()] * 2
    assert sorted(path.name for path in first.parent.iterdir()) == ["000001", LOCK], "nothing is left of what did not fit"
    folders.close()
    assert not list(memory.iterdir()) and not list(spare.iterdir())


def test_a_full_disk_is_named(tmp_path: Path, spare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    folders = AdapterFolders(4.0, 4, memory)
    folders.write(1, WEIGHTS)
    monkeypatch.setattr(Path, "write_bytes", full(memory, spare))
    with pytest.raises(OSError, match=rf"No space left for vLLM's adapters, .* GB, in {spare}: '{spare}/populora-adapters-"):
        folders.write(2, WEIGHTS)
    assert not list(spare.glob("*/000002"))
