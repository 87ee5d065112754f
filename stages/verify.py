"""Verify: run every proposal in the sandbox and decide whether it is a task.

A task is valid if its program parses, defines `f`, uses nothing banned, returns a plain value within limits and gives the same
value in two separately started servers, and if its own gold answer is graded correct. Every row is kept, with a status: the
teacher's reward also depends on the invalid ones.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from stages.core import tables
from stages.core.judging.job_stream import NOTHING, Known
from stages.core.judging.judge import TaskItem, TaskVerdict, judge_tasks
from stages.core.judging.shapes import shapes, value_types
from stages.core.method.buffer import task_digest
from stages.core.method.gates import HELD_OUT, Gate
from stages.core.method.leak import CLAIM
from stages.core.progress import Progress, counted, silent
from stages.core.prompts.room import CONTROL_TOKEN, TOO_LONG, UNPOSED, control_token, posed, too_long
from stages.core.prompts.styles import PromptStyle
from stages.core.row_errors import rows_named
from stages.core.sandbox.protocol import Sandbox


def verify(
    proposals: pa.Table,
    sandbox: Sandbox,
    style: PromptStyle,
    known: Collection[str],
    probe_keys: Collection[str],
    gates: Mapping[str, Gate],
    fits: Callable[[str], bool],
    progress: Progress = silent,
    leaks: Callable[[str], bool] | None = None,
    early: Known = NOTHING,
    answerable: Callable[[str], bool] | None = None,
    markers: Sequence[str] = (),
) -> pa.Table:
    """Return TASKS: one row per proposal, in order.

    `known` are the digests of earlier tasks (`method.buffer.task_digest`), `gates` the active gates by name, in the order in
    which they are asked; a program in `probe_keys` is stopped in any case. `fits` returns whether a student's prompt leaves
    room for an answer; otherwise the status is `too_long`, which counts as invalid. `leaks` returns whether a task id passes if
    it is invalid (`method.leak`): such a row keeps its status and gets claimed outputs.
    `early` are verdicts on runs that were made while proposals were written; the table does not depend on them. `answerable`
    returns whether an answer's limit has room for a text: a deduction whose output it has not is `too_long`, too, since nobody
    could solve it. A task that writes out one of `markers`, the model's control tokens, is `control_token`, and invalid.
    """
    listed = proposals.to_pylist()
    readable = [row for row in listed if row["status"] == "parsed"]
    items = [TaskItem(row["program"], tuple(row["inputs"])) for row in readable]
    ids = [row["proposal_id"] for row in readable]
    judged = counted(judge_tasks(sandbox, items, early), "proposals", len(items), progress)
    with rows_named("proposals", ids):
        verdicts = dict(zip(ids, judged, strict=True))
    seen: set[str] = set()
    rows = []
    for proposal in listed:
        row = _row(proposal, verdicts.get(proposal["proposal_id"]))
        if row["status"] == "valid" and (detail := control_token(row, markers)):
            row |= {"status": CONTROL_TOKEN, "detail": detail}
        elif row["status"] == "valid" and (detail := too_long(style, row, fits, answerable)):
            row |= {"status": TOO_LONG, "detail": detail}
        held_out = row["program_key"] in probe_keys
        passed = leaks is not None and not held_out and _may_pass(row, markers) and leaks(row["task_id"])
        if passed:
            row |= {"outputs": [CLAIM] * len(row["inputs"])}
            passed = fits(posed(style, row))
            row |= {} if passed else {"outputs": []}
        if row["status"] == "valid" or passed:
            key = task_digest(row["kind"], row["program_key"], row["inputs"])
            row |= {"duplicate": key in known or key in seen, "probe_overlap": held_out}
            row |= {"gate": HELD_OUT if held_out else None if passed else _first_gate(row, gates)}
            seen.add(key)
        rows.append(row)
    return tables.table(_with_shapes(rows, sandbox), tables.TASKS)


def _with_shapes(rows: list[dict], sandbox: Sandbox) -> Iterator[dict]:
    """Yield the rows, those of valid tasks with the measurements of their programs."""
    valid = [row for row in rows if row["status"] == "valid"]
    measured = shapes(sandbox, [row["program"] for row in valid])
    for row in rows:
        shape = measured.get(row["program"]) if row["status"] == "valid" else None
        columns = shape.columns() | {"value_types": value_types(row["inputs"][0], row["values"][0])} if shape else {}
        yield row | columns


def _row(proposal: dict, verdict: TaskVerdict | None) -> dict:
    copied = ("match_id", "teacher_id", "kind", "program", "inputs", "message")
    row = {name: proposal[name] for name in copied} | {"task_id": proposal["proposal_id"], "duplicate": False}
    row |= {"probe_overlap": False, "gate": None, "outputs": [], "values": []}
    if verdict is None:
        return row | {"status": proposal["status"], "detail": proposal["detail"], "program_key": None}
    row |= {"status": verdict.status, "detail": verdict.detail, "program_key": verdict.program_key}
    if verdict.status == "valid":
        row |= {"outputs": list(verdict.outputs), "values": list(verdict.values)}
    return row


def _may_pass(row: dict, markers: Sequence[str]) -> bool:
    """Return whether an invalid proposal can be posed at all: it was read, its program parses, its prompt is short and plain."""
    posable = row["status"] not in ("valid", *UNPOSED) and not control_token(row, markers)
    return posable and row["program_key"] is not None and bool(row["inputs"])


def _first_gate(row: dict, gates: Mapping[str, Gate]) -> str | None:
    """Return the first gate that stops the task, or None if it passes all."""
    return next((name for name, stops in gates.items() if stops(row)), None)
