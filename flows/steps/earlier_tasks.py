"""Which earlier tasks a step uses: those that teachers see in their prompts, those that are posed again, and their grades."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from flows.backend import Backend
from flows.config import RunConfig
from flows.run.stage_io import StageIO
from stages.core.method.curriculum import RECENT
from stages.core.method.recent_replay import mixed_tasks, reason_of, recent_replays
from stages.core.method.top_up import replays


def references_of(io: StageIO, config: RunConfig, backend: Backend, teachers: list[str]) -> dict[str, Any]:
    """Return the tasks that the prompts of each of these teachers may show."""
    if not config.propose.mixed_references:
        return buffers_of(io, config, backend, teachers)
    rule, stored = config.propose, backend.earlier.stored(io)
    mixed = mixed_tasks(list(recent(io)), config.solve.mixed_rate)
    return stored.mixed_snapshots(rule.buffer_size, teachers, rule.buffer == "own", mixed, rule.references)


def buffers_of(io: StageIO, config: RunConfig, backend: Backend, teachers: list[str]) -> dict[str, Any]:
    """Return the buffer of each of these teachers, as of this generation."""
    return backend.earlier.stored(io).snapshots(config.propose.buffer_size, teachers, config.propose.buffer == "own")


def posed_again(io: StageIO, config: RunConfig, backend: Backend, matches: pa.Table, tasks: pa.Table) -> dict[str, list[dict]]:
    """Return the tasks that each match poses again: those that fill its batch, then easy ones or ones with mixed results."""
    rule, again = config.solve, dict[str, list[dict]]()
    if rule.top_up:  # from the teachers' buffers
        buffers = buffers_of(io, config, backend, sorted(set(matches["teacher_id"].to_pylist())))
        wanted = config.propose.groups * config.propose.group_size
        again = replays(matches, tasks, buffers, wanted, config.seed, io.generation, config.kinds)
    if (reason := reason_of(rule.easy_share, rule.easy_rate, rule.mixed_share, rule.mixed_rate)) is not None:
        rows = backend.earlier.stored(io).rows(reason.candidates(list(recent(io))))
        also = recent_replays(reason, matches, tasks, rows, again, config.seed, io.generation)
        again = {match_id: [*again.get(match_id, ()), *own] for match_id, own in also.items()}
    return again


def recent(io: StageIO) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield TASKS and GRADES of the last generations, oldest first; they become inputs of the stage."""
    for number in range(max(0, io.generation - RECENT), io.generation):
        yield io.table("tasks", number), io.table("grades", number)


def stored_among(io: StageIO, backend: Backend, rollouts: pa.Table, tasks: pa.Table) -> list[dict]:
    """Return the stored tasks among those attempted."""
    ids = set(rollouts["task_id"].to_pylist()) - set(tasks["task_id"].to_pylist())
    return backend.earlier.stored(io).rows(ids) if ids else []
