"""Top-up: stored tasks posed again where a teacher wrote too few, so that its student's batch keeps its size.

Absolute Zero Reasoner fills short student batches from its buffer. Here a match that poses fewer than `groups * group_size` tasks
of a kind replays the missing ones, drawn uniformly from the snapshot that its teacher's prompts came from; where that holds too
few, all of them. A replay trains the student and nobody else: it was verified, and its teacher paid, in its own time, and the
match is rated by its new tasks alone. Deviations: without replacement, and never a task that equals one posed in the same match,
so that no student meets a task twice in a match; only the attempts that train are made, since nobody asks for the solve rate.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.core.method.buffer import task_key
from stages.core.prompts.styles import Kind
from stages.core.randomness import generator


def replays(
    matches: pa.Table,
    tasks: pa.Table,
    buffers: Mapping[str, Mapping[Kind, list[dict]]],
    wanted: int,
    seed: int,
    generation: int,
) -> dict[str, list[dict]]:
    """Match id -> the stored tasks (rows of SEEDS) that it replays, kind by kind; matches in order, those without any too.

    `buffers` maps a teacher to its snapshot by kind, `wanted` is how many tasks of a kind a match should pose.
    """
    posed: dict[str, list[dict]] = {match_id: [] for match_id in matches["match_id"].to_pylist()}
    for row in tasks.select(["match_id", "kind", "program_key", "inputs", "status", "gate"]).to_pylist():
        if row["status"] == "valid" and row["gate"] is None:
            posed[row["match_id"]].append(row)
    return {
        match["match_id"]: list(
            _drawn(
                posed[match["match_id"]],
                buffers[match["teacher_id"]],
                wanted,
                generator(seed, generation, "top_up", match["match_id"]),
            )
        )
        for match in matches.to_pylist()
    }


def _drawn(posed: list[dict], buffer: Mapping[Kind, list[dict]], wanted: int, rng: np.random.Generator) -> Iterator[dict]:
    known = {task_key(row["kind"], row["program_key"], row["inputs"]) for row in posed}
    for kind in Kind:
        missing = wanted - sum(row["kind"] == kind for row in posed)
        free = [row for row in buffer[kind] if task_key(kind, row["program_key"], row["inputs"]) not in known]
        if missing > 0:
            yield from (free[int(index)] for index in rng.choice(len(free), min(missing, len(free)), replace=False))


def fresh(rows: pa.Table, tasks: pa.Table) -> pa.Table:
    """The rollouts or grades about a generation's own tasks, its replays left out."""
    return rows.filter(pc.is_in(rows["task_id"], pa.array(tasks["task_id"].to_pylist(), pa.string())))


def replay_id(match_id: str, task_id: str) -> str:
    """What the rollouts of a replay are called, before their number: one task may be replayed in many matches."""
    return f"{match_id}-{task_id}"


def task_of(row_id: str) -> str:
    """The task that the id of a proposal, task, rollout or sample is about."""
    return re.sub(r"^g\d{4,}-m\d{2,}-(?!p\d)", "", re.sub(r"-r\d+$", "", row_id))
