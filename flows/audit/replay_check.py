"""Invariants of the tasks that fill short batches: the draw is repeated from the earlier tables and compared."""

from collections import Counter
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from flows.config import RunConfig
from stages.core.earlier_tasks import StoredTasks
from stages.core.method.top_up import replay_id, replays


def replay_problems(
    found: Mapping[str, pa.Table], config: RunConfig, earlier: StoredTasks, generation: int
) -> Iterator[tuple[str, str]]:
    """Yield (table, problem) where the tasks posed again differ from those due, or are not attempted as often as configured.

    `earlier` holds the tasks of every earlier generation. Skipped while a table of `found` is absent.
    """
    if not config.solve.top_up or not {"matches", "tasks", "rollouts"} <= set(found):
        return
    due, made = _due(found, config, earlier, generation), _made(found)
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


def _due(found: Mapping[str, pa.Table], config: RunConfig, earlier: StoredTasks, generation: int) -> set[str]:
    rule, matches = config.propose, found["matches"]
    known = pc.is_in(found["tasks"]["match_id"], pa.array(matches["match_id"].to_pylist(), pa.string()))
    tasks = found["tasks"].filter(known)  # a task without a match is reported elsewhere
    buffers = earlier.snapshots(rule.buffer_size, set(matches["teacher_id"].to_pylist()), rule.buffer == "own")
    drawn = replays(matches, tasks, buffers, rule.groups * rule.group_size, config.seed, generation)
    return {replay_id(match_id, row["task_id"]) for match_id, rows in drawn.items() for row in rows}


def _made(found: Mapping[str, pa.Table]) -> Counter[str]:
    own = set(found["tasks"]["task_id"].to_pylist())
    rows = found["rollouts"].select(["match_id", "task_id"]).to_pylist()
    return Counter(replay_id(row["match_id"], row["task_id"]) for row in rows if row["task_id"] not in own)
