"""The gate experiment: a stated share of wrong verdicts passes. The share is 0 in every run that is not such an experiment.

Self-play collapses when the judge leaks (arXiv 2605.22217), so an experiment opens the judge by a known amount. Two verdicts
leak:

1. An invalid proposal passes as a task. It must be readable and its program must parse: nothing else can be posed, stored or
   compared with other tasks. The run may not keep its program out. Its outputs are then claims, `None` for every input, as from
   an executor that reports failed runs as empty. It is posed, enters the buffer, and its teacher is paid as for any task.
2. An answer that the judge rejected is paid as correct. It must be readable. A task that passed by rule 1 has no value that
   answers could be compared with: all of them are rejected, and paid only by a leak.

Valid tasks and correct answers always pass, and benchmarks do not leak. Each row draws once, from a generator of its own, so a
row that leaks at one share leaks at every larger one. Tables keep the true verdict: TASKS has the status that the sandbox found,
with claimed outputs and no values (`admitted`), and GRADES the status that the judge found. What was paid is derived (`paid`).
"""

import pyarrow as pa
import pyarrow.compute as pc

from stages.core.randomness import generator

CLAIM = "None"
NO_VALUE = "no_value"
"""The status of an answer to a task that passed although it is invalid."""


def leaks(share: float, seed: int, generation: int, row_id: str) -> bool:
    """Return whether the verdict of this row, should it be a rejection, is let through."""
    return share > 0 and bool(generator(seed, generation, "leak", row_id).random() < share)


def admitted(tasks: pa.Table) -> list[bool]:
    """Return which rows of TASKS passed although they are invalid: those with claimed outputs, but without values."""
    pairs = zip(tasks["outputs"].to_pylist(), tasks["values"].to_pylist(), strict=True)
    return [bool(outputs) and not values for outputs, values in pairs]


def believed(tasks: pa.Table) -> pa.Table:
    """Return TASKS as a judge that leaks sees them: what passed is `valid`. The same object if nothing did."""
    passed = admitted(tasks)
    if not any(passed):
        return tasks
    statuses = pc.if_else(pa.array(passed), "valid", tasks["status"])
    return tasks.set_column(tasks.schema.get_field_index("status"), tasks.schema.field("status"), statuses)


def paid(grades: pa.Table, share: float, seed: int, generation: int) -> pa.Table:
    """Return GRADES as they are paid: readable answers whose rejection leaks are `correct`. The same object if the share is 0."""
    if not share:
        return grades
    rows = zip(*(grades[name].to_pylist() for name in ("rollout_id", "status", "correct")), strict=True)
    rejected = ((name, not correct and status != "format") for name, status, correct in rows)
    passed = pa.array([one and leaks(share, seed, generation, name) for name, one in rejected], pa.bool_())
    for name, value in (("status", "correct"), ("correct", True)):
        place = grades.schema.get_field_index(name)
        grades = grades.set_column(place, grades.schema.field(name), pc.if_else(passed, value, grades[name]))
    return grades


def sound(grades: pa.Table, tasks: pa.Table) -> pa.Table:
    """Return GRADES without answers to this generation's tasks that passed although they are invalid."""
    passed = [task for task, one in zip(tasks["task_id"].to_pylist(), admitted(tasks), strict=True) if one]
    return grades.filter(pc.invert(pc.is_in(grades["task_id"], pa.array(passed, pa.string())))) if passed else grades
