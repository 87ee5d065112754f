"""The metrics of a generation: what was played, proposed and trained, and how members relate to one another."""

import math
from collections.abc import Sequence

import pyarrow as pa

from flows.backend import Backend
from flows.config import RunConfig
from flows.run.stage_io import StageIO
from flows.steps.trained_samples import trained_samples
from stages.analysis.leaked import leaked
from stages.analysis.measure import OffspringRecord, costs, explore, measure, relate, replayed
from stages.analysis.paid_for import paid_for
from stages.analysis.traced import traced
from stages.analysis.trailing import trailing
from stages.core import tables
from stages.core.method.leak import believed, paid, sound
from stages.core.method.top_up import fresh
from stages.core.population import Member
from stages.core.statistics.condensed import with_clusters
from stages.core.statistics.estimates import only

PLAYED = ("proposals", "tasks", "rollouts", "grades", "samples")


def paid_grades(io: StageIO, config: RunConfig) -> pa.Table:
    """Return the grades that rewards and ratings see: those of the judge, unless the gate experiment lets wrong ones through."""
    return paid(io.table("grades"), config.experiment.leak, config.seed, io.generation)


def generation_metrics(io: StageIO, config: RunConfig, backend: Backend, parts: Sequence[pa.Table]) -> pa.Table:
    """Return METRICS of the generation, including the update's own `parts`."""
    found = {name: io.table(name) for name in ("matches", *PLAYED)}
    steps = only(tables.join(parts, tables.METRICS), name="update.stepped")
    stepped = {row["member_id"]: row["value"] > 0 for row in steps.to_pylist()}
    earlier = backend.earlier.seen(io, seeds=False)
    members = io.population()
    weights = {name: adapter.weights for name, adapter in io.adapters([member.adapter_id for member in members]).items()}
    scale = config.model.alpha / config.model.rank
    new = fresh(paid_grades(io, config), found["tasks"])
    played = found | {"grades": sound(found["grades"], found["tasks"])}
    rewarded = with_clusters(found["samples"], found["proposals"])
    measured = [
        measure(*(played[name] for name in PLAYED)),
        explore(found["proposals"], believed(found["tasks"]), earlier),
        relate(members, found["matches"], new, rewarded, weights, _births(io, members), scale, io.generation),
        paid_for(found["tasks"], found["rollouts"], found["samples"]),
        costs(trained_samples(io, config), stepped),
    ]
    if config.solve.replays:
        measured.append(replayed(found["tasks"], found["grades"]))
    if config.experiment.leak:
        measured.append(leaked(found["proposals"], found["tasks"], found["grades"], paid_grades(io, config)))
    if config.reward.trace_weight and io.has("traces"):  # not in a fork from behind the stage that writes them
        measured.append(traced(found["rollouts"], played["grades"], io.table("traces")))
    if config.reward.trailing_text:
        measured.append(trailing(found["rollouts"]))
    return tables.join([*measured, *parts], tables.METRICS)


def _births(io: StageIO, members: Sequence[Member]) -> dict[str, OffspringRecord]:
    """Return, by member id, where the members born in this run come from."""
    found = {}
    for member in members:
        if not member.born:
            continue
        event = member.born - 1
        row = only(io.table("offspring", event), member_id=member.member_id).to_pylist()[0]
        earned = only(io.table("metrics", event), name="reward.mean").to_pylist()
        rewards = [(one["value"], one["stderr"]) for one in earned if one["member_id"] in row["parents"]]
        mean = math.fsum(value for value, _ in rewards) / len(rewards) if rewards else math.nan  # a parent that sat out
        errors = [error for _, error in rewards if error is not None]
        stderr = math.hypot(*errors) / len(errors) if errors and len(errors) == len(rewards) else None
        found[member.member_id] = OffspringRecord(tuple(row["parents"]), row["operator"], mean, stderr)
    return found
