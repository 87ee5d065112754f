"""Many generations are found by one listing of the run, in the order of the chain, and read once."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.monitoring.run_tables import FEW, SMALL, RunTables
from flows.report.figure_tables import Kept
from flows.report.report_data import gather
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import example_run
from tests.support.counted import CountingStore


def test_many_generations_take_one_listing_and_each_is_read_once(tmp_path: Path) -> None:
    generations = FEW + 2
    with hold(FileStore(tmp_path), "long") as epoch:
        example_run.build(Run(FileStore(tmp_path), "long", epoch), generations)
    counting = CountingStore(FileStore(tmp_path))
    watch = RunTables(Run(counting, "long")).look()
    plain = Run(FileStore(tmp_path), "long").history
    assert watch.generations == list(range(generations))
    for number in watch.generations:
        assert watch.steps(number) == plain.of_generation(number, parts=True)
        assert all(watch.read(number, name).num_columns for name in SMALL)
    assert counting.requests["list"] <= 2
    assert counting.requests["read"] == sum(len(watch.steps(number)) + len(SMALL) for number in watch.generations)
    counting.requests.clear()
    watch.look()
    assert counting.requests["read"] == 0


def test_a_page_drawn_while_tables_are_read_loses_nothing_for_later_pages(tmp_path: Path) -> None:
    with hold(FileStore(tmp_path), "r") as epoch:
        example_run.build(Run(FileStore(tmp_path), "r", epoch), 1)
    kept: Kept = {}

    class Watched(Run):
        """Draws a page just before each small table is read."""

        def read_table(self, *arguments: Any, **named: Any) -> pa.Table:
            assert gather(self, watch, kept).tables.faults() == []
            return super().read_table(*arguments, **named)

    run = Watched(FileStore(tmp_path), "r")
    watch = RunTables(run)
    watch.look()
    drawn, alone = gather(run, watch, kept).tables, gather(Run(FileStore(tmp_path), "r")).tables
    assert [name for name in SMALL if not drawn[name].equals(alone[name])] == []
    assert alone["ratings"].num_rows and watch.clock()[0]
