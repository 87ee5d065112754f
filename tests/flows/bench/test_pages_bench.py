"""`populora bench pages` measures first requests of pages that exist."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from flows.bench import pages as pages_bench
from flows.browser.app import make_app
from flows.config import ConfigError
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run


def test_every_measured_page_exists_and_one_is_measured(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        run = example_run.build(Run(store, "r", epoch), 2)
    found = pages_bench.pages_of(run, "r2")
    assert found.pop("compare") == "/compare?run=r&run=r2" and len(found) == 11
    with TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as pages:
        assert {name: pages.get(path).status_code for name, path in found.items()} == dict.fromkeys(found, 200)
    text_cpu, text_wall, cpu, wall, kilobytes = pages_bench.first_request(str(tmp_path), found["run"], loaded=False)
    assert 0 <= text_cpu <= cpu and 0 < text_wall <= wall and kilobytes > 10


def test_a_run_without_a_whole_generation_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch, pytest.raises(ConfigError, match="no complete generation"):
        pages_bench.pages_of(Run(store, "r", epoch), "")
