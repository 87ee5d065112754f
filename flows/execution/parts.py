"""The parts of a stage: their names, and the function of the step that a spec names: a part, the whole stage, or the join."""

from flows.backend import Backend
from flows.benchmarks.schedule import members_at, panels, split_answers, write_panels
from flows.benchmarks.score import score_members
from flows.config import RunConfig
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.stages import stage_of
from flows.steps.steps import (
    STEPS,
    Step,
    count_refused_answers,
    count_refused_proposals,
    gradient_part,
    summed_update,
    update_part,
    update_parts,
)
from stages.core import tables
from stages.core.shards import Shard


def part_names(io: StageIO, config: RunConfig) -> list[str]:
    """Return the parts of the stage that `io` is for, as `00`, `01`, ...; none if it runs whole."""
    return [name for name, _ in named_parts(io, config)]


def named_parts(io: StageIO, config: RunConfig) -> list[tuple[str, str]]:
    """Return the parts, each with a text for people: the members that it trains, or which share of the stage it is."""
    if stage_of(io.stage).trains:
        parts = update_parts(io, config)
        if any(Shard.names(name) for name, _ in parts):
            return [(name, f"{place} of {len(parts)}") for place, (name, _) in enumerate(parts, 1)]
        return [(name, _words([adapter.rpartition("-")[0] for adapter in group])) for name, group in parts]
    count = min(config.engine.shards, _most(io, config))
    if count < 2:
        return []
    if stage_of(io.stage).shards == "contestants":
        return [(f"{number:02d}", f"{number + 1} of {count}") for number in range(count)]
    return [(Shard(number, count).name, f"{number + 1} of {count}") for number in range(count)]


def parts_of(run: Run, config: RunConfig, stage: str, generation: int) -> list[tuple[str, str]]:
    """Return the named parts of a run's stage.

    A stage that a fork shares has none: with the fork's own settings it might have others.
    """
    found = named_parts(StageIO(run, stage, generation, None, config.model.name, config.model.alpha), config)
    shared = run.manifest(stage, generation) if found else None
    return [] if shared is not None and any(ref.origin for ref in shared.outputs) else found


def step_of(io: StageIO, config: RunConfig) -> Step:
    """Return the function that runs what `io` is for."""
    if stage_of(io.stage).trains:
        return _training_step(io, config)
    return join if io.part is None and part_names(io, config) else STEPS[io.stage]


def _training_step(io: StageIO, config: RunConfig) -> Step:
    """Return the function for an update's part or join: the names of the parts say whether it is cut by rows."""
    if io.part is not None:
        return gradient_part if Shard.names(io.part) else update_part
    return summed_update if any(map(Shard.names, part_names(io, config))) else STEPS[io.stage]


def join(io: StageIO, config: RunConfig, backend: Backend) -> None:
    """Join the parts of propose, solve or benchmark to what the whole stage would have written. Public suites have no parts."""
    names = part_names(io, config)
    if io.stage == "propose":
        proposals = tables.join(io.parts(names, tables.PROPOSALS), tables.PROPOSALS)
        io.write_table("proposals", proposals)
        count_refused_proposals(io, proposals)
    elif io.stage == "solve":
        rollouts = tables.join(io.parts(names, tables.ROLLOUTS), tables.ROLLOUTS)
        io.write_table("rollouts", rollouts)
        count_refused_answers(io, backend, rollouts)
    else:
        chosen = list(panels(io, config))
        parts = io.parts(names, tables.ANSWERS)
        rows_each = sum(part.num_rows for part in parts) // sum(len(panel.contestants) for panel in chosen)
        write_panels(io, chosen, list(split_answers(parts, [panel.contestants for panel in chosen], rows_each)))
        score_members(io, config, backend, members_at(io, config))


def _most(io: StageIO, config: RunConfig) -> int:
    """Return how many parts the stage can have: one for each prompt of the teachers, or each contestant of the larger panel."""
    shards = stage_of(io.stage).shards
    if shards == "contestants":
        return max((len(panel.contestants) for panel in panels(io, config)), default=0)
    return io.table("matches").num_rows * config.prompts_per_teacher if shards == "completions" else 0


def _words(members: list[str], most: int = 4) -> str:
    """Format names: t0, t1, s0. Of many, the first ones and how many more there are."""
    more = [f"and {len(members) - most + 1} more"] if len(members) > most else []
    return ", ".join([*members[: most - 1], *more] if more else members)
