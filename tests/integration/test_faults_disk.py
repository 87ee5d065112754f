"""A disk that is really full, at each write of a generation: one clear line, nothing half, and the run resumes."""

import io
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import Store, StoreUnavailable, open_store
from flows.store.file_store import FileStore
from tests.flows.run.test_manifest import tree
from tests.support import example_run

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


def attempt(store: Store) -> str:
    """Builds or resumes the run; what was said when the disk was full, empty when the run is whole."""
    try:
        with hold(store, "smoke") as epoch:
            example_run.build(Run(store, "smoke", epoch), 1)
    except StoreUnavailable as error:
        return str(error)
    return ""


class FillsUp(FileStore):
    """Has room for `share` of the bytes of an artifact when it is first written, and enough room for it afterwards."""

    def __init__(self, disk: Disk, share: float) -> None:
        super().__init__(disk.folder)
        self.disk, self.share, self.met, self.stopped = disk, share, set[str](), list[str]()
        self.one_at_a_time = threading.Lock()

    def create(self, uri: str, data: bytes) -> str | None:
        with self.filled(uri, len(data)):
            return super().create(uri, data)

    def replace(self, uri: str, data: bytes) -> None:
        with self.filled(uri, len(data)):
            super().replace(uri, data)

    @contextmanager
    def filled(self, uri: str, size: int) -> Iterator[None]:
        name = re.sub(r"[.]epoch-[0-9]+", ".epoch", uri)
        with self.one_at_a_time:
            if name not in self.met:
                self.met.add(name)
                self.disk.leave(int(self.share * size) >> 12 << 12)
            try:
                yield
            except StoreUnavailable:
                self.stopped.append(name)
                raise
            finally:
                self.disk.resize(ENOUGH)


@pytest.mark.parametrize("share", [pytest.param(0.0, id="first-byte"), pytest.param(0.5, id="half-way")])
def test_a_full_disk_at_each_write_of_a_generation(disk: Disk, tmp_path: Path, share: float) -> None:
    whole, store = open_store(str(tmp_path / "whole")), FillsUp(disk, share)
    assert attempt(whole) == ""
    while line := attempt(store):
        assert line.endswith(": No space left on device") and "\n" not in line
    assert sorted(store.stopped) == sorted(store.met)
    assert {*whole.list("smoke/"), "smoke/.lease", "smoke/.epoch"} <= store.met
    assert fsck(Run(store, "smoke")) == [] and tree(store) == tree(whole)
    assert [uri for uri in store.list("smoke/", hidden=True) if ".tmp-" in uri] == []


def wait_for(message: str, messages: io.StringIO) -> None:
    while message not in messages.getvalue():
        time.sleep(0.01)


def test_a_full_disk_stops_no_heartbeat_for_good(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is full the lease cannot be renewed, and that is said; when there is room again, it is."""
    monkeypatch.setattr("sys.stderr", messages := io.StringIO())  # capsys may lose what another thread writes while it is read
    store = open_store(str(disk.folder))
    with hold(store, "smoke", beat_seconds=0.05) as epoch:
        disk.leave(0)
        wait_for("run smoke: the heartbeat failed (smoke/.lease: No space left on device)", messages)
        disk.resize(ENOUGH)
        wait_for("run smoke: the heartbeat succeeds again", messages)
        example_run.build(Run(store, "smoke", epoch), 1)
    assert fsck(Run(store, "smoke")) == []
