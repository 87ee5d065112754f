"""`populora bench storage --growth 1,20,100,200`: whether a generation late in a run costs what an early one does.

A synthetic run is stored stage by stage through the calls that `flows.steps` makes, with tables of the paper's size in the
generations that are measured (4 teachers and 4 students, 768 proposals, 460 valid tasks, 8 attempts, 400 tokens a completion). In
the others completions have one token; tasks and index are whole. Adapters are tiny: their bytes do not depend on the generation.
`cold` is a process that knows nothing at every stage, `warm` one that keeps what it has read. `session` is the
process of the flow: it asks before each stage whether it is done, and retires adapters after the last.

Requests are calls of the store for a folder and HTTP requests for S3. The heartbeat of the lease is left out.
"""

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from flows.run import retention
from flows.run.earlier_index import write_segment
from flows.run.earlier_reader import EarlierReader
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import Store, open_store
from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.method.rating import Rating
from stages.core.population import Member, initial_members
from stages.core.prompts.styles import Kind

Line = dict[str, Any]
Step = Callable[["_Stage"], None]
POLICY = retention.RetentionPolicy()
SESSION = "session"


@dataclass(frozen=True)
class Sizes:
    """Members of each role, and rows and tokens of a generation's tables."""

    members: int = 4
    proposals: int = 768
    valid: int = 460
    attempts: int = 8
    tokens: int = 400
    drawn: int = 192 * 6


PAPER = Sizes()


@dataclass(frozen=True)
class Cost:
    """What one stage asked of the store."""

    requests: int
    read: int
    written: int
    seconds: float


def growth(url: str, points: Sequence[int], repeats: int = 1, sizes: Sizes = PAPER, run_id: str = "growth") -> Iterator[Line]:
    """Yield, for each of these generations, requests and bytes by stage, cold and warm, and seconds against the first.

    Each is the median of `repeats` generations from there on, cold ones and warm ones in turn. The run stays in the store.
    """
    first: dict[str, float] = {}
    for line in _lines(measured(url, points, repeats, sizes, run_id)):
        if line["stage"] == "generation":
            line["ratio"] = round(line["seconds"] / first.setdefault(line["process"], line["seconds"]), 3)
        yield line


def _lines(found: Iterator[tuple[int, str, Mapping[str, list[Cost]]]]) -> Iterator[Line]:
    for generation, process, costs in found:
        whole = [_added(turn) for turn in zip(*costs.values(), strict=True)]
        for stage, turns in (costs | {"generation": whole}).items():
            values = [statistics.median(column) for column in zip(*map(_values, turns), strict=True)]
            named = dict(zip(("requests", "bytes_read", "bytes_written"), (round(value) for value in values[:3]), strict=True))
            yield (
                {"name": "growth", "generation": generation, "process": process, "stage": stage}
                | named
                | {"seconds": round(values[3], 4)}
            )


def _added(costs: Sequence[Cost]) -> Cost:
    return Cost(*(sum(column) for column in zip(*map(_values, costs), strict=True)))


def _values(cost: Cost) -> tuple[int, int, int, float]:
    return cost.requests, cost.read, cost.written, cost.seconds


def measured(
    url: str, points: Sequence[int], repeats: int, sizes: Sizes, run_id: str
) -> Iterator[tuple[int, str, Mapping[str, list[Cost]]]]:
    """Yield (generation, `cold` or `warm`, costs by stage) in a new run."""
    plain = open_store(url)
    with hold(plain, run_id) as epoch:
        run = Run(plain, run_id, epoch)
        run.describe({"generations": points[-1]}, {}, {})
        _start(run, sizes)
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


@dataclass(frozen=True)
class _Stage:
    """One stage at work."""

    io: StageIO
    earlier: EarlierReader
    sizes: Sizes
    tasks: pa.Table

    def filled(self, name: str) -> None:
        """Write a table of the generation whose content nothing looks at."""
        self.io.write_table(name, _filled(name, self.sizes))


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
        tasks = _tasks(generation, sizes)
        for name in _COUNTS:
            _filled(name, sizes)  # made before anything is timed
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
        step(_Stage(io, self._reader if self._warm else EarlierReader(), sizes, tasks))
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
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    taken = store.taken()
    return Cost(taken["requests"], taken["read"], taken["written"], seconds)


# What each stage reads and writes, as in flows.steps; the work in between is left out. -----------------------------------------


def _match(stage: _Stage) -> None:
    members = stage.io.population()
    rows = list(zip(_role(members, "teacher"), _role(members, "student"), strict=True))
    made = _table(
        tables.MATCHES,
        len(rows),
        1,
        match_id=[f"g{stage.io.generation:04d}-m{number:02d}" for number in range(len(rows))],
        teacher_id=[one.member_id for one, _ in rows],
        student_id=[one.member_id for _, one in rows],
        teacher_adapter_id=[one.adapter_id for one, _ in rows],
        student_adapter_id=[one.adapter_id for _, one in rows],
    )
    stage.io.write_table("matches", made)


def _propose(stage: _Stage) -> None:
    io = stage.io
    io.population()
    matches = io.table("matches")
    io.adapters(matches["teacher_adapter_id"].to_pylist())
    teachers = matches["teacher_id"].to_pylist()
    buffer = stage.earlier.stored(io).snapshots(16_384, teachers, False)[teachers[0]][Kind.DEDUCTION]
    rng = np.random.default_rng(io.generation)
    for place in rng.integers(len(buffer), size=stage.sizes.drawn):
        buffer[int(place)]
    stage.filled("proposals")


def _verify(stage: _Stage) -> None:
    io = stage.io
    stage.earlier.seen(io)
    io.table("proposals")
    io.write_table("tasks", stage.tasks)
    write_segment(io, stage.tasks)


def _solve(stage: _Stage) -> None:
    io = stage.io
    matches = io.table("matches")
    io.table("tasks")
    io.adapters(matches["student_adapter_id"].to_pylist())
    io.population()
    stage.filled("rollouts")


def _grade(stage: _Stage) -> None:
    for name in ("tasks", "rollouts"):
        stage.io.table(name)
    stage.filled("grades")


def _reward(stage: _Stage) -> None:
    io = stage.io
    for name in ("proposals", "tasks", "rollouts", "grades"):
        io.table(name)
    io.population()
    stage.filled("samples")


def _update(stage: _Stage) -> None:
    io = stage.io
    members = io.population()
    io.adapters([one.adapter_id for one in members], moments=True)
    for name in ("matches", "proposals", "tasks", "rollouts", "grades", "samples"):
        io.table(name)
    stage.earlier.seen(io, seeds=False)
    for one in members:
        io.write_adapter(f"{one.member_id}-g{io.generation:04d}", _adapter())
    stage.filled("metrics")


def _rate(stage: _Stage) -> None:
    io = stage.io
    members = io.population()
    for name in ("matches", "tasks", "grades"):
        io.table(name)
    made = io.updated_adapters()
    rows = [_rating(one, *made[one.member_id]) for one in members]
    io.write_table("ratings", tables.table(rows, tables.RATINGS))


def _evolve(stage: _Stage) -> None:
    stage.io.trained_population()
    stage.io.write_table("offspring", tables.OFFSPRING.empty_table())


STEPS: dict[str, Step] = {
    "match": _match,
    "propose": _propose,
    "verify": _verify,
    "solve": _solve,
    "grade": _grade,
    "reward": _reward,
    "update": _update,
    "rate": _rate,
    "evolve": _evolve,
}


# The rows -----------------------------------------------------------------------------------------------------------------------


def _start(run: Run, sizes: Sizes) -> None:
    io = StageIO(run, "start", None, None, "bench", 2.0)
    names = [f"{role}{number}-start" for role in "ts" for number in range(sizes.members)]
    digests = {name: io.write_adapter(name, _adapter()) for name in names}
    members = initial_members(sizes.members, sizes.members, "population", digests, Rating())
    rows = [_rating(one, one.adapter_id, one.adapter_sha256) for one in members]
    io.write_table("population", tables.table(rows, tables.RATINGS))
    seeds = _tasks(-1, sizes).select(tables.SEEDS.names)
    io.write_table("seeds", tables.conform(seeds.filter(pa.array(np.arange(len(seeds)) < sizes.valid)), tables.SEEDS))
    io.commit({})


def _role(members: Sequence[Member], role: str) -> list[Member]:
    return [one for one in members if one.role == role]


def _rating(member: Member, adapter_id: str, sha256: str) -> dict[str, Any]:
    values = {"mu_before": 25.0, "sigma_before": 8.0, "mu": 25.0, "sigma": 8.0, "fitness": 0.0}
    none = dict.fromkeys(("match_id", "opponent_id", "expected", "observed"))
    named = {"member_id": member.member_id, "role": member.role, "born": 0, "result": "idle"}
    played = {"adapter_id": member.adapter_id, "adapter_sha256": member.adapter_sha256}
    return named | values | played | {"next_adapter_id": adapter_id, "next_adapter_sha256": sha256} | none


def _adapter() -> Adapter:
    weights = {f"base_model.layers.0.lora_{side}.weight": np.zeros((2, 2), np.float32) for side in "AB"}
    return Adapter(weights, {f"{kind}.{name}": one for kind in ("exp_avg", "exp_avg_sq") for name, one in weights.items()}, 1)


def _tasks(generation: int, sizes: Sizes) -> pa.Table:
    """Return TASKS: the first rows are valid, each program is new and of ordinary length."""
    rng, count = np.random.default_rng(generation + 1), sizes.proposals
    words = rng.integers(0, 10_000, (count, 24))
    valid = np.arange(count) < sizes.valid
    lines = [[f"    y{at % 4} = x + {word}" for at, word in enumerate(row)] for row in words]
    programs = ["\n".join(["def f(x):", *one, "    return y0"]) for one in lines]
    return _table(
        tables.TASKS,
        count,
        1,
        task_id=[f"g{generation:04d}-m{number % 4:02d}-p{number // 4:03d}" for number in range(count)],
        teacher_id=[f"t{number % sizes.members}" for number in range(count)],
        kind=[list(Kind)[number % 3].value for number in range(count)],
        program=programs,
        program_key=[rng.bytes(16).hex() for _ in range(count)],
        status=["valid" if one else "error" for one in valid],
        syntax=[rng.bytes(8).hex() if one else None for one in valid],
    )


_COUNTS: dict[str, Callable[[Sizes], int]] = {
    "proposals": lambda sizes: sizes.proposals,
    "rollouts": lambda sizes: sizes.valid * sizes.attempts,
    "grades": lambda sizes: sizes.valid * sizes.attempts,
    "samples": lambda sizes: sizes.proposals + sizes.valid,
    "metrics": lambda sizes: 40,
}


@cache
def _filled(name: str, sizes: Sizes) -> pa.Table:
    return _table(tables.GENERATION_TABLES[name], _COUNTS[name](sizes), sizes.tokens)


def _table(schema: pa.Schema, count: int, tokens: int, **columns: Any) -> pa.Table:
    """Return a table of `count` rows; columns that are not given hold numbers nobody looks at."""
    rng = np.random.default_rng(7)
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else _column(field, count, tokens, rng)
        for field in schema
    ]
    return tables.conform(pa.Table.from_arrays(arrays, schema=pa.schema([field.with_nullable(True) for field in schema])), schema)


def _column(field: pa.Field, count: int, tokens: int, rng: np.random.Generator) -> pa.Array:
    kind = field.type
    if pa.types.is_list(kind):
        if pa.types.is_string(kind.value_type):
            return pa.array([[str(number)] for number in rng.integers(0, 1000, count)], kind)
        values = rng.integers(0, 150_000, count * tokens) if pa.types.is_integer(kind.value_type) else rng.random(count * tokens)
        offsets = np.arange(count + 1, dtype=np.int32) * tokens
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(kind.value_type.to_pandas_dtype()))).cast(kind)
    if field.nullable:
        return pa.nulls(count, kind)
    if pa.types.is_string(kind):
        return pa.array([f"{number:x}" for number in range(count)], kind)
    return pa.array(np.zeros(count), pa.float64()).cast(kind)
