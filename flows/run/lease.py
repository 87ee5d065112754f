"""Who may start a run (the lease), and who may commit to it (the epoch).

`.lease` names its holder and carries a heartbeat. A holder that is dead on this host is taken over at once; any other is
watched by our own monotonic clock until its heartbeat has stood still for STALE_SECONDS. Clocks of two machines are never
compared. `.epoch-000001`, ... are created conditionally, one at each start; only the owner of the newest may commit, so a holder
that was frozen and wakes up too late finds itself fenced off.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flows.storage import Store
from flows.store.file_store import NotStored, StoreRefused, StoreUnavailable, check_run_id

BEAT_SECONDS = 2.0
STALE_SECONDS = 30.0

Json = dict[str, Any]


class LeaseHeld(Exception):
    """Another process is working on this run; the message says which."""

    exit_code = 1


class Fenced(Exception):
    """Another process has taken this run over: nothing may be committed any more."""

    exit_code = 1


def newest_epoch(store: Store, run_id: str) -> int:
    """The number of the run's newest epoch; 0 if it was never started."""
    names = store.list(f"{run_id}/.epoch-", hidden=True)
    return max((int(name.rpartition("-")[2]) for name in names), default=0)


def check_epoch(store: Store, run_id: str, epoch: int) -> None:
    """Raises Fenced, naming the new owner, unless `epoch` is still the newest."""
    newest = newest_epoch(store, run_id)
    if newest != epoch:
        owner = _read(store, _epoch_uri(run_id, newest)) or {}
        raise Fenced(f"run {run_id} was taken over by {_who(owner)}; this process (epoch {epoch}) commits nothing more")


@contextmanager
def hold(store: Store, run_id: str, beat_seconds: float = BEAT_SECONDS, stale_seconds: float = STALE_SECONDS) -> Iterator[int]:
    """Holds the run's lease while the block runs and yields our epoch. Raises LeaseHeld if somebody else is at work."""
    check_run_id(run_id)
    identity = _identity()
    epoch = _acquire(store, run_id, identity, beat_seconds, stale_seconds)
    stop = threading.Event()
    beating = threading.Thread(
        target=_beat, args=(store, run_id, identity, beat_seconds, stop), name=f"lease-{run_id}", daemon=True
    )
    beating.start()
    try:
        for folder in ("start/", "generation=", "adapters/"):  # not benchmarks: they may be written without the lease
            store.sweep(f"{run_id}/{folder}")
        yield epoch
    finally:
        stop.set()
        beating.join()
        _release(store, run_id, identity)


def _identity() -> Json:
    """Who we are, precisely enough that another process can tell whether we live."""
    pid = os.getpid()
    return {
        "schema": 1,
        "host": socket.gethostname(),
        "boot": _first_line("/proc/sys/kernel/random/boot_id"),
        "namespace": _link("/proc/self/ns/pid"),
        "pid": pid,
        "started": _started(pid),
        "token": secrets.token_hex(8),
    }


def _acquire(store: Store, run_id: str, identity: Json, beat_seconds: float, stale_seconds: float) -> int:
    """Creates our epoch and writes our lease. Every way round the loop ends in one of them or in LeaseHeld."""
    while True:
        holder = _read(store, _lease_uri(run_id))
        if holder is not None and not _dead_here(holder, identity):
            _wait_until_stale(store, run_id, holder, beat_seconds, stale_seconds)
        epoch = newest_epoch(store, run_id) + 1
        with store.lock(run_id):
            still = _read(store, _lease_uri(run_id))
            unchanged = (still or {}).get("token") == (holder or {}).get("token")
            if unchanged and store.create(_epoch_uri(run_id, epoch), _bytes(identity | {"epoch": epoch})):
                store.replace(_lease_uri(run_id), _bytes(identity | {"beat": 0}))
                return epoch


def _wait_until_stale(store: Store, run_id: str, holder: Json, beat_seconds: float, stale_seconds: float) -> None:
    """Returns when the holder's heartbeat has stood still long enough or its lease is gone. Raises LeaseHeld when it beats."""
    began = time.monotonic()
    while time.monotonic() - began < stale_seconds:
        time.sleep(min(beat_seconds, stale_seconds) / 2)
        now = _read(store, _lease_uri(run_id))
        if now is None:
            return
        if now != holder:
            raise LeaseHeld(f"run {run_id} is being worked on by {_who(now)}; stop that process first, or wait for it")


def _beat(store: Store, run_id: str, identity: Json, beat_seconds: float, stop: threading.Event) -> None:
    """Renews the lease until told to stop or until it is somebody else's. A store that fails is tried again."""
    beat = 0
    while not stop.wait(beat_seconds):
        beat += 1
        with suppress(StoreUnavailable, StoreRefused), store.lock(run_id):
            holder = _read(store, _lease_uri(run_id))
            if holder is None or holder.get("token") != identity["token"]:
                return
            store.replace(_lease_uri(run_id), _bytes(identity | {"beat": beat}))


def _release(store: Store, run_id: str, identity: Json) -> None:
    """Removes the lease if it is still ours; a store that fails leaves it to be found stale."""
    with suppress(StoreUnavailable, StoreRefused), store.lock(run_id):
        holder = _read(store, _lease_uri(run_id))
        if holder is not None and holder.get("token") == identity["token"]:
            store.delete(_lease_uri(run_id))


def _dead_here(holder: Json, identity: Json) -> bool:
    """Whether the holder ran among this host's processes, since its last boot, and certainly is no more.

    Anything less certain (another boot id may be another machine of the same name) is left to the heartbeat.
    """
    if any(holder.get(key) != identity[key] for key in ("host", "boot", "namespace")):
        return False
    return _started(int(holder.get("pid", 0))) != holder.get("started")


def _started(pid: int) -> str:
    """When the process started, in the kernel's ticks; empty when there is no such process or it is a zombie."""
    line = _first_line(f"/proc/{pid}/stat")
    if line:
        fields = line.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"


def _read(store: Store, uri: str) -> Json | None:
    """A lease or epoch file; None if there is none, empty if it cannot be read."""
    try:
        return dict(json.loads(store.read(uri)))
    except NotStored:
        return None
    except ValueError:
        return {}


def _bytes(values: Json) -> bytes:
    return json.dumps(values, sort_keys=True).encode() + b"\n"


def _who(holder: Json) -> str:
    return f"process {holder.get('pid', '?')} on host {holder.get('host', '?')}"


def _lease_uri(run_id: str) -> str:
    return f"{run_id}/.lease"


def _epoch_uri(run_id: str, epoch: int) -> str:
    return f"{run_id}/.epoch-{epoch:06d}"


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
