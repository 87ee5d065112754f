"""The suites that belong to a recipe: made once from a fixed seed, and kept out of the training."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stages.core.judging.judge import TaskItem, judge_tasks
from stages.core.prompts.styles import Kind
from stages.core.sandbox.protocol import Sandbox
from stages.core.seed_model import probe
from stages.core.seed_model.seed_scores import SolvedTask

SUITE_SEED = 0


def make_suite(folder: Path, name: str, tables: Callable[[int], dict[str, pa.Table]], sandbox: Sandbox) -> None:
    """Write a suite's halves if they are missing. The sandbox runs every problem again and provides the program keys.

    Raises ValueError for a problem on which sandbox and generator disagree.
    """
    paths = {half: folder / f"{name}-{half}.parquet" for half in probe.HALVES}
    if all(path.exists() for path in paths.values()):
        return
    for half, table in tables(SUITE_SEED).items():
        problems = table.to_pylist()
        tasks = [TaskItem(row["program"], tuple(row["inputs"])) for row in problems]
        verdicts = list(judge_tasks(sandbox, tasks))
        for row, verdict in zip(problems, verdicts, strict=True):
            if verdict.outputs != tuple(row["outputs"]):
                raise ValueError(f"{row['problem_id']}: the sandbox returned {verdict}, not {row['outputs']}")
        keys = [verdict.program_key for verdict in verdicts]
        pq.write_table(probe.with_program_keys(table, keys), paths[half], compression="zstd")


def halves(folder: Path, name: str) -> dict[str, pa.Table]:
    """Return both halves of a suite as stored."""
    return {half: pq.read_table(folder / f"{name}-{half}.parquet") for half in probe.HALVES}


def stored_problems(table: pa.Table) -> list[SolvedTask]:
    """Return the problems of a suite's half."""
    return [
        SolvedTask(Kind(row["kind"]), row["band"], row["program"], tuple(row["inputs"]), tuple(row["outputs"]))
        for row in table.to_pylist()
    ]
