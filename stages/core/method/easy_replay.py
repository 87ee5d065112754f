"""Easy replays: tasks that were solved in most attempts, posed again as a share of what a student practises.

Outcome rewards extrapolate to hard problems only while easy ones stay in the mix (arXiv 2601.15158), and a teacher that is paid
1 - s pushes them out. A match that poses n tasks poses n r / (1 - r) stored ones besides, so that a share r of its tasks is easy.
They are drawn without replacement from the tasks of the last `RECENT` generations that were solved in at least a share `rate` of
the attempts of their own generation, whoever made those. Like the replays of `method.top_up`, they train the student and do
nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from stages.core.method.buffer import task_key
from stages.core.randomness import generator


def solved(recent: Iterable[tuple[pa.Table, pa.Table]], rate: float) -> list[str]:
    """Return the tasks of which at least a share `rate` of the attempts was correct, from (TASKS, GRADES) of generations."""
    found = []
    for tasks, grades in recent:
        attempts, correct = Counter[str](), Counter[str]()
        for task_id, right in zip(grades["task_id"].to_pylist(), grades["correct"].to_pylist(), strict=True):
            attempts[task_id] += 1
            correct[task_id] += right
        found += [one for one in tasks["task_id"].to_pylist() if attempts[one] and correct[one] >= rate * attempts[one]]
    return found


def easy_replays(
    matches: pa.Table,
    tasks: pa.Table,
    easy: Sequence[dict],
    share: float,
    replayed: Mapping[str, Sequence[dict]],
    seed: int,
    generation: int,
) -> dict[str, list[dict]]:
    """Return match id -> the stored tasks (rows of SEEDS, from `easy`) that it poses again; all matches in order.

    `replayed` are the tasks that a match poses again for another reason. Neither those nor tasks equal to one that the match
    poses are drawn. A match poses fewer where `easy` runs out.
    """
    posed: dict[str, list[tuple]] = {match_id: [] for match_id in matches["match_id"].to_pylist()}
    for row in tasks.select(["match_id", "kind", "program_key", "inputs", "status", "gate"]).to_pylist():
        if row["status"] == "valid" and row["gate"] is None:
            posed[row["match_id"]].append(_key(row))
    found = {}
    for match_id, own in posed.items():
        known = {*own, *map(_key, replayed.get(match_id, ()))}
        free = [row for row in easy if _key(row) not in known]
        others = len(own) + len(replayed.get(match_id, ()))
        wanted = min(round(others * share / (1 - share)), len(free))
        order = generator(seed, generation, "easy", match_id).permutation(len(free))
        found[match_id] = [free[int(place)] for place in order[:wanted]]
    return found


def _key(row: dict) -> tuple:
    return task_key(row["kind"], row["program_key"], row["inputs"])
