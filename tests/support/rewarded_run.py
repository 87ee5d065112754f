"""One generation in which two attempts are written as a test wants them; the rewards are those of the real stage."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flows.config import RunConfig, dump
from flows.run.history import KEPT_OUT
from flows.run.run import Run
from stages.core import tables
from stages.core.method.advantages import reinforce_plus_plus_baseline
from stages.core.method.rewards import populora
from stages.core.method.trace_reward import trace_shares
from stages.reward import reward
from stages.trace import missed_deductions
from tests.support import example_run

TASK = "g0000-m00-p000"
"""A deduction. Its two attempts are `written`; of all others, none is correct."""
DOCUMENT = example_run.CONFIG.model_copy(update={"model": example_run.CONFIG.model.model_copy(update={"style": "document"})})
TRACED = RunConfig.model_validate(dump(example_run.CONFIG) | {"model": {"style": "trace"}, "reward": {"trace_weight": 0.5}})
STEPS = ["c=12", "h=24", "k=6"]
"""What every program of a run that rewards traces assigns."""
BEHIND = {"text": " [1, 2], 'a message'\n", "answer": "[1, 2]", "answer_tokens": 2, "completion_ids": list(range(10))}
WHOLE = {"text": " [1, 2]\n", "answer": "[1, 2]", "answer_tokens": None, "completion_ids": [5, 6, 7]}
HALF = {"text": "c=12\nh=24\nk=7⟨out⟩7", "answer": "7"}
RIGHT = {"text": "c=12\nh=24\nk=6⟨out⟩6", "answer": "6"}


def build(run: Run, config: RunConfig, written: tuple[dict[str, Any], dict[str, Any]], statuses: tuple[str, str]) -> Run:
    """Write the start and generation 0 up to the rewards. An attempt without `answer_tokens` is of a table without the column."""
    run.describe(dump(config), {KEPT_OUT: []}, example_run.CLOCK)
    state = example_run.play(run, example_run.start(run), 0, ungraded=_answered(written))
    rollouts, bonuses = state["rollouts"], {}
    verdicts = dict(zip((f"{TASK}-r00", f"{TASK}-r01"), statuses, strict=True))
    columns = ("rollout_id", "task_id", "match_id", "student_id", "kind")
    rows = [
        {name: row[name] for name in columns} | {"status": (status := verdicts.get(row["rollout_id"], "wrong")), "detail": ""}
        | {"correct": status == "correct"}
        for row in rollouts.to_pylist()
    ]  # fmt: skip
    grades = tables.table(rows, tables.GRADES)
    outputs = [run.write_table(0, "grades", grades)]
    if config.reward.trace_weight:
        recorded = [{"task_id": name, "steps": len(STEPS), "lines": STEPS} for name in missed_deductions(grades)]
        traces = tables.table(recorded, tables.TRACES)
        outputs.append(run.write_table(0, "traces", traces))
        shares = trace_shares(rollouts, grades, traces)
        bonuses = {name: config.reward.trace_weight * share for name, share in shares.items()}
    run.commit("grade", 0, [], outputs, {}, {}, example_run.CLOCK)
    asked = (state["proposals"], state["tasks"], rollouts, grades, populora, reinforce_plus_plus_baseline, "group", 0, bonuses)
    run.commit("reward", 0, [], [run.write_table(0, "samples", reward(*asked))], {}, {}, example_run.CLOCK)
    return run


def _answered(written: tuple[dict[str, Any], dict[str, Any]]) -> Callable[[str, pa.Table], pa.Table]:
    def shaped(name: str, table: pa.Table) -> pa.Table:
        if name != "rollouts":
            return table
        rows = table.to_pylist()
        for row in rows:
            if row["task_id"] == TASK:
                row |= written[row["attempt"]]
                row["logprobs"] = [-0.5] * len(row["completion_ids"])
        found = pa.Table.from_pylist(rows, table.schema)
        return found if all("answer_tokens" in one for one in written) else found.drop_columns(["answer_tokens"])

    return shaped
