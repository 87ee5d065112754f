"""Replays of recent tasks, posed again as a share of what a student practises: easy ones, or ones with mixed results.

Easy: outcome rewards extrapolate to hard problems only while easy ones stay in the mix (arXiv 2601.15158), and a teacher that is
paid 1 - s pushes them out.

Mixed: a task teaches only while some attempts solve it and others do not. A curriculum of cells chooses depths at which half of
the attempts succeed, but most of that variance lies between tasks: each is solved nearly always or nearly never. Sampling for
learnability (Rutherford et al. 2024, arXiv 2408.15099) takes p (1 - p) of single problems, which costs attempts to find out; here
they were made anyway, because a student has just practised those problems. Deviations: 0 < p < 1 instead of the largest
p (1 - p), by the attempts of the task's last generation, whoever made them. Few `solve.trained_attempts` end replays early: one
attempt is never mixed. A student that is paid for the best of k answers learns nothing where most attempts are correct: a lower
`solve.mixed_rate` leaves such tasks out.

A match that poses n tasks also poses n r / (1 - r) stored ones, so that a share r of its tasks are replays. They are drawn
without replacement from the tasks of the last `RECENT` generations. Like the replays of `method.top_up`, they train the student
and do nothing else.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from stages.core.method.buffer import task_key
from stages.core.randomness import generator

Recent = Sequence[tuple[pa.Table, pa.Table]]
"""TASKS and GRADES of the last generations, oldest first."""


@dataclass(frozen=True)
class Reason:
    """Why recent tasks are posed again, as what share of a match's tasks, and which tasks those are."""

    name: str
    share: float
    candidates: Callable[[Recent], list[str]]


def reason_of(easy_share: float, easy_rate: float, mixed_share: float, mixed_rate: float) -> Reason | None:
    """Return the reason whose share is not 0; None if both are. A run has at most one."""
    if easy_share:
        return Reason("easy", easy_share, partial(easy_tasks, rate=easy_rate))
    return Reason("mixed", mixed_share, partial(mixed_tasks, rate=mixed_rate)) if mixed_share else None


def easy_tasks(recent: Recent, rate: float) -> list[str]:
    """Return the tasks of which at least a share `rate` of their own generation's attempts was correct."""
    found = []
    for tasks, grades in recent:
        counted = {task_id: (attempts, correct) for task_id, attempts, correct in _counted(grades)}
        for one in tasks["task_id"].to_pylist():
            attempts, correct = counted.get(one, (0, 0))
            if attempts and correct >= rate * attempts:
                found.append(one)
    return found


def mixed_tasks(recent: Recent, rate: float = 1.0) -> list[str]:
    """Return the tasks of which some attempts were correct, at most a share `rate`, and some were not.

    The last generation that attempted a task counts. Replays are attempts, so a task that all solve by now is no longer mixed.
    """
    mixed: dict[str, bool] = {}
    for tasks, grades in recent:
        mixed |= dict.fromkeys(tasks["task_id"].to_pylist(), False)
        for task_id, attempts, correct in _counted(grades):
            if task_id in mixed:
                mixed[task_id] = 0 < correct < attempts and correct <= rate * attempts
    return [task_id for task_id, one in mixed.items() if one]


def recent_replays(
    reason: Reason,
    matches: pa.Table,
    tasks: pa.Table,
    candidates: Sequence[dict],
    replayed: Mapping[str, Sequence[dict]],
    seed: int,
    generation: int,
) -> dict[str, list[dict]]:
    """Return match id -> the stored tasks (rows of SEEDS, from `candidates`) that it poses again; all matches in order.

    `replayed` are the tasks that a match poses again to fill its batch. Neither those nor tasks equal to one that the match poses
    are drawn. A match poses fewer where `candidates` run out. Each reason draws with a random stream of its own.
    """
    posed: dict[str, list[tuple]] = {match_id: [] for match_id in matches["match_id"].to_pylist()}
    for row in tasks.select(["match_id", "kind", "program_key", "inputs", "status", "gate"]).to_pylist():
        if row["status"] == "valid" and row["gate"] is None:
            posed[row["match_id"]].append(_key(row))
    found = {}
    for match_id, own in posed.items():
        known = {*own, *map(_key, replayed.get(match_id, ()))}
        free = [row for row in candidates if _key(row) not in known]
        others = len(own) + len(replayed.get(match_id, ()))
        wanted = min(round(others * reason.share / (1 - reason.share)), len(free))
        order = generator(seed, generation, reason.name, match_id).permutation(len(free))
        found[match_id] = [free[int(place)] for place in order[:wanted]]
    return found


def _counted(grades: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yield each task with its attempts and how many of them were correct."""
    attempts, correct = Counter[str](), Counter[str]()
    for task_id, right in zip(grades["task_id"].to_pylist(), grades["correct"].to_pylist(), strict=True):
        attempts[task_id] += 1
        correct[task_id] += right
    return ((task_id, number, correct[task_id]) for task_id, number in attempts.items())


def _key(row: dict) -> tuple:
    return task_key(row["kind"], row["program_key"], row["inputs"])
