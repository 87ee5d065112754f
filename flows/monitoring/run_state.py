"""Whether a run is running, without heartbeat, finished, stopped or crashed: from its lease, and from what it has committed.

A lease whose process has ended on this host was left by a crash (a clean stop removes it). A process of this host that has not
ended but writes no heartbeat may be suspended. A process that cannot be seen from here, of another host or container, has no
heartbeat after SILENT_SECONDS and counts as crashed after STALE_SECONDS: by the time in its lease, if this machine's clock wrote
it, else by how long this process has seen no change.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from flows.run.lease import STALE_SECONDS, Holding, holding
from flows.run.manifest import Json
from flows.storage import Store

SILENT_SECONDS = 30.0  # a heartbeat comes every two seconds


class RunState(StrEnum):
    """What a run is doing."""

    RUNNING = "running"
    SILENT = "no heartbeat"
    FINISHED = "finished"
    STOPPED = "stopped"
    CRASHED = "crashed"
    UNREADABLE = "unreadable"  # its run.json is damaged, or of a newer version


def silent_text(who: str) -> str:
    """Return what a run's missing heartbeat may mean; `who` is the process that holds its lease."""
    may = "may be suspended (kill -CONT with its number resumes it) or dead, or may have lost the store"
    return f"{RunState.SILENT} for more than {SILENT_SECONDS:.0f} s: {who or 'its process'} {may}"


@dataclass(frozen=True)
class Standing:
    """The state of a run, and the process that works on it or that left its lease (empty: none).

    `lease` is what that process wrote last, `silent` how many seconds ago: as written on this machine, else since this reader
    saw it change.
    """

    state: RunState
    who: str
    lease: Holding | None = field(default=None, compare=False)
    silent: float = field(default=0.0, compare=False)

    @property
    def held(self) -> bool:
        """Whether a process works on the run, as far as can be seen."""
        return self.state in (RunState.RUNNING, RunState.SILENT)

    @property
    def doing(self) -> Json:
        """What the process that works on the run says that it computes; empty without one."""
        return self.lease.doing if self.lease is not None and self.held else {}

    def when(self, complete: bool) -> "Standing":
        """Return the standing of a run that has committed its last planned stage: finished, unless a process works on it."""
        return replace(self, state=RunState.FINISHED, who="") if complete and not self.held else self


class StateReader:
    """Reads states, and remembers when each heartbeat was last seen to change."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic, stale_seconds: float = STALE_SECONDS) -> None:
        self._store, self._clock, self._stale_seconds = store, clock, stale_seconds
        self._beats: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def standing(self, run_id: str, complete: bool) -> Standing:
        """Return the state of a run; `complete`: whether it has committed its last planned stage."""
        found = holding(self._store, run_id)
        if found is None:
            return Standing(RunState.STOPPED, "").when(complete)
        silent = self._silent(run_id, found)
        if found.ended or not (found.alive or silent <= self._stale_seconds):
            state = RunState.CRASHED
        else:
            state = RunState.SILENT if silent > SILENT_SECONDS else RunState.RUNNING
        return Standing(state, found.who, found, silent).when(complete)

    def _silent(self, run_id: str, found: Holding) -> float:
        """Return the seconds since the last heartbeat: as written on this machine, else since this reader saw it change."""
        if found.silent is not None:
            return found.silent
        now = self._clock()
        with self._lock:
            seen, since = self._beats.get(run_id, ("", now))
            if seen != found.beat:
                since = now
            self._beats[run_id] = (found.beat, since)
        return now - since
