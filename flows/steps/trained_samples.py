"""Which samples a generation's update trains on, and how it is cut into parts.

They are the generation's own, or with `learning.off_policy_steps` those of the generation before: then nothing that the update
reads is made by the rollouts of its generation, and it can run beside them.
"""

import pyarrow as pa
import pyarrow.compute as pc

from flows.config import RunConfig
from flows.plan.decoder_shape import known_shape
from flows.plan.update_cut import shares_of
from flows.run.stage_io import StageIO
from stages import update as updating
from stages.core import tables
from stages.core.population import Member
from stages.core.statistics.estimates import only
from stages.core.unavailable import Unsuited


def trained_samples(io: StageIO, config: RunConfig) -> pa.Table:
    """Return the samples that this generation's update trains on."""
    return _learning(_carried(io) if config.learning.off_policy_steps else io.table("samples"), config)


def moved_since(io: StageIO, config: RunConfig) -> frozenset[str]:
    """Return the members whose weights are no longer those that wrote the samples on which this generation's update trains."""
    if not config.learning.off_policy_steps or io.generation == 0:
        return frozenset()
    written = io.table("samples", io.generation - 1)
    wrote = set(zip(written["member_id"].to_pylist(), written["adapter_id"].to_pylist(), strict=True))
    return frozenset(member.member_id for member in io.population() if (member.member_id, member.adapter_id) not in wrote)


def sampled_in(io: StageIO, config: RunConfig) -> str:
    """Return the type in which the engine wrote the samples of this generation's update, as recorded; empty if nobody did."""
    manifest = io.run.manifest("solve", io.generation - config.learning.off_policy_steps)
    return "" if manifest is None else str(manifest.versions.get("engine", {}).get("dtype", ""))


def update_groups(io: StageIO, config: RunConfig) -> pa.Table:
    """Return GROUPS of this generation's update: those that `reward` stored, or for an update beside the rollouts computed.

    Version 0.1 of this project stored none; they are then computed again.
    """
    if config.learning.off_policy_steps:  # also where they are stored: an early part must not read what a later stage writes
        return _cut(_learning(_carried(io), config), io.population(), config)
    if io.has("groups"):
        return io.table("groups")
    return updating.groups(trained_samples(io, config), io.population(), config.learning.adapters_per_group)


def group_of(io: StageIO, config: RunConfig, part: str) -> pa.Table:
    """Return the rows of GROUPS of one part. Raises Unsuited if this machine divides the update into other parts."""
    rows = only(update_groups(io, config), part=part)
    if not rows.num_rows:
        raise Unsuited(
            f"this machine divides the update into other parts, without {part}: does it find the model at model.name, with the "
            "same config.json as the machine of the run?"
        )
    return rows


def groups_after_reward(io: StageIO, config: RunConfig, samples: pa.Table) -> pa.Table:
    """Return GROUPS for `reward` to store. `samples` are those that it has just written."""
    trained = _carried(io) if config.learning.off_policy_steps else samples
    return _cut(_learning(trained, config), io.population(), config)


def _carried(io: StageIO) -> pa.Table:
    """Return the samples of the generation before as samples of the members' weights in this one."""
    if io.generation == 0:
        return tables.SAMPLES.empty_table()
    return updating.carried_over(io.table("samples", io.generation - 1), io.population())


def _cut(samples: pa.Table, population: list[Member], config: RunConfig) -> pa.Table:
    """Return GROUPS: the parts of an update on these samples. By rows only where some adapter's rewards vary."""
    by_adapters = updating.groups(samples, population, config.learning.adapters_per_group)
    tokens: dict[str, float] = {}
    for row in by_adapters.to_pylist():
        tokens[row["part"]] = tokens.get(row["part"], 0.0) + row["tokens"]
    copied = bool(config.strategy.population)  # no gradients: only whole adapters have a step
    count = 0 if copied else shares_of(config, known_shape(config.model.name), list(tokens.values()), by_adapters.num_rows)
    by_rows = updating.shares(samples, population, count, config.learning.skip_zero_groups)
    return by_rows if by_rows.num_rows else by_adapters


def _learning(samples: pa.Table, config: RunConfig) -> pa.Table:
    return samples.filter(pc.not_equal(samples["role"], config.learning.frozen.removesuffix("s")))
