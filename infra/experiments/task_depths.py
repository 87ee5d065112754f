"""How deep a run's new tasks are and what they teach: a line for each kind and window of generations. Writes nothing.

    .venv/bin/python infra/experiments/task_depths.py STORE RUN [WINDOW]

Steps are lines of a program that assign; every step of a graded program is one. A task has mixed results if some of its attempts
were correct and others were not. Errors are those of the mean over tasks. Cells are kinds of program (docs/metrics.md, "Coverage
of the problem space"); a longer window has more of them, so compare windows of equal length, such as 10.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from stages.core.judging.shapes import cell

COLUMNS = ["task_id", "kind", "program", "syntax", "value_types", "executed_lines"]
KINDS = ("deduction", "abduction")  # an induction shows a program that was stored before


def lines(run: Path, window: int) -> Iterator[str]:
    """Yield the lines of a run in a folder."""
    found = defaultdict[tuple[str, int], list[tuple[int, float]]](list)
    cells = defaultdict[tuple[str, int], set[str]](set)
    for place, folder in enumerate(sorted(run.glob("generation=*"))):
        if (folder / "grades.parquet").exists():
            for task, steps, share in _tasks(folder):
                where = task["kind"], place // window
                found[where].append((steps, share))
                cells[where] |= {cell(task)} - {None}
    for (kind, number), rows in sorted(found.items()):
        steps, share = np.array(rows).T
        mixed = (share > 0) & (share < 1)
        said = (
            f"{name} {100 * own.mean():3.0f} ± {_error(100 * own):.0f} %" for name, own in (("solved", share), ("mixed", mixed))
        )
        ends = f"{number * window:3d} to {(number + 1) * window - 1:3d}"
        counts = f"tasks {len(rows)}  cells {len(cells[kind, number])}"
        yield f"{kind}  {ends}  steps {steps.mean():.1f} ± {_error(steps):.1f}  {'  '.join(said)}  {counts}"


def _tasks(folder: Path) -> Iterator[tuple[dict[str, Any], int, float]]:
    """Yield each new task that was attempted, with its steps and the share of correct attempts."""
    programs = {row["task_id"]: row for row in pq.read_table(folder / "tasks.parquet", columns=COLUMNS).to_pylist()}
    correct = defaultdict[str, list[bool]](list)
    for row in pq.read_table(folder / "grades.parquet", columns=["task_id", "correct"]).to_pylist():
        correct[row["task_id"]].append(row["correct"])
    for task_id, row in programs.items():
        if task_id in correct and row["kind"] in KINDS:
            steps = sum(
                "=" in line.partition("#")[0] and not line.strip().startswith("return") for line in row["program"].splitlines()
            )
            yield row, steps, float(np.mean(correct[task_id]))


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def main(store: str, run: str, window: str = "40") -> None:
    """Print the lines of one run."""
    for line in lines(Path(store) / run, int(window)):
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
