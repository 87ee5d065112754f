"""Checks that a store keeps the guarantees that runs depend on, for `populora doctor --store URL`.

They write to a separate run (`doctor-…`) and remove it. Imports no Prefect and no torch.
"""

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flows.run.lease import LeaseHeld, hold
from flows.run.run import Run
from flows.storage import NotStored, Store, StoreRefused, StoreUnavailable, open_store
from flows.store.file_store import FileStore

RACERS = 16
LARGE = 70 << 20  # more than two parts, so that servers with conditional multipart uploads show them


@dataclass(frozen=True)
class Check:
    """One guarantee, whether it held, and what was observed."""

    name: str
    good: bool
    detail: str


def conformance(url: str, large: int = LARGE) -> Iterator[Check]:
    """Test every guarantee on the store; stop at the first that cannot be tested. Raises StoreRefused for an unusable URL."""
    store, run_id = open_store(url), f"doctor-{secrets.token_hex(6)}"
    tries: list[tuple[str, Callable[[Store, str], str]]] = [
        ("write and read back", _round_trip),
        ("never overwritten", _created_once),
        ("one of many writers wins", _race),
        ("large objects", lambda store, run_id: _large(store, run_id, large)),
        ("listing", _listing),
        ("removal", _removal),
        ("lease and fence", _lease),
    ]
    try:
        for name, attempt in tries:
            try:
                began = time.monotonic()
                yield Check(name, True, f"{attempt(store, run_id)} in {time.monotonic() - began:.2f} s")
            except (AssertionError, NotStored, LeaseHeld) as error:
                yield Check(name, False, str(error))
            except (StoreRefused, StoreUnavailable) as error:
                yield Check(name, False, str(error))
                return
    finally:
        _clean(store, run_id)


def _round_trip(store: Store, run_id: str) -> str:
    data = secrets.token_bytes(1000)
    _must(bool(store.create(f"{run_id}/a.bin", data)), "a new artifact was refused")
    _must(store.read(f"{run_id}/a.bin") == data, "the bytes read differ from those written")
    _must(store.size(f"{run_id}/a.bin") == 1000 and store.exists(f"{run_id}/a.bin"), "its size or existence is wrong")
    _must(
        not store.exists(f"{run_id}/b.bin") and store.stamp(f"{run_id}/b.bin") == "", "a missing artifact is reported as present"
    )
    return "1 kB"


def _created_once(store: Store, run_id: str) -> str:
    _must(store.create(f"{run_id}/a.bin", b"other") is None, "a second write under one name was accepted")
    _must(store.read(f"{run_id}/a.bin") != b"other", "a second write replaced the first")
    return "the second writer is notified"


def _race(store: Store, run_id: str) -> str:
    start = threading.Barrier(RACERS)

    def write(number: int) -> bool:
        start.wait()
        return bool(store.create(f"{run_id}/race.bin", bytes([number]) * 1000))

    for _ in range(3):
        with ThreadPoolExecutor(RACERS) as pool:
            won = [number for number, first in enumerate(pool.map(write, range(RACERS))) if first]
        _must(len(won) == 1, f"{len(won)} of {RACERS} concurrent writers were told that they were first")
        _must(store.read(f"{run_id}/race.bin") == bytes(won) * 1000, "the winner's bytes are not what is stored")
        store.delete(f"{run_id}/race.bin")
    return f"{RACERS} writers, 3 times"


def _large(store: Store, run_id: str, size: int) -> str:
    data = secrets.token_bytes(1 << 20) * (size >> 20)
    began = time.monotonic()
    _must(bool(store.create(f"{run_id}/large.bin", data)), "a new large artifact was refused")
    written = time.monotonic()
    _must(store.read(f"{run_id}/large.bin") == data, "the bytes read differ from those written")
    read = time.monotonic()
    _must(store.create(f"{run_id}/large.bin", data[::-1]) is None, "a second large write under one name was accepted")
    _must(store.read(f"{run_id}/large.bin")[:1000] == data[:1000], "a second large write replaced the first")
    return f"{size / 1e6 / (written - began):.0f} MB/s written, {size / 1e6 / (read - written):.0f} MB/s read,"


def _listing(store: Store, run_id: str) -> str:
    names = [f"{run_id}/list/{number:04d}.bin" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.create(name, b"x"), names))
    store.replace(f"{run_id}/list/.hidden", b"x")
    _must(store.list(f"{run_id}/list/") == names, "a listing is not what was written, sorted")
    _must(len(store.list(f"{run_id}/list/", hidden=True)) == 41, "dotted names cannot be listed")
    return "40 artifacts"


def _removal(store: Store, run_id: str) -> str:
    store.delete(f"{run_id}/a.bin")
    store.delete(f"{run_id}/a.bin")
    _must(not store.exists(f"{run_id}/a.bin"), "a removed artifact is still there")
    _must(bool(store.create(f"{run_id}/a.bin", b"again")), "a removed name cannot be used again")
    return "twice, and written again"


def _lease(store: Store, run_id: str) -> str:
    with hold(store, run_id, beat_seconds=0.2) as epoch:
        run = Run(store, run_id, epoch)
        run.commit("match", 0, [], [run.write_blob("generation=0000/matches.parquet", b"data")])
        _must(run.done("match", 0), "a stage that committed does not count as done")
        try:
            with hold(store, run_id, beat_seconds=0.2):
                raise AssertionError("two processes held one run")
        except LeaseHeld:
            pass  # expected
    return "a second holder is refused"


def _clean(store: Store, run_id: str) -> None:
    """Remove what the checks wrote, as far as the store allows."""
    try:
        for uri in store.list(f"{run_id}/", hidden=True):
            store.delete(uri)
        if isinstance(store, FileStore):
            shutil.rmtree(store.root / run_id, ignore_errors=True)
    except (StoreRefused, StoreUnavailable):
        pass  # the finding has already been reported


def _must(kept: bool, otherwise: str) -> None:
    if not kept:
        raise AssertionError(otherwise)
