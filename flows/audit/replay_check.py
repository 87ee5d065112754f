"""Invariants of the tasks that are posed again: to fill short batches, or because they are easy or their results were mixed.

The draw is repeated from the earlier tables and compared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from flows.config import RunConfig
from stages.core.earlier_tasks import StoredTasks
from stages.core.method.leak import believed
from stages.core.method.recent_replay import Reason, reason_of, recent_replays
from stages.core.method.top_up import replay_id, replays


def replay_problems(
    found: Mapping[str, pa.Table],
    config: RunConfig,
    earlier: StoredTasks,
    generation: int,
    recent: Sequence[tuple[pa.Table, pa.Table]] | None = (),
) -> Iterator[tuple[str, str]]:
    """Yield (table, problem) where the tasks posed again differ from those due, or are not attempted as often as configured.

    `earlier` holds the tasks of every earlier generation, `recent` TASKS and GRADES of the last ones, oldest first,
    None if they cannot be read. Skipped while a table that is needed is absent.
    """
    if not config.solve.replays or not {"matches", "tasks", "rollouts"} <= set(found):
        return
    if _reason(config) is not None and recent is None:
        return
    due, made = _due(found, config, earlier, recent or (), generation), _made(found)
    expected = config.solve.trained_attempts or config.solve.attempts
    wrong = [one for one in due if made[one] and made[one] != expected]
    for problem, ids in (
        ("replays that were not due", set(made) - due),
        ("replays that were due are missing", due - set(made)),
        (f"replays not attempted {expected} times", wrong),
    ):
        listed = sorted(ids)
        if listed:
            more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
            yield "rollouts", f"{problem}: {', '.join(listed[:3])}{more}"


def _due(
    found: Mapping[str, pa.Table],
    config: RunConfig,
    earlier: StoredTasks,
    recent: Sequence[tuple[pa.Table, pa.Table]],
    generation: int,
) -> set[str]:
    rule, matches, again = config.propose, found["matches"], dict[str, list[dict]]()
    known = pc.is_in(found["tasks"]["match_id"], pa.array(matches["match_id"].to_pylist(), pa.string()))
    tasks = believed(found["tasks"].filter(known))  # a task without a match is reported elsewhere
    if config.solve.top_up:
        buffers = earlier.snapshots(rule.buffer_size, set(matches["teacher_id"].to_pylist()), rule.buffer == "own")
        again = replays(matches, tasks, buffers, rule.groups * rule.group_size, config.seed, generation, config.kinds)
    if (reason := _reason(config)) is not None:
        candidates = earlier.rows(reason.candidates(recent))
        also = recent_replays(reason, matches, tasks, candidates, again, config.seed, generation)
        again = {match_id: [*again.get(match_id, ()), *own] for match_id, own in also.items()}
    return {replay_id(match_id, row["task_id"]) for match_id, rows in again.items() for row in rows}


def _reason(config: RunConfig) -> Reason | None:
    rule = config.solve
    return reason_of(rule.easy_share, rule.easy_rate, rule.mixed_share, rule.mixed_rate)


def _made(found: Mapping[str, pa.Table]) -> Counter[str]:
    own = set(found["tasks"]["task_id"].to_pylist())
    rows = found["rollouts"].select(["match_id", "task_id"]).to_pylist()
    return Counter(replay_id(row["match_id"], row["task_id"]) for row in rows if row["task_id"] not in own)
