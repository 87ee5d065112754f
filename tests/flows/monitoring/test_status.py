"""The text of `populora status`."""

from pathlib import Path
from typing import Any, cast

from flows.monitoring.run_tables import SMALL, RunTables
from flows.monitoring.status import status
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support.counted import CountingStore
from tests.support.report_run import made


def test_alarms_of_earlier_generations_are_counted_by_kind_and_the_newest_are_shown(tmp_path: Path) -> None:
    with made(tmp_path, "one", 9) as run:
        found = status(run).splitlines()
    assert found[-1] == "alarms     1 in earlier generations (slow 1): the report and the run's page list them"
    with made(tmp_path, "two", 8) as run:
        found = status(run).splitlines()
    assert found[-1].startswith("alarm      g0007 slow: ") and not any(line.startswith("alarms ") for line in found)


def test_the_small_tables_of_a_run_are_read_once(tmp_path: Path) -> None:
    with made(tmp_path, "run", 9):
        pass
    tables = RunTables(Run(FileStore(tmp_path), "run")).look()
    counting = CountingStore(FileStore(tmp_path))
    status(Run(cast(Any, counting), "run"))
    manifests = sum(len(tables.steps(generation)) for generation in tables.generations)
    others = 10  # run.json, the start, and the newest generation's own numbers
    assert counting.requests["read"] <= manifests + len(SMALL) * len(tables.generations) + others
