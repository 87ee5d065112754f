"""What a run does at the moment, read from its store: for the browser's live page and `populora watch`.

Three sources, none of them new: manifests say what is done, small tables raise alarms, and the heartbeat of the lease says which
steps run (`flows.monitoring.working`). While no stage finishes, a look lists two folders and reads the lease.
"""

import statistics
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flows.config import ConfigError, parse
from flows.monitoring.amounts import amounts
from flows.monitoring.run_state import RunState, StateReader
from flows.monitoring.run_tables import RunTables
from flows.monitoring.time_left import BENCHMARK, RECENT, Benchmarks, TimeLeft, elapsed, overlap, time_left, usual_seconds
from flows.monitoring.working import Step, planned_by, steps_of
from flows.run.manifest import Json, Manifest, Ref, folder_of
from flows.run.planned import benchmarks_at, planned_generations
from flows.run.run import Run
from flows.run.table_reader import WIDE, parquet_file
from flows.run.verified import Reader, open_verified
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored

NEWEST = 8  # tasks and attempts shown
TASK_COLUMNS = ("task_id", "teacher_id", "kind", "status", "program")
GRADE_COLUMNS = ("rollout_id", "student_id", "kind", "status")

Condition = Literal["running", "silent", "stopped", "crashed", "finished"]
"""A process works on the run; its heartbeat has not changed for a while; no process does; the same, and the last one left its
lease; all planned generations are done."""
CONDITIONS: Mapping[RunState, Condition] = {
    RunState.RUNNING: "running",
    RunState.SILENT: "silent",
    RunState.STOPPED: "stopped",
    RunState.CRASHED: "crashed",
    RunState.FINISHED: "finished",
}


@dataclass(frozen=True)
class DoneStage:
    """A finished stage of the newest generation."""

    stage: str
    seconds: float
    counts: Mapping[str, Any]


@dataclass(frozen=True)
class Tail:
    """The last rows of a table, how many rows have each status, and the generation."""

    generation: int
    rows: tuple[Mapping[str, Any], ...] = ()
    statuses: Mapping[str, int] | None = None


@dataclass(frozen=True)
class LiveState:
    """A run at one moment.

    `stage` is the running or next one, empty after the last. `speed` is (tokens per second, where measured).
    """

    run_id: str
    condition: Condition
    planned: int
    complete: int
    stage: str
    generation: int | None
    steps: tuple[Step, ...]
    left: TimeLeft
    speed: tuple[float, str] | None
    newest: int | None  # the newest generation that has begun; None: the start
    done: tuple[DoneStage, ...]  # of the newest generation
    tasks: Tail | None
    verdicts: Tail | None
    alarms: tuple[str, ...]  # of the newest two generations
    faults: tuple[str, ...]
    who: str = ""  # the process that works on the run, or that left its lease
    killed: bool = True  # of a crashed run: its process has certainly ended; else nobody can see more than its silence

    @property
    def share(self) -> float:
        """Share of the run's stages that are done."""
        if not self.stage:
            return 1.0
        if self.generation is None or not self.planned:
            return 0.0
        return min((self.generation + STAGE_NAMES.index(self.stage) / len(STAGE_NAMES)) / self.planned, 1.0)

    @property
    def stage_share(self) -> float | None:
        """Share of the running stage that is done, of a stage that counts; None if it does not."""
        readings = [step.reading for step in self.steps if step.stage == self.stage and step.reading is not None]
        return sum(reading.share for reading in readings) / len(readings) if readings else None


class Follower:
    """Follows one run. `look` returns its state; several threads may share one."""

    def __init__(self, run: Run, tables: RunTables, states: StateReader | None = None) -> None:
        self._run, self._tables, self._states = run, tables, states or StateReader(run.store)
        self._lock = threading.Lock()
        self._generation: int | None = None
        self._manifests: list[Manifest] = []
        self._derived: _Derived | None = None
        self._due: tuple[int, frozenset[int]] | None = None

    def look(self) -> LiveState:
        """Read what is new. Raises NotStored if there is no such run, StoreUnavailable if the store does not answer."""
        with self._lock:
            return self._look()

    def _look(self) -> LiveState:
        description = self._run.history.description()
        if description is None:
            raise NotStored(f"no run {self._run.run_id} in {self._run.store.url}")
        standing = self._states.standing(self._run.run_id, complete=False)
        derived = self._derive()
        newest = self._stages() if self._generation is None else self._tables.newest_stages()
        planned = max(planned_generations(description, newest), planned_by(standing.doing))
        steps = steps_of(standing.doing)
        due = self._benchmarks(description, planned)
        stage, generation, finished = self._place(planned, steps, due)
        standing = standing.when(finished)
        of_stage = [one for one in self._manifests if one.whole_stage == stage and one.generation == generation]
        left = TimeLeft()
        if stage and standing.state is RunState.RUNNING:
            spent, benchmark = sum(elapsed(of_stage).values()), Benchmarks(due or (), derived.benchmark)
            left = time_left(stage, generation, planned, steps, spent, derived.usual, derived.shared, benchmark)
        return LiveState(
            self._run.run_id,
            CONDITIONS[standing.state],
            planned,
            self._complete(),
            stage,
            generation,
            steps,
            left,
            (_speed(steps) or derived.speed) if standing.state is not RunState.SILENT else None,
            self._generation,
            derived.done,
            derived.tasks,
            derived.verdicts,
            derived.alarms,
            derived.faults,
            standing.who,
            standing.lease is None or standing.lease.ended,
        )

    def _derive(self) -> "_Derived":
        """Return what manifests and tables say; computed again only when a stage or part has finished."""
        before = (self._generation, [manifest.stage for manifest in self._manifests])
        self._advance()
        if self._derived is None or before != (self._generation, [manifest.stage for manifest in self._manifests]):
            self._derived = self._computed(self._derived)
        return self._derived

    def _advance(self) -> None:
        """Find the newest generation. Generations follow each other, so only the next one can be new."""
        history = self._run.history
        if self._generation is None:
            begun = history.generations()
            self._generation = begun[-1] if begun else None
            if self._generation is None:
                self._manifests = history.of_generation(None, parts=True)
                return
        self._manifests = history.of_generation(self._generation, parts=True)
        while following := history.of_generation(self._generation + 1, parts=True):
            self._generation, self._manifests = self._generation + 1, following

    def _stages(self) -> list[Manifest]:
        return [manifest for manifest in self._manifests if ".parts/" not in manifest.stage]

    def _complete(self) -> int:
        if self._generation is None:
            return 0
        return self._generation + any(manifest.stage == STAGE_NAMES[-1] for manifest in self._stages())

    def _benchmarks(self, description: Json, planned: int) -> frozenset[int] | None:
        """Return the generations with a benchmark; None if this version cannot read the run's settings."""
        if self._due is None or self._due[0] != planned:
            try:
                config = parse(description["config"] | {"generations": planned})
            except ConfigError:
                return None
            self._due = planned, frozenset(one for one in range(planned) if benchmarks_at(config, one))
        return self._due[1]

    def _place(self, planned: int, steps: tuple[Step, ...], due: frozenset[int] | None) -> tuple[str, int | None, bool]:
        """Return the running or next stage, its generation, and whether none is left."""
        stages = self._stages()
        if self._generation is None:
            following: tuple[str, int | None] = (STAGE_NAMES[0], 0) if stages else ("start", None)
        elif not stages or stages[-1].stage != STAGE_NAMES[-1]:
            place = STAGE_NAMES.index(stages[-1].stage) + 1 if stages else 0
            skips = STAGE_NAMES[place] == BENCHMARK and due is not None and self._generation not in due
            following = (STAGE_NAMES[place + skips], self._generation)
        else:
            following = (STAGE_NAMES[0], self._generation + 1)
        ahead = ((step.stage, step.generation) for step in steps if self._later(step, following))
        running = min(ahead, key=lambda place: STAGE_NAMES.index(place[0]), default=following)  # an update may run beside it
        finished = bool(running[1] is not None and running[1] >= planned)
        return ("", None, True) if finished else (*running, False)

    @staticmethod
    def _later(step: Step, following: tuple[str, int | None]) -> bool:
        """Return whether a running step is where the run is by its manifests, or beyond: `evolve`, where no benchmark is due."""
        known = step.stage in STAGE_NAMES and following[0] in STAGE_NAMES and step.generation == following[1]
        return known and STAGE_NAMES.index(step.stage) >= STAGE_NAMES.index(following[0])

    def _computed(self, before: "_Derived | None") -> "_Derived":
        tables, newest = self._tables.look(), self._generation
        history = [] if newest is None else self._history(newest)
        spent = elapsed(self._manifests)
        done = [DoneStage(one.stage, spent[one.stage], one.counts) for one in self._stages()]
        faults: list[str] = []
        tasks = self._tail("tasks", TASK_COLUMNS, None if before is None else before.tasks, faults)
        verdicts = self._tail("grades", GRADE_COLUMNS, None if before is None else before.verdicts, faults)
        alarms = [str(one) for one in tables.alarms() if newest is not None and one.generation >= newest - 1]
        return _Derived(
            usual_seconds([elapsed(own) for own in history]),
            statistics.median(map(overlap, history)) if history else 0.0,
            next((tables.seconds(one)[BENCHMARK] for one in reversed(tables.generations) if _scored(tables.manifests(one))), 0.0),
            _newest_speed(tables),
            tuple(done),
            tasks,
            verdicts,
            tuple(alarms),
            (*tables.faults, *faults),
        )

    def _history(self, newest: int) -> list[list[Manifest]]:
        """Return the manifests of the newest complete generations."""
        found = []
        for generation in range(max(newest - RECENT, 0), newest + 1):
            manifests = self._run.history.of_generation(generation, parts=True)
            if any(manifest.stage == STAGE_NAMES[-1] for manifest in manifests):
                found.append(manifests)
        return found

    def _tail(self, name: str, columns: tuple[str, ...], before: Tail | None, faults: list[str]) -> Tail | None:
        """Return the end of a table in the newest generation that has it."""
        for generation in () if self._generation is None else (self._generation, self._generation - 1):
            uri = f"{folder_of(generation)}/{name}.parquet"
            if before is not None and before.generation == generation:
                return before
            ref = next((ref for ref in _outputs(self._tables.manifests(generation)) if ref.uri == uri), None)
            if ref is None:
                continue
            try:
                return _read_tail(self._run, ref, generation, columns)
            except (NotStored, Damaged) as error:
                faults.append(str(error))
                return Tail(generation)
        return None


@dataclass(frozen=True)
class _Derived:
    """What changes only when a stage finishes."""

    usual: Mapping[str, float]
    shared: float
    benchmark: float  # seconds of the newest one
    speed: tuple[float, str] | None
    done: tuple[DoneStage, ...]
    tasks: Tail | None
    verdicts: Tail | None
    alarms: tuple[str, ...]
    faults: tuple[str, ...]


def _scored(manifests: list[Manifest]) -> bool:
    return any(manifest.stage == BENCHMARK for manifest in manifests)


def _outputs(manifests: list[Manifest]) -> list[Ref]:
    return [ref for manifest in manifests for ref in manifest.outputs]


def _read_tail(run: Run, ref: Ref, generation: int, columns: tuple[str, ...]) -> Tail:
    """Return the table's last rows and its counts by status, in memory for a few rows however long it is."""
    statuses: Counter[str] = Counter()
    last: list[dict[str, Any]] = []
    with open_verified(run, ref) as opened:
        file = parquet_file(Reader(opened), f"{run.run_id}/{ref.uri}")
        for batch in file.iter_batches(WIDE, columns=list(columns)):
            counted = batch.column("status").value_counts()
            statuses.update({row["values"]: row["counts"] for row in counted.to_pylist()})
            last = [*last, *batch.slice(max(batch.num_rows - NEWEST, 0)).to_pylist()][-NEWEST:]
    return Tail(generation, tuple(reversed(last)), dict(statuses.most_common()))


def _speed(steps: tuple[Step, ...]) -> tuple[float, str] | None:
    rates = [step.reading.tokens_a_second for step in steps if step.reading is not None and step.reading.tokens_a_second]
    return (sum(rates), "now") if rates else None


def _newest_speed(tables: RunTables) -> tuple[float, str] | None:
    """Return the tokens per second of the newest complete generation's rollouts."""
    for generation in reversed(tables.generations):
        spent = tables.clock().get(generation, {})
        processed = amounts(tables.numbers(generation), tables.manifests(generation))
        sampled = [(stage, amount) for (unit, stage), amount in processed.items() if unit == "tokens" and stage != "update"]
        done = [(amount, spent[stage]) for stage, amount in sampled if spent.get(stage)]
        if done:
            return sum(amount for amount, _ in done) / sum(seconds for _, seconds in done), f"rollouts of generation {generation}"
    return None
