"""A small run written through the real storage and the real pure stages; only completions, verdicts and weights are made up."""

import json
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from flows.backend import Backend
from flows.config import RunConfig, dump
from flows.execution.parts import parts_of
from flows.run.earlier_index import write_segment
from flows.run.earlier_reader import EarlierReader
from flows.run.run import Manifest, Ref, Run
from flows.run.stage_io import StageIO
from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import adapter_bytes, weights_sha256
from stages.core.method.advantages import reinforce_plus_plus_baseline
from stages.core.method.rating import Rating, Scale
from stages.core.method.rewards import populora
from stages.core.population import Member, initial_members, population_after
from stages.match import match
from stages.rate import rate
from stages.reward import reward

KINDS = ("deduction", "abduction", "induction")
CONFIG = RunConfig.model_validate(
    {
        "generations": 3,
        "seed": 5,
        "population": {"teachers": 2, "students": 2},
        "propose": {"groups": 1, "group_size": 2},
        "solve": {"attempts": 2},
        "evolution": {"every": 1},
        "sandbox": {"kind": "local"},
    }
)
CLOCK = {"started": 1.0, "host": "here"}
NO_MODEL = "0" * 64


def build(run: Run, generations: int = 2, config: RunConfig = CONFIG, unindexed: int = 0, complete: bool = False) -> Run:
    """Writes `generations` whole generations, evolution after each but the last.

    The first `unindexed` of them have no index of earlier tasks, as versions until 0.2 wrote them. A `complete` run has all
    manifests and begins on the model of its configuration: the command line resumes it.
    """
    run.describe(dump(config), {"base_model": NO_MODEL}, CLOCK)
    population = start(run, base_model=Backend(config).model_digest() if complete else NO_MODEL)
    for generation in range(generations):
        last = generation == generations - 1
        indexed = generation >= unindexed
        population = one_generation(run, population, generation, last, indexed, whole=config if complete else None)
    return run


def start(run: Run, weights: Adapter | None = None, base_model: str = NO_MODEL) -> list[Member]:
    """Starting adapters, all equal, population and seeds."""
    digests, refs = {}, []
    for member_id in ("t0", "t1", "s0", "s1"):
        written, digests[f"{member_id}-start"] = write_adapter(run, f"{member_id}-start", weights or adapter(0, 0))
        refs += written
    members = initial_members(2, 2, "population", digests, Rating())
    rows = [rating_row(member) for member in members]
    refs.append(run.write_table(None, "population", tables.table(rows, tables.RATINGS)))
    refs.append(run.write_table(None, "seeds", tables.table([seed_row(kind) for kind in KINDS], tables.SEEDS)))
    run.commit("start", None, [], refs, {"seeds": 3}, {"base_model": base_model}, CLOCK)
    return members


def one_generation(
    run: Run,
    population: list[Member],
    generation: int,
    last: bool,
    indexed: bool = True,
    idle: Collection[str] = (),
    whole: RunConfig | None = None,
) -> list[Member]:
    """All stages of a generation, in which some members take no step; returns the population of the next one.

    A `whole` one has the parts of that configuration's update, and if it is the last, a benchmark. Neither wrote anything.
    """
    state = play(run, population, generation, indexed)
    commit = partial(_commit, run, population, generation, state)
    inputs = [state[name] for name in ("proposals", "tasks", "rollouts", "grades")]
    commit("reward", "samples", reward(*inputs, populora, reinforce_plus_plus_baseline, "group", 0), ("grades",))
    if whole is not None:
        for part, _ in parts_of(run, whole, "update", generation):
            run.commit("update", generation, [], [], {}, {}, CLOCK, part)
    made, refs = _updated(run, [member for member in population if member.member_id not in idle], generation)
    metrics = [{"name": "solve.rate", "value": 0.5, "member_id": None, "role": None, "kind": None}]
    commit("update", "metrics", tables.table(metrics, tables.METRICS), ("samples",), tuple(refs))
    rated = rate(population, state["matches"], state["tasks"], state["grades"], made, Scale(), 0.02, 3.0)
    commit("rate", "ratings", rated, ("grades",))
    if whole is not None and last:
        run.commit("benchmark", generation, [], [], {}, {}, CLOCK)
    trained = population_after(rated, tables.OFFSPRING.empty_table(), generation)
    row, refs = ([], []) if last else _offspring(run, trained, generation)
    commit("evolve", "offspring", tables.table(row, tables.OFFSPRING), ("ratings",), tuple(refs))
    return population_after(rated, state["offspring"], generation)


def play(
    run: Run,
    population: list[Member],
    generation: int,
    indexed: bool = True,
    prompts: int = 1,
    ungraded: Callable[[str, pa.Table], pa.Table] | None = None,
) -> dict[str, pa.Table]:
    """The stages of a generation before its rewards; returns their tables. Each member answers so many different prompts.

    `ungraded` makes the tasks and rollouts that are stored from these, by the table's name; whoever gives it grades them.
    """
    state: dict[str, pa.Table] = {}
    digests = {member.adapter_id: member.adapter_sha256 for member in population}
    commit = partial(_commit, run, population, generation, state)
    commit("match", "matches", match(population, np.random.default_rng([5, generation]), generation, 25 / 6), ())
    commit("propose", "proposals", _proposals(state["matches"], digests, prompts), ("matches",))
    shaped = ungraded or (lambda _, table: table)
    state["tasks"] = shaped("tasks", _tasks(state["proposals"]))
    verify(run, generation, state["tasks"], indexed)
    rollouts = shaped("rollouts", _rollouts(state["matches"], state["tasks"], digests, prompts))
    commit("solve", "rollouts", rollouts, ("matches", "tasks"))
    if ungraded is None:
        commit("grade", "grades", _grades(state["rollouts"]), ("tasks", "rollouts"))
    return state


def _commit(
    run: Run,
    population: list[Member],
    generation: int,
    state: dict[str, pa.Table],
    stage: str,
    name: str,
    table: pa.Table,
    inputs: tuple[str, ...],
    extra: tuple[Ref, ...] = (),
) -> Manifest:
    """Write a stage's table and its manifest, and note the table in `state`."""
    state[name] = table
    ref = run.write_table(generation, name, table, schema=table.schema)  # `ungraded` may drop what older versions did not write
    read = [run.history.find(f"generation={generation:04d}/{other}.parquet") for other in inputs]
    read += [run.history.find(f"adapters/{m.adapter_id}/adapter_model.safetensors") for m in population]
    return run.commit(stage, generation, read, [*extra, ref], {name: table.num_rows}, {}, CLOCK)


def verify(run: Run, generation: int, tasks: pa.Table, indexed: bool = True) -> Manifest:
    """The stage's reads and writes, with what it knows of earlier tasks."""
    io = StageIO(run, "verify", generation, None, "seed", 2.0)
    EarlierReader().seen(io)
    io.table("proposals")
    io.write_table("tasks", tasks)
    if indexed:
        write_segment(io, tasks)
    return io.commit(CLOCK)


def population_of(run: Run, generation: int) -> list[Member]:
    """The population after a generation."""
    return population_after(run.read_table(generation, "ratings"), run.read_table(generation, "offspring"), generation)


def adapter(number: int, step: int) -> Adapter:
    """Tiny weights, different for every number."""
    rng = np.random.default_rng([1, number])
    base = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    weights = {
        f"{base}A.weight": rng.standard_normal((2, 3)).astype(np.float32),
        f"{base}B.weight": rng.standard_normal((5, 2)).astype(np.float32),
    }
    moments = {f"{kind}.{name}": np.square(array) for kind in ("exp_avg", "exp_avg_sq") for name, array in weights.items()}
    return Adapter(weights, moments if step else {}, step)


def write_adapter(run: Run, adapter_id: str, weights: Adapter) -> tuple[list[Ref], str]:
    """The references and the digest of the weights."""
    return run.write_adapter(adapter_id, adapter_bytes(weights, "seed", 2.0)), weights_sha256(weights.weights)


def seed_row(kind: str) -> dict[str, Any]:
    return {
        "task_id": f"seed-{kind}",
        "kind": kind,
        "program": "def f(x):\n    return x",
        "inputs": ["1"],
        "outputs": ["1"],
        "values": ["i1"],
        "message": "",
        "program_key": f"key-{kind}",
    }


def rating_row(member: Member) -> dict[str, Any]:
    """A member as the start stores it: with a rating and no match."""
    rating = {"mu_before": 25.0, "sigma_before": 25 / 3, "mu": 25.0, "sigma": 25 / 3, "fitness": 0.0}
    weights = {"adapter_id": member.adapter_id, "adapter_sha256": member.adapter_sha256}
    return (
        {"member_id": member.member_id, "role": member.role, "born": 0, "result": "idle"}
        | rating
        | weights
        | {f"next_{key}": value for key, value in weights.items()}
        | {"match_id": None, "opponent_id": None, "expected": None, "observed": None}
    )


def _completion(adapter_id: str, sha256: str, number: int, prompts: int) -> dict[str, Any]:
    ids = list(range(1, 3 + number % 4))
    return {
        "adapter_id": adapter_id,
        "adapter_sha256": sha256,
        "seed": number,
        "prompt_ids": [7, 8 + number // 2 % prompts],
        "completion_ids": ids,
        "logprobs": [-0.5] * len(ids),
        "text": f"text {number}",
        "truncated": False,
    }


def _proposals(matches: pa.Table, digests: dict[str, str], prompts: int) -> pa.Table:
    rows = []
    for row in matches.to_pylist():
        for number in range(6):
            kind = KINDS[number // 2]
            own = {
                "proposal_id": f"{row['match_id']}-p{number:03d}",
                "match_id": row["match_id"],
                "teacher_id": row["teacher_id"],
                "kind": kind,
                "group_id": f"{row['match_id']}-{kind[0]}0",
                "reference_ids": [f"seed-{kind}"],
                "program": f"def f(x):\n    return x + {number}",
                "inputs": ["1"],
                "message": "",
                "status": "parsed" if number != 5 else "unparsed",
                "detail": "",
            }
            rows.append(own | _completion(row["teacher_adapter_id"], digests[row["teacher_adapter_id"]], number, prompts))
    return tables.table(rows, tables.PROPOSALS)


def _tasks(proposals: pa.Table) -> pa.Table:
    rows = []
    for number, row in enumerate(proposals.to_pylist()):
        valid = row["status"] == "parsed"
        copied = {name: row[name] for name in ("match_id", "teacher_id", "kind", "program", "inputs", "message")}
        rows.append(
            copied
            | {
                "task_id": row["proposal_id"],
                "outputs": ["2"] if valid else [],
                "values": ["i2"] if valid else [],
                "status": "valid" if valid else "unparsed",
                "detail": "",
                "duplicate": number == 2,
                "probe_overlap": False,
                "program_key": f"key-{row['program']}" if valid else None,
                "gate": None,
            }
        )
    return tables.table(rows, tables.TASKS)


def _rollouts(matches: pa.Table, tasks: pa.Table, digests: dict[str, str], prompts: int) -> pa.Table:
    match_of = {row["match_id"]: row for row in matches.to_pylist()}
    rows = []
    for task in tasks.to_pylist():
        played = match_of[task["match_id"]]
        for attempt in range(2 if task["status"] == "valid" else 0):
            own = {
                "rollout_id": f"{task['task_id']}-r{attempt:02d}",
                "task_id": task["task_id"],
                "match_id": task["match_id"],
                "student_id": played["student_id"],
                "kind": task["kind"],
                "attempt": attempt,
                "answer": "2",
            }
            number = len(rows)
            rows.append(own | _completion(played["student_adapter_id"], digests[played["student_adapter_id"]], number, prompts))
    return tables.table(rows, tables.ROLLOUTS)


def _grades(rollouts: pa.Table) -> pa.Table:
    rows = []
    for number, row in enumerate(rollouts.to_pylist()):
        copied = {name: row[name] for name in ("rollout_id", "task_id", "match_id", "student_id", "kind")}
        correct = number % 3 == 0
        rows.append(copied | {"status": "correct" if correct else "wrong", "correct": correct, "detail": ""})
    return tables.table(rows, tables.GRADES)


def _updated(run: Run, population: list[Member], generation: int) -> tuple[dict[str, tuple[str, str]], list[Ref]]:
    made, refs = {}, []
    for number, member in enumerate(population):
        adapter_id = f"{member.member_id}-g{generation:04d}"
        written, sha256 = write_adapter(run, adapter_id, adapter(100 * (generation + 1) + number, generation + 1))
        made[member.member_id] = (adapter_id, sha256)
        refs += written
    return made, refs


def _offspring(run: Run, population: list[Member], generation: int) -> tuple[list[dict[str, Any]], list[Ref]]:
    """The second student is replaced by a mutation of the first."""
    students = [member for member in population if member.role == "student"]
    parent, loser = students[0], students[1]
    name = f"s{2 + generation}"
    refs, sha256 = write_adapter(run, f"{name}-start", adapter(900 + generation, 0))
    row = {
        "member_id": name,
        "role": "student",
        "replaces": loser.member_id,
        "parents": [parent.member_id],
        "parent_adapter_ids": [parent.adapter_id],
        "operator": "M1",
        "operator_kind": "mutation",
        "seed": "1",
        "parameters": json.dumps({}),
        "adapter_id": f"{name}-start",
        "adapter_sha256": sha256,
        "mu": parent.rating.mu,
        "sigma": parent.rating.sigma,
        "relative_change": 0.1,
        "cosine": 0.9,
        "note": "",
    }
    return [row], refs
