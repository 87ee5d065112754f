"""Whether a run is running, finished, stopped or crashed: from its lease, and from what it has committed.

A lease whose process has ended on this host was left by a crash (a clean stop removes it). A lease of another host is watched by
this process's own clock: it counts as left once its heartbeat has not changed for STALE_SECONDS.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from flows.run.lease import STALE_SECONDS, holding
from flows.storage import Store


class RunState(StrEnum):
    """What a run is doing."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    CRASHED = "crashed"
    UNREADABLE = "unreadable"  # its run.json is damaged, or of a newer version


@dataclass(frozen=True)
class Standing:
    """The state of a run, and the process that works on it or that left its lease (empty: none)."""

    state: RunState
    who: str


class StateReader:
    """Reads states, and remembers when each heartbeat was last seen to change."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic, stale_seconds: float = STALE_SECONDS) -> None:
        self._store, self._clock, self._stale_seconds = store, clock, stale_seconds
        self._beats: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def standing(self, run_id: str, complete: bool) -> Standing:
        """Return the state of a run; `complete`: whether it has committed its last planned stage."""
        found = holding(self._store, run_id)
        if found is not None and not found.ended and not self._stale(run_id, found.beat):
            return Standing(RunState.RUNNING, found.who)
        if complete:
            return Standing(RunState.FINISHED, "")
        return Standing(RunState.STOPPED, "") if found is None else Standing(RunState.CRASHED, found.who)

    def _stale(self, run_id: str, beat: str) -> bool:
        now = self._clock()
        with self._lock:
            seen, since = self._beats.get(run_id, ("", now))
            if seen != beat:
                since = now
            self._beats[run_id] = (beat, since)
        return now - since > self._stale_seconds
