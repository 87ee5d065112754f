"""`populora bench storage` measures what it says, on a run small enough for every day."""

from pathlib import Path

import pytest

from flows.bench import storage as storage_bench
from flows.config import ConfigError
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run


def test_a_generation_is_read_and_written_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    with hold(store, "r") as epoch:
        example_run.build(Run(store, "r", epoch), 2)
    before = {uri: store.read(uri) for uri in store.list("r/")}
    (whole,) = storage_bench.generation(Run(store, "r"), 1)  # the example's stages took no time to compare with
    assert (whole["name"], whole["unit"]) == ("generation", "s") and whole["artifacts"] > 9
    assert {uri: store.read(uri) for uri in store.list("r/")} == before


def test_a_run_without_a_whole_generation_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch, pytest.raises(ConfigError, match="no complete generation"):
        list(storage_bench.generation(Run(store, "r", epoch), 1))
