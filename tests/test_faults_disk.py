"""A disk that is really full, at each write of a generation: one clear line, nothing half, and the run resumes."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import example_run
import pytest

from flows.fsck import fsck
from flows.lease import hold
from flows.manifest import Run
from flows.storage import Store, StoreUnavailable, open_store
from tests.test_manifest import tree

ENOUGH = 1 << 26


class Disk:
    """A file system of its own in memory, whose size can be changed while it is in use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={ENOUGH}", "tmpfs", folder], capture_output=True, text=True
        )
        if mounted.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")

    def resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)

    def leave(self, free: int) -> None:
        """As many bytes are free from now on, in whole pages."""
        found = os.statvfs(self.folder)
        self.resize(max(1, (found.f_blocks - found.f_bfree) * found.f_frsize + free))  # 0 would be no limit


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    made = Disk(tmp_path / "disk")
    yield made
    subprocess.run(["umount", "--lazy", made.folder], check=True)


class Filling:
    """The store, whose disk is full from the n-th write on."""

    def __init__(self, store: Store, disk: Disk, number: int) -> None:
        self._store, self._disk, self._left = store, disk, number
        self.url, self.stopped = store.url, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, uri: str, data: bytes) -> str | None:
        self._left -= 1
        if self._left == 0:
            self._disk.leave(0)
            self.stopped = uri
        return self._store.create(uri, data)


def attempt(store: Any) -> str:
    """Builds or resumes the run; what was said when the disk was full, empty when the run is whole."""
    try:
        with hold(store, "smoke") as epoch:
            example_run.build(Run(store, "smoke", epoch), 1)
    except StoreUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("every", [pytest.param(8, id="some"), pytest.param(1, id="each", marks=pytest.mark.slow)])
def test_a_full_disk_at_each_write_of_a_generation(disk: Disk, tmp_path: Path, every: int) -> None:
    whole, store = open_store(str(tmp_path / "whole")), open_store(str(disk.folder))
    assert attempt(whole) == ""
    stopped, number = set(), 1
    while line := attempt(filling := Filling(store, disk, number)):
        assert line.endswith(": No space left on device") and "\n" not in line
        stopped.add(filling.stopped)
        number += every
        disk.resize(ENOUGH)
    assert fsck(Run(store, "smoke")) == [] and tree(store) == tree(whole)
    assert [uri for uri in store.list("smoke/", hidden=True) if ".tmp-" in uri] == []
    print(f"{(number - 1) // every} stops at {len(stopped)} writes of {len(whole.list('smoke/'))} artifacts")
    assert stopped >= set(whole.list("smoke/")) if every == 1 else len(stopped) > 4


def test_a_full_disk_stops_no_heartbeat_for_good(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    """While it is full the lease cannot be renewed, and that is said; when there is room again, it is."""
    store = open_store(str(disk.folder))
    with hold(store, "smoke", beat_seconds=0.05) as epoch:
        disk.leave(0)
        while "run smoke: the heartbeat failed (smoke/.lease: No space left on device)" not in capsys.readouterr().err:
            pass
        disk.resize(ENOUGH)
        while "run smoke: the heartbeat succeeds again" not in capsys.readouterr().err:
            pass
        example_run.build(Run(store, "smoke", epoch), 1)
    assert fsck(Run(store, "smoke")) == []
