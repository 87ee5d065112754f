"""Steps, solve rates and mixed results of a run's new tasks, from tables of known content."""

import importlib.util
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flows.config import PROJECT


def test_new_tasks_are_counted_by_kind_and_window(tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("task_depths", PROJECT / "infra/experiments/task_depths.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    for generation, steps in enumerate((1, 3, 5)):
        folder = tmp_path / f"generation={generation:04d}"
        folder.mkdir()
        program = "def f(x):\n" + "".join(f"    v{number} = x + 1\n" for number in range(steps)) + "    return v0 == x"
        names = ("a", "b", "invalid")
        shape = {"syntax": f"{steps}", "value_types": "int", "executed_lines": 5}
        tasks = [{"task_id": name, "kind": "deduction", "program": program} | shape for name in names]
        pq.write_table(pa.Table.from_pylist(tasks), folder / "tasks.parquet")
        grades = [("a", True), ("a", False), ("b", True), ("b", True), ("of an earlier generation", False)]
        rows = [{"task_id": task_id, "correct": correct} for task_id, correct in grades]
        pq.write_table(pa.Table.from_pylist(rows), folder / "grades.parquet")
    assert list(script.lines(tmp_path, 2)) == [
        "deduction    0 to   1  steps 2.0 ± 0.6  solved  75 ± 14 %  mixed  50 ± 29 %  tasks 4  cells 2",
        "deduction    2 to   3  steps 5.0 ± 0.0  solved  75 ± 25 %  mixed  50 ± 50 %  tasks 2  cells 1",
    ]
