"""`populora bench storage --growth 1,20,100,200`: whether a generation late in a run costs what an early one does.

A synthetic run is stored stage by stage through the calls that `flows.steps` makes, with tables of the paper's size in the
generations that are measured (4 teachers and 4 students, 768 proposals, 460 valid tasks, 8 attempts, 400 tokens a completion). In
the others completions have one token; tasks and index are whole. Adapters are tiny: their bytes do not depend on the generation.
`cold` is a process that knows nothing at every stage, `warm` one that keeps what it has read. `session` is the
process of the flow: it asks before each stage whether it is done, and retires adapters after the last.

Requests are calls of the store for a folder and HTTP requests for S3. The heartbeat of the lease is left out. Processor seconds
are those of this process: a machine that others use, or a slow server, does not change them.
"""

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from flows.bench.growth_stages import COUNTS, PAPER, STEPS, Sizes, StageWork, Step, filled, start, tasks_of
from flows.run import retention
from flows.run.earlier_reader import EarlierReader
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import Store, open_store

Line = dict[str, Any]
POLICY = retention.RetentionPolicy()
SESSION = "session"


@dataclass(frozen=True)
class Cost:
    """What one stage asked of the store."""

    requests: int
    read: int
    written: int
    seconds: float
    cpu_seconds: float


def growth(url: str, points: Sequence[int], repeats: int = 1, sizes: Sizes = PAPER, run_id: str = "growth") -> Iterator[Line]:
    """Yield, for each of these generations, requests and bytes by stage, cold and warm, and processor seconds against the first.

    Each is the median of `repeats` generations from there on, cold ones and warm ones in turn. The run stays in the store.
    """
    first: dict[str, float] = {}
    for line in _lines(measured(url, points, repeats, sizes, run_id)):
        if line["stage"] == "generation":
            line["ratio"] = round(line["cpu_seconds"] / first.setdefault(line["process"], line["cpu_seconds"]), 3)
        yield line


def _lines(found: Iterator[tuple[int, str, Mapping[str, list[Cost]]]]) -> Iterator[Line]:
    for generation, process, costs in found:
        whole = [_added(turn) for turn in zip(*costs.values(), strict=True)]
        for stage, turns in {**costs, "generation": whole}.items():
            values = [statistics.median(column) for column in zip(*map(_values, turns), strict=True)]
            named = dict(zip(("requests", "bytes_read", "bytes_written"), (round(value) for value in values[:3]), strict=True))
            yield (
                {"name": "growth", "generation": generation, "process": process, "stage": stage}
                | named
                | {"seconds": round(values[3], 4), "cpu_seconds": round(values[4], 4)}
            )


def _added(costs: Sequence[Cost]) -> Cost:
    return Cost(*(sum(column) for column in zip(*map(_values, costs), strict=True)))


def _values(cost: Cost) -> tuple[int, int, int, float, float]:
    return cost.requests, cost.read, cost.written, cost.seconds, cost.cpu_seconds


def measured(
    url: str, points: Sequence[int], repeats: int, sizes: Sizes, run_id: str
) -> Iterator[tuple[int, str, Mapping[str, list[Cost]]]]:
    """Yield (generation, `cold` or `warm`, costs by stage) in a new run."""
    plain = open_store(url)
    with hold(plain, run_id) as epoch:
        run = Run(plain, run_id, epoch)
        run.describe({"generations": points[-1]}, {}, {})
        start(run, sizes)
        few, generation = replace(sizes, attempts=1, tokens=1), 0
        filler = _Process(lambda: Counted(open_store(url)), run_id, epoch, warm=True)
        for point in points:
            while generation < point:
                filler.generation(generation, few)
                generation += 1
            first, costs = generation, dict[str, dict[str, list[Cost]]](cold={}, warm={})
            for turn in range(2 * repeats):
                process = "warm" if turn % 2 else "cold"
                chosen = filler if process == "warm" else _Process(lambda: Counted(open_store(url)), run_id, epoch, warm=False)
                for stage, cost in chosen.generation(generation, sizes).items():
                    costs[process].setdefault(stage, []).append(cost)
                filler.catch_up(generation + 1)
                generation += 1
            for process, found in costs.items():
                yield first, process, found


class Counted:
    """A store that counts requests and bytes."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._calls = Counter[str]()
        client = getattr(store, "_client", None)
        self._http = client is not None
        if client is not None:
            client.meta.events.register("before-send.s3", lambda **_: self._note(requests=1))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name == "lock":
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            done = found(*arguments, **named)
            read = len(done) if name == "read" else 0
            written = len(arguments[1]) if name == "create" else 0
            self._note(requests=0 if self._http else 1, read=read, written=written)
            return done

        return counted

    def _note(self, **amounts: int) -> None:
        with self._lock:
            self._calls.update(amounts)

    def taken(self) -> Counter[str]:
        """Return the counts since the last call."""
        with self._lock:
            taken, self._calls = self._calls, Counter()
        return taken


class _Process:
    """A process that runs the stages of a run: a new store and run for each, as a worker does. A warm one keeps its reader."""

    def __init__(self, opened: Callable[[], Counted], run_id: str, epoch: int, warm: bool) -> None:
        self._run_id, self._epoch, self._warm = run_id, epoch, warm
        self._reader, self._known = EarlierReader(), dict[int, retention.GenerationAdapters]()
        self._session: Run | None = None
        self._store = opened()
        self._store.create(f"{run_id}/.probed", b"")  # the first write of a process probes the server
        self._store.delete(f"{run_id}/.probed")

    def generation(self, generation: int, sizes: Sizes) -> dict[str, Cost]:
        """Run all stages and return what each cost; the last entry is the session's."""
        store: Any = self._store
        session = self._session or Run(store, self._run_id, self._epoch)
        self._session = session if self._warm else None
        asked, costs = list[Cost](), {}
        tasks = tasks_of(generation, sizes)
        for name in COUNTS:
            filled(name, sizes)  # made before anything is timed
        for stage, step in STEPS.items():
            asked.append(_timed(self._store, partial(session.finished, stage, generation)))
            costs[stage] = _timed(self._store, partial(self._perform, stage, step, generation, sizes, tasks))
        known = self._known if self._warm else {}
        asked.append(_timed(self._store, partial(retention.retire, session, POLICY, {}, generation, known)))
        return costs | {SESSION: _added(asked)}

    def _perform(self, stage: str, step: Step, generation: int, sizes: Sizes, tasks: pa.Table) -> None:
        """Run one stage as flows.execution.run_stage does."""
        store: Any = self._store
        run = Run(store, self._run_id, self._epoch)
        run.finished(stage, generation)
        run.history.description()
        io = StageIO(run, stage, generation, None, "bench", 2.0)
        step(StageWork(io, self._reader if self._warm else EarlierReader(), sizes, tasks))
        io.commit({})

    def catch_up(self, generation: int) -> None:
        """Read what another process has added, so that the next generation finds this one warm."""
        store: Any = self._store
        run = Run(store, self._run_id)
        io = StageIO(run, "propose", generation, None, "bench", 2.0)
        self._reader.seen(io)
        self._reader.stored(io)
        retention.plan(run, POLICY, generation - 1, self._known)
        self._store.taken()


def _timed(store: Counted, work: Callable[[], object]) -> Cost:
    store.taken()
    began, cpu = time.perf_counter(), time.process_time()
    work()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    taken = store.taken()
    return Cost(taken["requests"], taken["read"], taken["written"], seconds, cpu_seconds)
