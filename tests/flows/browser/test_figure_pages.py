"""Which runs' figures a page draws: what counts is the tables that figures read."""

from pathlib import Path

import pytest

from flows.browser import figure_pages
from flows.browser.figure_pages import FigureCache
from flows.monitoring.run_tables import RunTables
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run


def test_an_index_of_many_tasks_hides_no_figure_but_a_large_table_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 4)
    rows = {ref.uri: ref.rows or 0 for number in range(4) for one in run.history.of_generation(number) for ref in one.outputs}
    drawn, index = (
        max(count for uri, count in rows.items() if uri.endswith(".parquet") and ("/earlier_" in uri) == earlier)
        for earlier in (False, True)
    )
    assert index > drawn, "the index holds the tasks of four generations"
    figures = FigureCache(lambda one: RunTables(one).look())
    monkeypatch.setattr(figure_pages, "LARGEST", drawn)
    assert figures.too_large(run) == ""
    monkeypatch.setattr(figure_pages, "LARGEST", drawn - 1)
    assert f"has {drawn} rows: figures of more than {drawn - 1} are drawn by populora report smoke only" in figures.too_large(run)
