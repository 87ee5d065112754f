"""Grade: decide which answers are correct. Three outcomes: right, wrong, or an exception if the sandbox gave no verdict."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from stages.core import tables
from stages.core.judging.job_stream import NOTHING, Known
from stages.core.judging.judge import Judgement, answer_item, judge_answers
from stages.core.method.leak import NO_VALUE
from stages.core.progress import Progress, counted, silent
from stages.core.row_errors import rows_named
from stages.core.sandbox.protocol import Sandbox


def grade(
    tasks: pa.Table,
    rollouts: pa.Table,
    sandbox: Sandbox,
    replayed: Iterable[Mapping[str, Any]] = (),
    progress: Progress = silent,
    early: Known = NOTHING,
) -> pa.Table:
    """Return GRADES: one row per rollout, in order. `replayed` are the stored tasks (rows of SEEDS) among those attempted.

    A missing answer is `format`. Deduction compares values on the host; abduction runs the task's program on the answer, and
    any input that gives the output counts; induction runs the answer on every pair, shown and hidden (Absolute Zero Reasoner
    judges only the hidden ones). A task without values passed a leaking gate (`method.leak`): no answer to it is correct.
    `early` are verdicts on runs that were made while answers were written; the table does not depend on them.
    """
    task_of = {row["task_id"]: row for row in [*replayed, *tasks.to_pylist()]}
    listed = rollouts.select(["rollout_id", "task_id", "match_id", "student_id", "kind", "answer"]).to_pylist()
    founded = [row for row in listed if task_of[row["task_id"]]["values"]]
    items = (answer_item(task_of[row["task_id"]], row["answer"]) for row in founded)
    judged = counted(judge_answers(sandbox, items, early), "answers", len(founded), progress)
    with rows_named("rollouts", [row["rollout_id"] for row in founded]):
        judgements = {row["rollout_id"]: judgement for row, judgement in zip(founded, judged, strict=True)}
    rows = []
    for rollout in listed:
        judgement = judgements.get(rollout["rollout_id"]) or _without_value(rollout["answer"])
        row = {name: rollout[name] for name in ("rollout_id", "task_id", "match_id", "student_id", "kind")}
        rows.append(row | {"status": judgement.status, "correct": judgement.correct, "detail": judgement.detail})
    return tables.table(rows, tables.GRADES)


def _without_value(answer: str | None) -> Judgement:
    if answer is None:
        return Judgement("format", False, "no answer")
    return Judgement(NO_VALUE, False, "the task is invalid: it has no value to compare with")
