"""What a new browser reads before it is asked."""

import json
from pathlib import Path
from typing import cast

from flows.browser.preload import preload
from flows.pages.library import Library
from flows.pages.run_pages import run_page
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


def test_the_newest_runs_are_read_before_their_pages_are_asked_for(tmp_path: Path) -> None:
    for name, started in (("old", 1.0), ("newest", 3.0), ("newer", 2.0)):
        built(tmp_path, name, started)
    store = CountingStore(open_store(str(tmp_path)))
    library = Library(cast(Store, store))
    preload(library, runs=2)
    asked = {}
    for name in ("newest", "newer", "old"):
        store.requests.clear()
        run_page(library, name)
        asked[name] = store.requests["read"]
    assert asked["newest"] == asked["newer"] < 10 < 6 * 10 < asked["old"], "six generations of ten manifests and three tables"


def test_what_cannot_be_read_stops_no_browser(tmp_path: Path) -> None:
    built(tmp_path, "whole", 1.0)
    for name, started in (("garbled", 2.0), ("broken", 3.0)):
        built(tmp_path, name, started)
    (tmp_path / "garbled" / "run.json").write_text("{")
    (tmp_path / "broken" / "generation=0001" / "update.json").write_text("{")
    (tmp_path / "whole" / "generation=0001" / "metrics.parquet").write_bytes(b"damaged")
    store = CountingStore(open_store(str(tmp_path)))
    library = Library(cast(Store, store))
    preload(library)
    store.requests.clear()
    assert "generation=0001/metrics.parquet" in " ".join(run_page(library, "whole")["faults"])
    assert store.requests["read"] < 10, "read although a newer run cannot be"
    preload(Library(str(tmp_path / "nothing")))
