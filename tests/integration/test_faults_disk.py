"""A disk that is really full, at each write of a generation: one clear line, nothing half, and the run resumes."""

import io
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import Store, StoreUnavailable, open_store
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


@pytest.mark.parametrize("pages", [pytest.param(9, id="coarse")])
def test_a_full_disk_at_each_write_of_a_generation(disk: Disk, tmp_path: Path, pages: int) -> None:
    """Each start has a few pages more than the one before it, and stops a few writes later. Epoch and lease take three."""
    whole = open_store(str(tmp_path / "whole"))
    assert attempt(whole) == ""
    store, said, more = open_store(str(disk.folder)), [""], 0
    disk.leave(0)
    while line := attempt(store):
        assert line.endswith(": No space left on device") and "\n" not in line
        more = more + 1 if line == said[-1] else 0  # what is larger than the pages that are left
        said.append(line)
        disk.leave(pages + more << 12)
    disk.resize(ENOUGH)
    assert attempt(store) == "" and fsck(Run(store, "smoke")) == []
    assert tree(store) == tree(whole)
    assert [uri for uri in store.list("smoke/", hidden=True) if ".tmp-" in uri] == []
    stopped = {line.partition(": ")[0] for line in said[1:]}
    written = set(whole.list("smoke/"))
    print(f"{len(said) - 1} stops at {len(stopped & written)} of {len(written)} artifacts, and at {sorted(stopped - written)}")
    assert len(stopped & written) > (0.9 if pages == 3 else 0.1) * len(written)


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
