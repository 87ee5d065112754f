"""Top-up: pose stored tasks again if a teacher wrote too few, so that its student's batch keeps its size.

Absolute Zero Reasoner fills short student batches from its buffer. Here a match that poses fewer than `groups * group_size` tasks
of a kind replaces the missing ones with stored tasks, drawn uniformly from its teacher's buffer, or with all of them
if it holds too few. A replay trains only the student: the task was verified and its teacher rewarded earlier,
and the match is rated by its new tasks alone. Deviations: draws are without replacement and exclude tasks equal to one posed in
the same match, so that no student sees a task twice in a match. Only the attempts that train are made: the solve rate is unused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.core.method.buffer import task_key
from stages.core.prompts.styles import Kind
from stages.core.randomness import generator


def replays(
    matches: pa.Table,
    tasks: pa.Table,
    buffers: Mapping[str, Mapping[Kind, Sequence[dict]]],
    wanted: int,
    seed: int,
    generation: int,
    kinds: Sequence[Kind] = tuple(Kind),
) -> dict[str, list[dict]]:
    """Return match id -> the stored tasks (rows of SEEDS) that it replays, kind by kind; all matches in order, even without any.

    `buffers` maps a teacher to its snapshot by kind; `wanted` is the number of tasks of each of `kinds` that a match should pose.
    """
    posed: dict[str, list[dict]] = {match_id: [] for match_id in matches["match_id"].to_pylist()}
    for row in tasks.select(["match_id", "kind", "program_key", "inputs", "status", "gate"]).to_pylist():
        if row["status"] == "valid" and row["gate"] is None:
            posed[row["match_id"]].append(row)
    keys_of = _Keys()
    return {
        match["match_id"]: list(
            _drawn(
                posed[match["match_id"]],
                {kind: buffers[match["teacher_id"]][kind] for kind in kinds},
                wanted,
                generator(seed, generation, "top_up", match["match_id"]),
                keys_of,
            )
        )
        for match in matches.to_pylist()
    }


class _Keys:
    """The keys of buffers. Each is made once, when it is asked for: reading 16,384 rows takes long, and matches share buffers."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Kind], list[tuple]] = {}

    def __call__(self, kind: Kind, rows: Sequence[dict]) -> list[tuple]:
        if (own := (id(rows), kind)) not in self._made:
            self._made[own] = [task_key(kind, row["program_key"], row["inputs"]) for row in rows]
        return self._made[own]


def _drawn(
    posed: list[dict], buffer: Mapping[Kind, Sequence[dict]], wanted: int, rng: np.random.Generator, keys_of: _Keys
) -> Iterator[dict]:
    known = {task_key(row["kind"], row["program_key"], row["inputs"]) for row in posed}
    for kind, stored in buffer.items():
        missing = wanted - sum(row["kind"] == kind for row in posed)
        if missing > 0:
            free = [place for place, key in enumerate(keys_of(kind, stored)) if key not in known]
            yield from (stored[free[int(index)]] for index in rng.choice(len(free), min(missing, len(free)), replace=False))


def fresh(rows: pa.Table, tasks: pa.Table) -> pa.Table:
    """Return the rollouts or grades of a generation's own tasks, without its replays."""
    return rows.filter(pc.is_in(rows["task_id"], pa.array(tasks["task_id"].to_pylist(), pa.string())))


def replay_id(match_id: str, task_id: str) -> str:
    """Return the id prefix of a replay's rollouts. It includes the match: one task may be replayed in many matches."""
    return f"{match_id}-{task_id}"


def task_of(row_id: str) -> str:
    """Return the task that the id of a proposal, task, rollout or sample refers to."""
    return re.sub(r"^g\d{4,}-m\d{2,}-(?!p\d)", "", re.sub(r"-r\d+$", "", row_id))
