"""The runs of a store as a list: a few small reads per run, so that hundreds of runs of hundreds of generations stay fast.

Unlike `populora status`, the list looks at the newest generation only. Scores and sizes take more reads: they are read for the
runs that are shown, or for all of them when the list is sorted or filtered by them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from flows.compare.scores import MeanScore, mean_score
from flows.compare.settings_diff import flat
from flows.monitoring.run_state import RunState, StateReader
from flows.monitoring.status import after, stage_text
from flows.run.history import population_age
from flows.run.manifest import Json, manifest_uri
from flows.run.planned import planned_generations
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import AccessRefused, Damaged, NotStored, Store, StoreRefused
from flows.store.many_reads import READERS, read_each
from flows.store.names import RUN_ID

TRIES = 3  # benchmarks that are looked for, newest first
BYTES_SECONDS = 60.0  # how long a count of stored bytes is used again: it needs a listing of the whole run
GENERATION = "generation="


@dataclass(frozen=True)
class RunEntry:
    """One run of the list. `newest` is its newest generation with a finished stage, `began` a time of its machine's clock.

    `stamp` changes when another run takes the same name. `fault` says why run.json cannot be read; the run then has no settings.
    """

    run_id: str
    stamp: str
    state: RunState
    who: str
    newest: int | None
    done: int
    planned: int
    upcoming: str
    began: float | None
    settings: dict[str, Any]
    fault: str = ""

    @property
    def share(self) -> float:
        """The share of the planned generations that is done."""
        return self.done / self.planned if self.planned else 0.0


@dataclass(frozen=True)
class _Described:
    """What run.json says, which never changes."""

    stamp: str
    description: Json
    settings: dict[str, Any]
    planned: int
    began: float | None
    fault: str = ""


class RunList:
    """Lists the runs of a store. What never changes is kept between calls."""

    def __init__(self, store: Store, states: StateReader | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._states, self._clock = store, states or StateReader(store), clock
        self._described: dict[str, _Described] = {}
        self._planned_at: dict[str, tuple[str, str, int]] = {}
        self._scores: dict[tuple[str, str, int], MeanScore] = {}
        self._counts: dict[tuple[str, str], tuple[float, Future[int]]] = {}
        self._counters = ThreadPoolExecutor(READERS, "stored-bytes")
        self._lock = threading.Lock()

    def entries(self) -> list[RunEntry]:
        """Return every run of the store, by name."""
        names = [name for name in self._store.folders("") if RUN_ID.fullmatch(name)]
        found = [entry for entry in read_each(self._entry, names) if entry is not None]
        with self._lock:
            for gone in self._described.keys() - {entry.run_id for entry in found}:
                del self._described[gone]
                self._planned_at.pop(gone, None)
        return found

    def scores(self, entries: Sequence[RunEntry]) -> dict[str, MeanScore]:
        """Return the newest score of each run on its own suite, by run id; runs without one are absent."""
        found = dict(zip((entry.run_id for entry in entries), read_each(self._score, entries), strict=True))
        return {run_id: score for run_id, score in found.items() if score is not None}

    def sizes(self, entries: Sequence[RunEntry], patience: float | None = None) -> dict[str, int]:
        """Return the stored bytes of each run, by run id. They may be a minute old.

        With `patience`, in seconds, runs that are not counted by then are absent: they are counted on, for the next call.
        """
        counts = {entry.run_id: self._counting(entry) for entry in entries}
        wait(counts.values(), patience)
        return {run_id: count.result() for run_id, count in counts.items() if count.done()}

    def _counting(self, entry: RunEntry) -> Future[int]:
        """Return the count of a run's bytes, which is started unless one is under way or new enough."""
        key = (entry.run_id, entry.stamp)
        with self._lock:
            began, count = self._counts.get(key, (float("-inf"), None))
            if count is None or (count.done() and (count.exception() or self._clock() - began >= BYTES_SECONDS)):
                count = self._counters.submit(lambda: sum(self._store.sizes(f"{entry.run_id}/").values()))
                self._counts[key] = (self._clock(), count)
            return count

    def _entry(self, run_id: str) -> RunEntry | None:
        known = self._describe(run_id)
        if known is None:
            return None
        if known.fault:
            return RunEntry(run_id, known.stamp, RunState.UNREADABLE, "", None, 0, 0, "", None, {}, known.fault)
        newest, stage = self._newest(run_id)
        planned = self._planned(run_id, known, newest, stage)
        following, at = after(stage, newest, planned) if stage else ("start", None)
        standing = self._states.standing(run_id, not following)
        done = 0 if newest is None else newest + (stage == STAGE_NAMES[-1])
        upcoming = stage_text(following, at)
        told = (standing.state, standing.who, newest, done, planned, upcoming, known.began, known.settings)
        return RunEntry(run_id, known.stamp, *told)

    def _describe(self, run_id: str) -> _Described | None:
        stamp = self._store.stamp(f"{run_id}/run.json")
        if not stamp:
            return None
        with self._lock:
            kept = self._described.get(run_id)
        if kept is not None and kept.stamp == stamp:
            return kept
        try:
            read = Run(self._store, run_id).history.description()
            if read is None:
                return None
            config = dict(read["config"])
            began = read.get("clock", {}).get("started")
            planned = planned_generations(read, [])
            found = _Described(stamp, read, flat(config), planned, None if began is None else float(began))
        except (Damaged, StoreRefused, KeyError, TypeError, ValueError) as error:
            found = _Described(stamp, {}, {}, 0, None, f"its run.json cannot be read: {str(error).splitlines()[0]}")
            if isinstance(error, AccessRefused):  # rights may come back, and leave the stamp as it is
                return found
        with self._lock:
            self._described[run_id] = found
        return found

    def _planned(self, run_id: str, known: _Described, newest: int | None, stage: str) -> int:
        """Return how many generations the run is to have. The manifest of its newest stage is read once."""
        if not stage:
            return known.planned
        uri = manifest_uri(stage, newest)
        with self._lock:
            kept = self._planned_at.get(run_id)
        if kept is not None and kept[:2] == (known.stamp, uri):
            return kept[2]
        try:
            manifest = Run(self._store, run_id).history.manifest(uri)
        except (Damaged, StoreRefused):
            return known.planned  # the run's own page says so
        planned = planned_generations(known.description, [manifest] if manifest else [])
        with self._lock:
            self._planned_at[run_id] = (known.stamp, uri, planned)
        return planned

    def _newest(self, run_id: str) -> tuple[int | None, str]:
        """Return the newest generation with a finished stage, and that stage; (None, "start") or (None, "") before the first."""
        folders = self._store.folders(f"{run_id}/")
        numbers = [name.removeprefix(GENERATION) for name in folders if name.startswith(GENERATION)]
        for number in sorted((int(text) for text in numbers if text.isdecimal()), reverse=True):
            committed = set(self._store.list(f"{run_id}/{GENERATION}{number:04d}/"))
            done = [stage for stage in STAGE_NAMES if f"{run_id}/{manifest_uri(stage, number)}" in committed]
            if done:
                return number, done[-1]
        return None, "start" if self._store.exists(f"{run_id}/{manifest_uri('start', None)}") else ""

    def _score(self, entry: RunEntry) -> MeanScore | None:
        if entry.newest is None:
            return None
        every, run = int(entry.settings.get("benchmark.every") or 0), Run(self._store, entry.run_id)
        last = {entry.planned - 1, int(entry.settings.get("generations") or 0) - 1}  # and of the first start, if it was raised
        due = [at for at in range(entry.newest, -1, -1) if at in last or (every and (at + 1) % every == 0)]
        for generation in due[:TRIES]:
            key = (entry.run_id, entry.stamp, generation)
            with self._lock:
                found = self._scores.get(key)
            if found is None:
                found = self._read_score(run, generation)
            if found is not None:
                with self._lock:
                    self._scores[key] = found
                return found
        return None

    def _read_score(self, run: Run, generation: int) -> MeanScore | None:
        try:
            manifest = run.manifest("benchmark", generation)
            for ref in manifest.outputs if manifest else ():
                if population_age(ref.uri, generation) == generation + 1:
                    return mean_score(run.read_table(ref, "scores"), ref.uri.split("/")[1], generation + 1)
        except (NotStored, Damaged, StoreRefused):
            return None  # the run's own page says so
        return None
