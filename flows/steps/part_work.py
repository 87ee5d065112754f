"""What a part of propose or solve works on, and so which adapters it uses: the engine serves them, the check compares them."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flows.backend import Backend
from flows.config import RunConfig
from flows.run.stage_io import StageIO
from flows.steps.earlier_tasks import posed_again
from stages.core.method.leak import believed
from stages.core.method.proposing import ProposalPlan
from stages.core.shards import Shard
from stages.propose import own_matches
from stages.solve import SolvePlan, posed


@dataclass(frozen=True)
class ProposeWork:
    """All matches of the generation, those whose teachers write in this part, and the ids of these teachers' adapters."""

    matches: pa.Table
    plan: ProposalPlan
    shard: Shard
    own: pa.Table
    adapters: list[str]


@dataclass(frozen=True)
class SolveWork:
    """All matches and tasks, the earlier tasks that each match poses again, and the ids of the adapters that attempt here."""

    matches: pa.Table
    tasks: pa.Table
    again: dict[str, list[dict[str, Any]]]
    plan: SolvePlan
    shard: Shard
    adapters: list[str]


def propose_work(io: StageIO, config: RunConfig) -> ProposeWork:
    """Return the work of this part of propose."""
    matches, plan, shard = io.table("matches"), proposal_plan(config), Shard.named(io.part)
    own = own_matches(matches, plan, shard)
    return ProposeWork(matches, plan, shard, own, list(dict.fromkeys(own["teacher_adapter_id"].to_pylist())))


def solve_work(io: StageIO, config: RunConfig, backend: Backend) -> SolveWork:
    """Return the work of this part of solve."""
    matches, tasks, rule, shard = io.table("matches"), believed(io.table("tasks")), config.solve, Shard.named(io.part)
    plan = SolvePlan(rule.attempts, rule.max_new_tokens, config.engine.temperature, rule.trained_attempts)
    again = posed_again(io, config, backend, matches, tasks) if rule.replays else {}
    writing = posed(matches, tasks, plan, again, shard)
    return SolveWork(matches, tasks, again, plan, shard, list(dict.fromkeys(one["student_adapter_id"] for one, *_ in writing)))


def proposal_plan(config: RunConfig) -> ProposalPlan:
    """Return what teachers are asked for."""
    rule = config.propose
    sizes = rule.groups, rule.group_size, rule.references, rule.num_inputs, rule.max_new_tokens
    return ProposalPlan(*sizes, config.engine.temperature, config.kinds)
