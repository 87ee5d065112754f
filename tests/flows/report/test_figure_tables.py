"""Condensed tables are read when a figure needs them, only the columns that it needs, and complete generations once."""

from pathlib import Path

import pytest

from flows.monitoring.run_tables import RunTables
from flows.report.figure_tables import Kept
from flows.report.report_data import gather
from flows.run.run import Run
from flows.store.file_store import FileStore
from flows.store.table_bytes import decode_table
from stages.core import tables
from stages.core.statistics.condensed import MADE_FROM, condense, joined
from tests.support.counted import CountingStore
from tests.support.report_run import made

GENERATIONS = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    with made(root, "run", GENERATIONS):
        pass
    return root


def test_they_are_those_of_whole_tables(store: Path) -> None:
    run = Run(FileStore(store), "run")
    whole = [{name: run.read_table(number, name) for name in tables.GENERATION_TABLES} for number in range(GENERATIONS)]
    expected = joined([condense(number, found) for number, found in enumerate(whole)])
    found = gather(run).tables
    assert set(found) == {*MADE_FROM, "scores"} and len(found) == len(list(found))
    for name in MADE_FROM:
        assert found[name].equals(expected[name]), name


def test_nothing_is_read_that_no_figure_needs_and_no_table_is_made_twice(store: Path) -> None:
    counting = CountingStore(FileStore(store))
    run = Run(counting, "run")
    kept: Kept = {}
    watch = RunTables(run).look()
    found = gather(run, watch, kept).tables
    counting.requests.clear()

    def reads_of(*names: str) -> int:
        before = counting.requests["read"]
        assert all(found[name].num_rows for name in names)
        return counting.requests["read"] - before

    assert reads_of("ratings", "metrics", "offspring") == 0, "the small tables have been read"
    assert reads_of("grades") == 2 * GENERATIONS, "grades, and which tasks are the generation's own"
    assert reads_of("tasks") == 2 * GENERATIONS, "tasks, and the groups of proposals"
    assert reads_of("completions") == 2 * GENERATIONS
    assert reads_of("grades", "tasks", "completions") == 0
    found = gather(run, watch, kept).tables
    assert reads_of("grades", "tasks", "completions") == 0


def test_what_cannot_be_read_is_named_and_read_again_the_next_time(store: Path) -> None:
    place = store / "run" / "generation=0001" / "grades.parquet"
    whole = place.read_bytes()
    kept: Kept = {}
    place.write_bytes(b"damaged")
    data = gather(Run(FileStore(store), "run"), None, kept)
    assert [said.partition(" is left out")[0] for said in data.missing] == ["generation=0001/grades.parquet"]
    assert set(data.tables["grades"]["generation"].to_pylist()) == {0, 2}
    place.write_bytes(whole)
    data = gather(Run(FileStore(store), "run"), None, kept)
    assert data.missing == [] and set(data.tables["grades"]["generation"].to_pylist()) == {0, 1, 2}


def test_only_the_columns_that_are_asked_for_are_decoded(store: Path) -> None:
    data = (store / "run" / "generation=0000" / "proposals.parquet").read_bytes()
    schema = tables.GENERATION_TABLES["proposals"]
    some, every = decode_table(data, schema, "x", ["group_id", "proposal_id"]), decode_table(data, schema)
    assert some.schema.names == [name for name in schema.names if name in ("proposal_id", "group_id")]
    assert some.equals(every.select(some.schema.names))
