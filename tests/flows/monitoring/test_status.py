"""The text of `populora status`."""

from pathlib import Path
from typing import Any, cast

from flows.config import dump
from flows.monitoring.run_tables import SMALL, RunTables
from flows.monitoring.status import status
from flows.pages.library import Library
from flows.pages.run_pages import generation_page, run_page
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from stages.core.tables import GENERATION_TABLES
from tests.support import example_run
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


def test_a_generation_takes_no_longer_than_from_its_begin_to_its_end(tmp_path: Path) -> None:
    """An update beside the rollouts shares its time with other stages: its seconds are its own, the total counts them once."""
    store = FileStore(tmp_path)
    with hold(store, "beside") as epoch:
        run = Run(store, "beside", epoch)
        run.describe(dump(example_run.CONFIG), {}, {})
        run.commit("start", None, [], [])
        run.commit("propose", 0, [], [], clock={"started": 100.0, "seconds": 50.0})
        run.commit("reward", 0, [], [], clock={"started": 150.0, "seconds": 5.0})
        for stage, name, started, seconds in (("update", "metrics", 100.0, 60.0), ("rate", "ratings", 160.0, 10.0)):
            ref = run.write_table(0, name, GENERATION_TABLES[name].empty_table())
            run.commit(stage, 0, [], [ref], clock={"started": started, "seconds": seconds})
        (line,) = [line for line in status(run).splitlines() if line.startswith("numbers ")]
        assert line.endswith("propose 50 s update 60 s rate 10 s  total 70 s"), line
        library = Library(store)
        (row,) = run_page(library, "beside")["generations"]
        assert row["seconds"] == generation_page(library, "beside", 0)["seconds"] == 70.0
