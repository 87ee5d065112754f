"""Adapters are where vLLM's process finds them: in memory where a role's fit, otherwise on disk."""

import errno
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stages.core.engines.adapter_folders import AdapterFolders
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


def test_a_full_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = AdapterFolders(4.0, 4, tmp_path)
    folders.write(1, WEIGHTS)

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        OSError, match=rf"No space left for vLLM's adapters, .* GB, in {tmp_path}: '{tmp_path}/populora-adapters-"
    ):
        folders.write(2, WEIGHTS)
