"""`populora bench storage` measures what it says, on a run small enough for every day."""

from pathlib import Path

import pytest

from flows.bench import storage as storage_bench
from flows.config import ConfigError
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run
from tests.support.servers import s3_servers


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


def test_an_adapter_set_is_sent_and_fetched_beside_boto3_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_servers.moto() as endpoint:
        for name, value in s3_servers.environment(endpoint).items():
            monkeypatch.setenv(name, value)
        s3_servers.make_bucket("bench")
        lines = list(storage_bench.transfers("s3://bench/under/it", 3 << 20, 1))
        assert open_store("s3://bench/under/it").list("") == []
    assert [(line["name"], line["against"], line["bytes"]) for line in lines] == [
        ("upload", "boto3-transfer", 3 << 20),
        ("download", "boto3-transfer", 3 << 20),
        ("download", "one-connection", 3 << 20),
    ]
    assert all(line["value"] > 0 and line["rival"] > 0 for line in lines)
