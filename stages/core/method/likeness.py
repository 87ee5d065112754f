"""How alike a teacher's tasks are, so that writing one task again and again earns less.

    reward = rule(event) - weight * m / (n - 1)

for a valid task that a teacher wrote, with n its teacher's valid tasks of this kind in the generation, and m how many of the
other n - 1 lie in the same cell of the problem space: node types of the program, types of the values
(stages.core.judging.shapes). Ours: the paper pays for difficulty alone. A task without a shape has a program that
could not be measured (a sum of 330 terms, say); all such tasks are alike, so that nothing is won by being one.
"""

from collections import Counter

import pyarrow as pa

from stages.core.judging.shapes import cell


def likeness(tasks: pa.Table) -> dict[str, float]:
    """Return task id -> the share of its teacher's other valid tasks of its kind that lie in its cell, where that is above 0.

    `tasks` are TASKS. Tasks that a gate stopped are not counted.
    """
    rows = [row for row in tasks.to_pylist() if row["status"] == "valid" and row["gate"] is None]
    cells = {row["task_id"]: (row["teacher_id"], row["kind"], cell(row)) for row in rows}
    written = Counter((row["teacher_id"], row["kind"]) for row in rows)
    same = Counter(cells.values())
    return {task_id: (same[own] - 1) / (written[own[:2]] - 1) for task_id, own in cells.items() if same[own] > 1}
