"""Who may start a run (the lease), and who may commit to it (the epoch).

`.lease` names its holder and carries a heartbeat. The lease of a holder that is dead on this host is taken over immediately. Any
other is watched by our own monotonic clock until its heartbeat is unchanged for STALE_SECONDS. Clocks of two machines are never
compared. A holder that cannot renew its lease stops before that time is over (flows.run.heartbeat). `.epoch-347102553`, ... are
created conditionally, one per start. Only the owner of the newest may commit, so a holder that was frozen and wakes up too
late is fenced off. If it still wrote a heartbeat, the owner of the newest epoch writes its own lease again. A run's first epoch
is a random number, so those of a run that was removed are never those of one that began under the same id.
"""

import json
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.run.heartbeat import Heartbeat
from flows.storage import Store
from flows.store.errors import NotStored, StoreRefused, StoreUnavailable
from flows.store.names import check_run_id

BEAT_SECONDS = 2.0
STALE, LEAST_STALE = "POPULORA_STALE_SECONDS", 5 * BEAT_SECONDS


def _seconds(text: str) -> float:
    """Return the seconds that a text says; 0, which `hold` refuses, where it says none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


STALE_SECONDS = _seconds(os.environ.get(STALE) or "180")
"""How long a heartbeat must be unchanged: longer than a store may be unreachable. The same on all machines that use a store."""
FIRST_EPOCHS = 10**9
GIVE_UP = 5 / 6
"""Share of that time after which a holder stops; the rest is for ending what it has started."""
STEP_PATIENCE = 2 / 3 * STALE_SECONDS
"""Seconds for which a step's process waits out an outage of the store, so that what it has computed is not lost: fewer than those
after which the holder stops. Whoever cancels a run kills that process, whatever it waits for."""
PATIENCE_SECONDS = 10.0

Json = dict[str, Any]
DOING = "doing"
"""What the holder computes, in its lease: see flows.monitoring.working."""
BEATEN = "beaten"
"""When the heartbeat was written, by the monotonic clock that the processes of one boot share."""


class LeaseHeld(Exception):
    """Another process is working on this run; the message states which."""

    exit_code = 1


class LeaseLost(StoreUnavailable):
    """The lease could not be renewed; the run was stopped while it was still ours."""


class Fenced(Exception):
    """Another process has taken over this run; nothing more may be committed."""

    exit_code = 1


def newest_epoch(store: Store, run_id: str) -> int:
    """Return the number of the run's newest epoch; 0 if it was never started."""
    names = store.list(f"{run_id}/.epoch-", hidden=True)
    return max((int(name.rpartition("-")[2]) for name in names), default=0)


def check_epoch(store: Store, run_id: str, epoch: int) -> None:
    """Raise Fenced, naming the new owner if there is one, unless `epoch` is still the newest."""
    newest = newest_epoch(store, run_id)
    if newest == epoch:
        return
    owner = (_read(store, _epoch_uri(run_id, newest)) or {}) if newest else {}
    removed = "removed while it worked" if not newest else f"removed, and started again by {_who(owner)}"
    what = removed if newest < epoch else f"taken over by {_who(owner)}"
    raise Fenced(f"run {run_id} was {what}; this process (epoch {epoch}) commits nothing more")


@dataclass(frozen=True)
class Holding:
    """A lease as found: its process as text, and a mark that changes with each heartbeat.

    `ended` and `alive`: whether the process certainly has ended, or certainly has not; neither for one that cannot be seen from
    here. `silent` is how many seconds ago the last heartbeat was written; None if that was not on this machine since it booted.
    `doing` is what the process said that it computes (flows.monitoring.working); empty if it said nothing.
    """

    who: str
    ended: bool
    alive: bool
    beat: str
    silent: float | None
    doing: Json


def holding(store: Store, run_id: str) -> Holding | None:
    """Return the lease of the run, or None if nobody holds it. A process of another host never counts as certainly ended."""
    holder = _read(store, _lease_uri(run_id))
    if holder is None:
        return None
    mark, ended, doing = f"{holder.get('token')} {holder.get('beat')}", _ended(holder, _identity()), holder.get(DOING)
    said = doing if isinstance(doing, dict) else {}
    return Holding(_who(holder), ended is True, ended is False, mark, _silence(holder), said)


def _silence(holder: Json) -> float | None:
    """Return how many seconds ago a lease's heartbeat was written; None if that was not on this machine since it booted."""
    here, beaten = _identity(), holder.get(BEATEN)
    if any(holder.get(key) != here[key] for key in ("host", "boot", "clock")) or not isinstance(beaten, float):
        return None
    seconds = time.monotonic() - beaten
    return seconds if seconds >= 0 else None  # else, on a system that names no boots, this one is later than the lease


@contextmanager
def hold(
    store: Store,
    run_id: str,
    beat_seconds: float = BEAT_SECONDS,
    stale_seconds: float = STALE_SECONDS,
    doing: Callable[[], Json] = dict,
) -> Iterator[int]:
    """Hold the run's lease while the block runs and yield our epoch. Each heartbeat carries what `doing` returns.

    Raises LeaseHeld if another process works on the run and, in the main thread, LeaseLost when the lease cannot be renewed and
    Fenced when another process has taken the run over. Raises StoreRefused for a POPULORA_STALE_SECONDS that no live process
    could keep: another one would take the run over at once.
    """
    check_run_id(run_id)
    if not LEAST_STALE <= STALE_SECONDS < math.inf:
        raise StoreRefused(f"{STALE}={os.environ.get(STALE)}: give a number of seconds, at least {LEAST_STALE:.0f}")
    identity = _identity()
    epoch = _acquire(store, run_id, identity, beat_seconds, stale_seconds)
    heart = Heartbeat(run_id, partial(_renew, store, run_id, identity, epoch, doing), beat_seconds, GIVE_UP * stale_seconds)
    heart.start()
    try:
        # not benchmarks: they may be written without the lease
        for folder in ("start/", "generation=", "adapters/", "gradients/"):
            store.sweep(f"{run_id}/{folder}")
        yield epoch
    except BaseException as error:
        if heart.taken:
            raise Fenced(heart.taken) from error
        if heart.lost:
            raise LeaseLost(heart.lost) from error
        raise
    finally:
        if heart.stop() and not heart.lost:
            _release(store, run_id, identity)


def _identity() -> Json:
    """Identify this process precisely enough that another one can tell whether it is alive."""
    pid = os.getpid()
    return {
        "schema": 1,
        "host": socket.gethostname(),
        "boot": _first_line("/proc/sys/kernel/random/boot_id"),
        "namespace": _link("/proc/self/ns/pid"),
        "clock": _link("/proc/self/ns/time"),  # in another time namespace a process seems to have started at another time
        "pid": pid,
        "started": _started(pid),
        "token": secrets.token_hex(8),
    }


def _acquire(store: Store, run_id: str, identity: Json, beat_seconds: float, stale_seconds: float) -> int:
    """Create our epoch and write our lease. The loop ends when both are written, or with LeaseHeld."""
    while True:
        holder = _read(store, _lease_uri(run_id))
        if holder is not None and not _dead_here(holder, identity):
            _wait_until_stale(store, run_id, holder, beat_seconds, stale_seconds)
        epoch = 1 + (newest_epoch(store, run_id) or secrets.randbelow(FIRST_EPOCHS))
        with store.lock(run_id):
            still = _read(store, _lease_uri(run_id))
            unchanged = (still or {}).get("token") == (holder or {}).get("token")
            created = unchanged and store.create(_epoch_uri(run_id, epoch), _bytes(identity | {"epoch": epoch}))
            if created and newest_epoch(store, run_id) == epoch:  # on S3, two first starts may have created one each
                store.replace(_lease_uri(run_id), _bytes(identity | {"beat": 0, BEATEN: time.monotonic()}))
                return epoch


def _wait_until_stale(store: Store, run_id: str, holder: Json, beat_seconds: float, stale_seconds: float) -> None:
    """Return once the holder's heartbeat is stale or its lease is gone. Raises LeaseHeld if the heartbeat changes."""
    began = time.monotonic()
    told = False
    while time.monotonic() - began < stale_seconds:
        if not told and time.monotonic() - began > PATIENCE_SECONDS:
            told = True
            waits = f"taking over once its heartbeat has not changed for {stale_seconds:.0f} s"
            with suppress(OSError):  # a line that nobody can read
                print(f"run {run_id}: {_who(holder)} left its lease; {waits}", file=sys.stderr, flush=True)
        time.sleep(min(beat_seconds, stale_seconds) / 2)
        now = _read(store, _lease_uri(run_id))
        if now is None:
            return
        if now != holder:
            raise LeaseHeld(f"run {run_id} is in use by {_who(now)}; stop that process first, or wait for it")


def _renew(store: Store, run_id: str, identity: Json, epoch: int, doing: Callable[[], Json], beat: int) -> str:
    """Write the next heartbeat. If there is a newer epoch, write nothing and return who has the run.

    The epoch decides, not the lease: a process that was overtaken may still write one heartbeat over the new owner's.
    Without the lock: a store that does not answer would keep the run's own commits waiting for it.
    """
    computed = doing()
    holder = _read(store, _lease_uri(run_id)) or {}
    if holder.get("token") != identity["token"]:
        try:
            check_epoch(store, run_id, epoch)
        except Fenced as fenced:
            return str(fenced)
    now = {"beat": beat, BEATEN: time.monotonic()}
    store.replace(_lease_uri(run_id), _bytes(identity | now | ({DOING: computed} if computed else {})))
    return ""


def _release(store: Store, run_id: str, identity: Json) -> None:
    """Remove the lease if it is still ours; if the store fails, the lease stays and becomes stale."""
    with suppress(StoreUnavailable, StoreRefused), store.lock(run_id):
        holder = _read(store, _lease_uri(run_id))
        if holder is not None and holder.get("token") == identity["token"]:
            store.delete(_lease_uri(run_id))


def _dead_here(holder: Json, identity: Json) -> bool:
    """Return whether the holder has certainly ended. Anything less certain is left to the heartbeat."""
    return _ended(holder, identity) is True


def _ended(holder: Json, identity: Json) -> bool | None:
    """Return whether the holder has ended; None unless it ran among the processes that this one sees, since their last boot.

    Another boot id may be another machine of the same name, another namespace another container.
    """
    if any(holder.get(key) != identity[key] for key in ("host", "boot", "namespace")):
        return None
    if holder.get("clock", identity["clock"]) != identity["clock"]:
        return None
    started = _started(int(holder.get("pid", 0)))
    return None if started is None else started != holder.get("started")


def _started(pid: int, processes: str = "/proc") -> str | None:
    """Return when the process started, in kernel ticks; empty if there is no such process or it is a zombie.

    None if there is one of which this user may know no more: `processes` may be mounted so that it hides those of others.
    """
    line = _first_line(f"{processes}/{pid}/stat")
    if line:
        fields = line.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return None
    return "" if Path(f"{processes}/self/stat").exists() else "alive"


def _read(store: Store, uri: str) -> Json | None:
    """Return a lease or epoch file; None if there is none, empty if it is garbled. Errors of the store pass through."""
    try:
        data = store.read(uri)
    except NotStored:
        return None
    try:
        return dict(json.loads(data))
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
