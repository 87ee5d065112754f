"""A site reads decoded tables: the same pages as the browser's, whatever is kept in memory."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.export import site_library
from flows.export.site_library import SiteLibrary
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import example_run

PAGES = (
    "/runs/whole/tables/generation=0001/rollouts.parquet",
    "/runs/whole/tables/generation=0001/samples.parquet?sort=reward&descending=true",
    "/runs/whole/tables/generation=0001/tasks.parquet?column=kind&value=deduction",
    "/runs/whole/complete/generation=0001/proposals.parquet",
    "/runs/whole/rows/3/generation=0000/rollouts.parquet",
    "/runs/whole/tasks/{task}",
    "/runs/whole/adapters/t0-g0001",
)


@pytest.mark.parametrize(("largest", "kept"), [(1 << 20, 1 << 30), (1 << 20, 1), (0, 1)])
def test_pages_are_those_of_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, kept: int) -> None:
    monkeypatch.setattr(site_library, "LARGEST", largest)
    monkeypatch.setattr(site_library, "KEPT", kept)
    store = FileStore(tmp_path)
    with hold(store, "whole") as epoch:
        run = example_run.build(Run(store, "whole", epoch))
    task = run.read_table(1, "tasks").to_pylist()[0]["task_id"]
    with (
        TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as plain,
        TestClient(make_app(SiteLibrary(store)), base_url="http://127.0.0.1") as decoded,
    ):
        for _ in range(2):
            for page in PAGES:
                address = page.format(task=task)
                wanted, found = plain.get(address), decoded.get(address)
                assert (found.status_code, found.text) == (200, wanted.text), address
