"""What a generation's metrics are computed from: its own tables, what was stored before, and the weights that played."""

import math
from collections.abc import Sequence

import pyarrow as pa

from flows.config import RunConfig
from flows.run.stage_io import StageIO
from stages.analysis.measure import Birth, costs, explore, measure, relate, replayed
from stages.core import tables
from stages.core.method.top_up import fresh
from stages.core.population import Member
from stages.core.statistics.estimates import only

PLAYED = ("proposals", "tasks", "rollouts", "grades", "samples")


def generation_metrics(io: StageIO, config: RunConfig, parts: Sequence[pa.Table]) -> pa.Table:
    """METRICS of the generation, the update's own `parts` among them."""
    found = {name: io.table(name) for name in ("matches", *PLAYED)}
    steps = only(tables.join(parts, tables.METRICS), name="update.stepped")
    stepped = {row["member_id"]: row["value"] > 0 for row in steps.to_pylist()}
    earlier = [io.table("tasks", generation) for generation in range(io.generation)]
    members = io.population()
    weights = {name: adapter.weights for name, adapter in io.adapters([member.adapter_id for member in members]).items()}
    scale = config.model.alpha / config.model.rank
    new = fresh(found["grades"], found["tasks"])
    measured = [
        measure(*(found[name] for name in PLAYED)),
        explore(found["tasks"], earlier),
        relate(members, found["matches"], new, found["samples"], weights, _births(io, members), scale, io.generation),
        costs(found["samples"], stepped, config.learning.frozen.removesuffix("s")),
    ]
    if config.solve.top_up:
        measured.append(replayed(found["tasks"], found["grades"]))
    return tables.join([*measured, *parts], tables.METRICS)


def _births(io: StageIO, members: Sequence[Member]) -> dict[str, Birth]:
    """Where the members that were born in this run come from, by member id."""
    found = {}
    for member in members:
        if not member.born:
            continue
        event = member.born - 1
        row = only(io.table("offspring", event), member_id=member.member_id).to_pylist()[0]
        earned = only(io.table("metrics", event), name="reward.mean").to_pylist()
        rewards = [one["value"] for one in earned if one["member_id"] in row["parents"]]
        mean = math.fsum(rewards) / len(rewards) if rewards else math.nan  # a parent that sat out earned nothing
        found[member.member_id] = Birth(tuple(row["parents"]), row["operator"], mean)
    return found
