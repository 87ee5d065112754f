"""Copies of artifacts on this machine: read once per machine, verified, limited, and never the reason for a failure."""

import fcntl
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from flows.store import local_copies
from flows.store.errors import NotStored, StoreRefused
from flows.store.local_copies import LIMIT, LocalCopies, of_store

DATA = bytes(range(256)) * 4
DIGEST = sha256(DATA).hexdigest()


def counted(log: Path, data: bytes = DATA) -> Callable[[], bytes]:
    """A read of the store that leaves a line per call."""

    def read() -> bytes:
        with log.open("a") as lines:
            lines.write("read\n")
        time.sleep(0.2)  # so that all others come meanwhile
        return data

    return read


def reads(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def read_in_a_process(folder: Path, log: Path, barrier: Any) -> bytes:
    barrier.wait(60)
    return LocalCopies(folder, 10**6).read(DIGEST, counted(log))


def other(number: int) -> tuple[str, bytes]:
    data = bytes([number]) * 1000
    return sha256(data).hexdigest(), data


def test_processes_that_want_an_artifact_at_the_same_time_read_it_once(tmp_path: Path) -> None:
    log, spawn = tmp_path / "log", multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(4, spawn) as processes:
        barrier = manager.Barrier(4)
        found = [processes.submit(read_in_a_process, tmp_path / "copies", log, barrier) for _ in range(4)]
        assert all(one.result() == DATA for one in found)
    assert reads(log) == 1


def test_a_damaged_copy_is_read_again_and_replaced(tmp_path: Path) -> None:
    copies, log = LocalCopies(tmp_path / "copies", 10**6), tmp_path / "log"
    copies.keep(DIGEST, DATA)
    (tmp_path / "copies" / DIGEST).write_bytes(DATA[:-1])
    assert copies.read(DIGEST, counted(log)) == DATA and reads(log) == 1
    assert copies.read(DIGEST, counted(log)) == DATA and reads(log) == 1


def test_those_read_least_recently_make_room(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 3000)
    for number in range(3):
        copies.keep(*other(number))
        os.utime(tmp_path / other(number)[0], (number, number))
    copies.read(other(0)[0], lambda: pytest.fail("the copy was lost"))
    copies.keep(*other(3))
    left = {place.name for place in tmp_path.iterdir() if place.is_file()}
    assert left == {other(number)[0] for number in (0, 2, 3)}
    copies.keep(sha256(bytes(3001)).hexdigest(), bytes(3001))
    assert {place.name for place in tmp_path.iterdir() if place.is_file()} == left


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left, at_work = tmp_path / f".{DIGEST}.1.1", tmp_path / f".{DIGEST}.2.2"
    for place in (left, at_work):
        place.write_bytes(b"half")
    os.utime(left, (1, 1))
    LocalCopies(tmp_path, 10**6).keep(DIGEST, DATA)
    assert not left.exists() and at_work.exists() and (tmp_path / DIGEST).read_bytes() == DATA


def test_a_process_that_hangs_holds_up_nobody_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "WAIT_SECONDS", 0.1)
    (tmp_path / "locks").mkdir()
    with (tmp_path / "locks" / DIGEST[:2]).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert LocalCopies(tmp_path, 10**6).read(DIGEST, lambda: DATA) == DATA


@pytest.mark.parametrize("limit", [0, 10**6])
def test_where_nothing_can_be_kept_the_store_is_read(tmp_path: Path, limit: int) -> None:
    no_folder, log = tmp_path / "file", tmp_path / "log"
    no_folder.write_text("")
    copies = LocalCopies(no_folder, limit)
    copies.keep(DIGEST, DATA)
    for _ in range(2):
        assert copies.read(DIGEST, counted(log)) == DATA
    assert reads(log) == 2


def test_a_disk_that_is_nearly_full_gets_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "SPARE_BYTES", 2**62)
    LocalCopies(tmp_path, 10**6).keep(DIGEST, DATA)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_nearly_full_loses_old_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = LocalCopies(tmp_path, 10**6)
    for number in range(3):
        copies.keep(*other(number))
        os.utime(tmp_path / other(number)[0], (number, number))
    free = [0, 2 * local_copies.SPARE_BYTES]  # before and after the oldest has gone
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, free.pop(0) if len(free) > 1 else free[0])
    )
    copies.keep(DIGEST, DATA)
    assert {place.name for place in tmp_path.iterdir()} == {DIGEST, other(1)[0], other(2)[0]}


def test_a_copy_that_cannot_be_touched_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = LocalCopies(tmp_path, 10**6)
    copies.keep(DIGEST, DATA)
    monkeypatch.setattr(os, "utime", lambda place: (_ for _ in ()).throw(PermissionError()))
    assert copies.read(DIGEST, lambda: pytest.fail("the copy was not used")) == DATA


def test_what_the_store_raises_is_passed_on_and_nothing_is_kept(tmp_path: Path) -> None:
    def missing() -> bytes:
        raise NotStored("no such artifact")

    copies = LocalCopies(tmp_path, 10**6)
    with pytest.raises(NotStored):
        copies.read(DIGEST, missing)
    assert not (tmp_path / DIGEST).exists()
    with (tmp_path / "locks" / DIGEST[:2]).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its turn has ended


def test_only_a_store_on_a_network_is_copied(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert of_store("file:///runs", environment).limit == 0
    found = of_store("s3://bucket/runs", environment)
    assert (found.folder, found.limit) == (tmp_path / "populora" / "adapters", 8 * 10**9)
    assert of_store("s3://bucket/runs", environment | {LIMIT: "0.5"}).limit == 5 * 10**8
    assert of_store("s3://bucket/runs", environment | {LIMIT: "0"}).limit == 0


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan"])
def test_a_wrong_limit_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(StoreRefused, match=f"{LIMIT}={text}: give the gigabytes"):
        of_store("s3://bucket/runs", {LIMIT: text})
