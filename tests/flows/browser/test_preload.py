"""What a new browser reads before it is asked."""

import json
from pathlib import Path
from typing import cast

import pytest

from flows.browser import preload as preloading
from flows.browser.library import Library
from flows.browser.preload import preload
from flows.browser.run_pages import run_page
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import Store, open_store
from tests.support import example_run
from tests.support.counted import CountingStore


def built(root: Path, name: str, started: float) -> None:
    """Make a run that began then."""
    store = open_store(str(root))
    with hold(store, name) as epoch:
        example_run.build(Run(store, name, epoch), 6)
    described = json.loads((root / name / "run.json").read_text())
    (root / name / "run.json").write_text(json.dumps(described | {"clock": {"started": started}}))


def test_the_newest_runs_are_read_before_their_pages_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, started in (("old", 1.0), ("newest", 3.0), ("newer", 2.0)):
        built(tmp_path, name, started)
    monkeypatch.setattr(preloading, "RUNS", 2)
    store = CountingStore(open_store(str(tmp_path)))
    library = Library(cast(Store, store))
    preload(library)
    asked = {}
    for name in ("newest", "newer", "old"):
        store.requests.clear()
        run_page(library, name)
        asked[name] = store.requests["read"]
    assert asked["newest"] == asked["newer"] < 10 < 6 * 10 < asked["old"], "six generations of ten manifests and three tables"


def test_what_cannot_be_read_stops_no_browser(tmp_path: Path) -> None:
    built(tmp_path, "whole", 1.0)
    built(tmp_path, "broken", 2.0)
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "whole" / "generation=0001" / "metrics.parquet").write_bytes(b"damaged")
    library = Library(str(tmp_path))
    preload(library)
    assert "generation=0001/metrics.parquet" in " ".join(run_page(library, "whole")["faults"])
    preload(Library(str(tmp_path / "nothing")))
