"""The stages of the synthetic run of `flows.bench.growth`: what each reads and writes as in `flows.steps`, and invented rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from flows.run.earlier_index import write_segment
from flows.run.earlier_reader import EarlierReader
from flows.run.run import Run
from flows.run.stage_io import StageIO
from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.method.rating import Rating
from stages.core.population import Member, initial_members
from stages.core.prompts.styles import Kind


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
Step = Callable[["StageWork"], None]


@dataclass(frozen=True)
class StageWork:
    """What one stage works with."""

    io: StageIO
    earlier: EarlierReader
    sizes: Sizes
    tasks: pa.Table

    def filled(self, name: str) -> None:
        """Write a table of the generation whose content nothing looks at."""
        self.io.write_table(name, filled(name, self.sizes))


def _match(stage: StageWork) -> None:
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


def _propose(stage: StageWork) -> None:
    io = stage.io
    io.population()
    matches = io.table("matches")
    io.adapters(matches["teacher_adapter_id"].to_pylist())
    teachers = matches["teacher_id"].to_pylist()
    buffer = next(iter(stage.earlier.stored(io).snapshots(16_384, teachers, False)[teachers[0]].values()))
    rng = np.random.default_rng(io.generation)
    for place in rng.integers(len(buffer), size=stage.sizes.drawn):
        buffer[int(place)]
    stage.filled("proposals")


def _verify(stage: StageWork) -> None:
    io = stage.io
    stage.earlier.seen(io)
    io.table("proposals")
    io.write_table("tasks", stage.tasks)
    write_segment(io, stage.tasks)


def _solve(stage: StageWork) -> None:
    io = stage.io
    matches = io.table("matches")
    io.table("tasks")
    io.adapters(matches["student_adapter_id"].to_pylist())
    io.population()
    stage.filled("rollouts")


def _grade(stage: StageWork) -> None:
    for name in ("tasks", "rollouts"):
        stage.io.table(name)
    stage.filled("grades")


def _reward(stage: StageWork) -> None:
    io = stage.io
    for name in ("proposals", "tasks", "rollouts", "grades"):
        io.table(name)
    io.population()
    stage.filled("samples")


def _update(stage: StageWork) -> None:
    io = stage.io
    members = io.population()
    io.adapters([one.adapter_id for one in members], moments=True)
    for name in ("matches", "proposals", "tasks", "rollouts", "grades", "samples"):
        io.table(name)
    stage.earlier.seen(io, seeds=False)
    io.write_adapters({f"{one.member_id}-g{io.generation:04d}": _adapter() for one in members})
    stage.filled("metrics")


def _rate(stage: StageWork) -> None:
    io = stage.io
    members = io.population()
    for name in ("matches", "tasks", "grades"):
        io.table(name)
    made = io.updated_adapters()
    rows = [_rating(one, *made[one.member_id]) for one in members]
    io.write_table("ratings", tables.table(rows, tables.RATINGS))


def _evolve(stage: StageWork) -> None:
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


def start(run: Run, sizes: Sizes) -> None:
    """Store population, seeds and adapters."""
    io = StageIO(run, "start", None, None, "bench", 2.0)
    names = [f"{role}{number}-start" for role in "ts" for number in range(sizes.members)]
    digests = io.write_adapters({name: _adapter() for name in names})
    members = initial_members(sizes.members, sizes.members, "population", digests, Rating())
    rows = [_rating(one, one.adapter_id, one.adapter_sha256) for one in members]
    io.write_table("population", tables.table(rows, tables.RATINGS))
    seeds = tasks_of(-1, sizes).select(tables.SEEDS.names)
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


def tasks_of(generation: int, sizes: Sizes) -> pa.Table:
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


COUNTS: dict[str, Callable[[Sizes], int]] = {
    "proposals": lambda sizes: sizes.proposals,
    "rollouts": lambda sizes: sizes.valid * sizes.attempts,
    "grades": lambda sizes: sizes.valid * sizes.attempts,
    "samples": lambda sizes: sizes.proposals + sizes.valid,
    "metrics": lambda sizes: 40,
}


@cache
def filled(name: str, sizes: Sizes) -> pa.Table:
    """Return a table of the generation whose content nothing looks at; made once for each size."""
    return _table(tables.GENERATION_TABLES[name], COUNTS[name](sizes), sizes.tokens)


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
