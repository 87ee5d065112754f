"""The parts of a stage: their names, and the function of the step that a spec names: a part, the whole stage, or the join."""

from flows.backend import Backend
from flows.benchmarks.schedule import members_at, panels, write_panels
from flows.benchmarks.score import score_members
from flows.config import RunConfig
from flows.run.sharding import WRITERS, joined_proposals, joined_rollouts, shard, split_answers
from flows.run.stage_io import StageIO
from flows.stages import stage_of
from flows.steps import STEPS, Step, count_refused_answers, count_refused_proposals, update_part, update_parts
from stages.core import tables


def part_names(io: StageIO, config: RunConfig) -> list[str]:
    """Return the parts of the stage that `io` is for, as `00`, `01`, ...; none if it runs whole."""
    return [name for name, _ in named_parts(io, config)]


def named_parts(io: StageIO, config: RunConfig) -> list[tuple[str, str]]:
    """Return the parts, each with a text that names its members."""
    if stage_of(io.stage).trains:
        return [(name, _words([adapter.rpartition("-")[0] for adapter in group])) for name, group in update_parts(io, config)]
    members = _members(io, config) if config.engine.shards > 1 else []
    count = min(config.engine.shards, len(members))
    names = [f"{number:02d}" for number in range(count)] if count > 1 else []
    return [(name, _words(shard(members, count, name))) for name in names]


def step_of(io: StageIO, config: RunConfig) -> Step:
    """Return the function that runs what `io` is for."""
    trains = stage_of(io.stage).trains
    if io.part is not None:
        return update_part if trains else STEPS[io.stage]
    return join if not trains and part_names(io, config) else STEPS[io.stage]


def join(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Join the parts of propose, solve or benchmark to what the whole stage would have written. Public suites have no parts."""
    names = part_names(io, config)
    if io.stage == "propose":
        proposals = joined_proposals(io.table("matches"), io.parts(names, tables.PROPOSALS))
        io.write_table("proposals", proposals)
        count_refused_proposals(io, proposals)
    elif io.stage == "solve":
        rollouts = joined_rollouts(io.table("matches"), io.table("tasks"), io.parts(names, tables.ROLLOUTS))
        io.write_table("rollouts", rollouts)
        count_refused_answers(io, backend, rollouts)
    else:
        chosen = list(panels(io, config))
        parts = io.parts(names, tables.ANSWERS)
        rows_each = sum(part.num_rows for part in parts) // sum(len(panel.contestants) for panel in chosen)
        write_panels(io, chosen, list(split_answers(parts, [panel.contestants for panel in chosen], rows_each)))
        score_members(io, config, backend, members_at(io, config))


def _members(io: StageIO, config: RunConfig) -> list[str]:
    """Return who generates in this stage; for benchmarks, the larger panel."""
    shards = stage_of(io.stage).shards
    if shards == "contestants":
        contestants = max((panel.contestants for panel in panels(io, config)), key=len, default=[])
        return [one.member_id for one in contestants]
    return list(dict.fromkeys(io.table("matches")[WRITERS[shards]].to_pylist())) if shards in WRITERS else []


def _words(members: list[str], most: int = 4) -> str:
    """Format names: t0, t1, s0. Of many, the first ones and how many more there are."""
    more = [f"and {len(members) - most + 1} more"] if len(members) > most else []
    return ", ".join([*members[: most - 1], *more] if more else members)
