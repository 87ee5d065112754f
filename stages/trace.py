"""Trace: record what programs assign, for the tasks of which some answer is wrong. Part of grading, where a trace is rewarded.

Deduction only: the answer to an abduction runs the program backwards from what is given, and an induction has no trace.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from stages.core import tables
from stages.core.judging.traces import RecordedRun, true_traces
from stages.core.prompts.styles import Kind
from stages.core.sandbox.protocol import Sandbox


def record_traces(tasks: pa.Table, replayed: Iterable[Mapping[str, Any]], grades: pa.Table, sandbox: Sandbox) -> pa.Table:
    """Return TRACES: one row for each deduction that some answer in GRADES got wrong, in the order of the grades.

    `replayed` are the stored tasks (rows of SEEDS) among those attempted. Raise SandboxUnavailable.
    """
    task_of = {row["task_id"]: row for row in [*replayed, *tasks.to_pylist()]}
    missed = missed_deductions(grades)
    runs = [RecordedRun(task_of[one]["program"], task_of[one]["inputs"][0], task_of[one]["values"][0]) for one in missed]
    rows = [
        {"task_id": task_id, "steps": trace.steps, "lines": list(trace.lines)}
        for task_id, trace in zip(missed, true_traces(sandbox, runs), strict=True)
    ]
    return tables.table(rows, tables.TRACES)


def missed_deductions(grades: pa.Table) -> list[str]:
    """Return the ids of the deductions that some answer got wrong, each once."""
    rows = zip(*(grades[name].to_pylist() for name in ("task_id", "kind", "status")), strict=True)
    return list(dict.fromkeys(task_id for task_id, kind, status in rows if kind == Kind.DEDUCTION and status == "wrong"))
