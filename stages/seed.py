"""Seed: fill the buffers before generation 0 with tasks that the base model writes, as in Absolute Zero Reasoner.

Starting from one identity triplet, the base model (no adapter) proposes tasks. Valid, new tasks enter the buffer and become
references in the next round, until every kind has its rows. The same triplets seed the deduction and the abduction buffer.
Differences from AZR: duplicates are also dropped within a round, programs of the probe are left out, and every row's own gold
answer has been graded correct.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from stages.core import tables
from stages.core.engines.protocol import Engine, Request
from stages.core.judging.judge import TaskItem, judge_tasks
from stages.core.method.proposing import ProposalPlan, draw_prompt, read_proposal
from stages.core.population import Member
from stages.core.progress import Progress, silent
from stages.core.prompts.styles import Kind, PromptStyle, Proposed, solver_prompt
from stages.core.randomness import completion_seed, generator
from stages.core.row_errors import reading, rows_named
from stages.core.sandbox.protocol import Sandbox

IDENTITY = Proposed("def f(a):\n    return a", ("'Hello world'",))
ROUND = 32  # proposals of one kind in a round


def seed(
    engine: Engine,
    sandbox: Sandbox,
    style: PromptStyle,
    plan: ProposalPlan,
    rows: int,
    max_rounds: int,
    run_seed: int,
    probe_keys: frozenset[str],
    fits: Callable[[str], bool],
    progress: Progress = silent,
) -> tuple[pa.Table, dict[str, int]]:
    """Return SEEDS with `rows` deduction, the same abduction and `rows` induction tasks, and the counts collected on the way.

    Raise ValueError if `max_rounds` rounds do not fill the buffers: such a model cannot start self-play.
    """
    counts = {"seed_proposals": 0, "seed_probe_overlap": 0, "seed_duplicates": 0, "seed_too_long": 0}
    programs = _programs(engine, sandbox, style, plan, rows, max_rounds, run_seed, probe_keys, counts, progress)
    pairs = [
        row | {"kind": kind, "task_id": f"seed-{kind[0]}{row['task_id']}"}
        for kind in (Kind.DEDUCTION, Kind.ABDUCTION)
        for row in programs
    ]
    inductions = _inductions(engine, sandbox, style, plan, rows, max_rounds, run_seed, programs, counts, fits, progress)
    return tables.table(pairs + inductions, tables.SEEDS), counts


def _programs(
    engine: Engine,
    sandbox: Sandbox,
    style: PromptStyle,
    plan: ProposalPlan,
    rows: int,
    max_rounds: int,
    run_seed: int,
    probe_keys: frozenset[str],
    counts: dict[str, int],
    progress: Progress,
) -> list[dict]:
    """Return distinct valid programs with one input, the identity first."""
    stored = _judged(sandbox, [(Kind.DEDUCTION, IDENTITY)])
    seen = {_key(row) for row in stored}
    for number in range(max_rounds):
        progress("seed programs", min(len(stored), rows), rows)
        if len(stored) >= rows:
            break
        kind = (Kind.DEDUCTION, Kind.ABDUCTION)[number % 2]
        buffers = {kind: [row | {"task_id": f"{index:04d}"} for index, row in enumerate(stored)] for kind in Kind}
        read = _round(engine, style, replace(plan, group_size=1), kind, buffers, run_seed, f"programs{number}", counts)
        for row in _judged(sandbox, [(kind, proposed) for proposed in read]):
            if row["program_key"] in probe_keys:
                counts["seed_probe_overlap"] += 1
            elif _key(row) in seen:
                counts["seed_duplicates"] += 1
            else:
                seen.add(_key(row))
                stored.append(row)
    if len(stored) < rows:
        raise ValueError(f"the base model wrote {len(stored)} of {rows} seed programs in {max_rounds} rounds")
    return [row | {"task_id": f"{index:04d}"} for index, row in enumerate(stored[:rows])]


def _inductions(
    engine: Engine,
    sandbox: Sandbox,
    style: PromptStyle,
    plan: ProposalPlan,
    rows: int,
    max_rounds: int,
    run_seed: int,
    programs: list[dict],
    counts: dict[str, int],
    fits: Callable[[str], bool],
    progress: Progress,
) -> list[dict]:
    """Return seed programs with `num_inputs` inputs each, drawn over the programs until there are enough."""
    stored: list[dict] = []
    seen = set()
    for number in range(max_rounds):
        progress("seed inductions", len(stored), rows)
        buffers = {Kind.DEDUCTION: programs, Kind.ABDUCTION: [], Kind.INDUCTION: []}
        read = _round(engine, style, plan, Kind.INDUCTION, buffers, run_seed, f"inputs{number}", counts)
        for row in _judged(sandbox, [(Kind.INDUCTION, proposed) for proposed in read]):
            asked = solver_prompt(style, Kind.INDUCTION, "", row["inputs"], row["outputs"], row["message"])
            if _key(row) in seen:
                counts["seed_duplicates"] += 1
            elif not fits(asked):
                counts["seed_too_long"] += 1
            else:
                seen.add(_key(row))
                stored.append(row)
        if len(stored) >= rows:
            return [row | {"kind": Kind.INDUCTION, "task_id": f"seed-i{index:04d}"} for index, row in enumerate(stored[:rows])]
    raise ValueError(f"the base model wrote inputs for {len(stored)} of {rows} seed programs in {max_rounds} rounds")


def _round(
    engine: Engine,
    style: PromptStyle,
    plan: ProposalPlan,
    kind: Kind,
    buffers: dict[Kind, list[dict]],
    run_seed: int,
    name: str,
    counts: dict[str, int],
) -> list[Proposed]:
    """Return the readable proposals of one batch of prompts of one kind."""
    rng = generator(run_seed, 0, "seed", name)
    prompts = [draw_prompt(kind, f"{name}-{index}", buffers, engine, style, plan, rng) for index in range(ROUND)]
    stops = style.propose_stops(kind)
    requests = [
        Request(prompt.ids, None, completion_seed(run_seed, 0, "seed", name, index), plan.max_new_tokens, stops)
        for index, prompt in enumerate(prompts)
    ]
    counts["seed_proposals"] += len(requests)
    found = []
    for prompt, completion in zip(prompts, engine.generate(requests, plan.temperature), strict=True):
        text = engine.decode(completion.token_ids)
        with reading(f"{prompt.group_id} of the seed", text):
            read, status, _ = read_proposal(style, prompt, text, completion.truncated, plan.num_inputs)
        if status == "parsed":
            found.append(read)
    return found


def _judged(sandbox: Sandbox, proposals: list[tuple[Kind, Proposed]]) -> list[dict]:
    """Return the rows of the valid proposals, without their ids."""
    items = [TaskItem(proposed.program, proposed.inputs) for _, proposed in proposals]
    ids = [f"{number} of a round of the seed, {proposed.program!r:.200}" for number, (_, proposed) in enumerate(proposals)]
    with rows_named("", ids):
        verdicts = list(judge_tasks(sandbox, items))
    rows = []
    for (kind, proposed), verdict in zip(proposals, verdicts, strict=True):
        if verdict.status == "valid":
            rows.append(
                {
                    "kind": kind,
                    "program": proposed.program,
                    "inputs": list(proposed.inputs),
                    "outputs": list(verdict.outputs),
                    "values": list(verdict.values),
                    "message": proposed.message,
                    "program_key": verdict.program_key,
                }
            )
    return rows


def _key(row: dict) -> tuple[str, tuple[str, ...]]:
    return row["program_key"], tuple(row["inputs"])


def starting_ratings(members: Sequence[Member], kappa: float) -> pa.Table:
    """Return RATINGS before generation 0, one row per member. The first generation's population is read from it."""
    rows = [
        {
            "member_id": member.member_id,
            "role": member.role,
            "born": member.born,
            "adapter_id": member.adapter_id,
            "adapter_sha256": member.adapter_sha256,
            "result": "idle",
            "mu_before": member.rating.mu,
            "sigma_before": member.rating.sigma,
            "mu": member.rating.mu,
            "sigma": member.rating.sigma,
            "fitness": member.rating.fitness(kappa),
            "next_adapter_id": member.adapter_id,
            "next_adapter_sha256": member.adapter_sha256,
            "match_id": None,
            "opponent_id": None,
            "expected": None,
            "observed": None,
        }
        for member in members
    ]
    return tables.table(rows, tables.RATINGS)
