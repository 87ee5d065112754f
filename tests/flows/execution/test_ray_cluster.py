"""A Ray cluster of two nodes: update, rollouts and benchmark of 8 adapters are spread over both; the bytes are one machine's."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT
from flows.run.run import Run
from flows.storage import open_store
from tests.support.stack import NO_GIT, tree

SETTINGS = ["generations=1", "population.teachers=4", "population.students=4", "learning.adapters_per_group=1"]
SETTINGS += ["engine.shards=4", "benchmark.members=all", "solve.attempts=2"]
# What `ray start` puts on the nodes is this process's environment; each node says its name in what it runs.
TRAIN = """
import sys
from flows.config import load
from flows.execution.pools import Placement
from flows.train import train
store, address, *settings = sys.argv[1:]
print(train("r", store, load("chaos", settings), Placement(ray=address)))
"""


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of two nodes on this machine, with one CPU each."""
    pytest.importorskip("prefect_ray", reason="the extra ray is not installed: pip install -c constraints.txt -e '.[ray]'")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100_000_000})
    made.add_node(num_cpus=1, object_store_memory=100_000_000)
    try:
        yield str(made.address)
    finally:
        made.shutdown()


def train(store: Path, address: str) -> None:
    environment = os.environ | NO_GIT | {"PYTHONPATH": str(PROJECT), "PREFECT_LOGGING_LEVEL": "CRITICAL"}
    command = [sys.executable, "-c", TRAIN, str(store), address, *SETTINGS]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_eight_adapters_over_two_nodes(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        from prefect.settings import PREFECT_API_URL

        monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value() or "")
        train(tmp_path / "ray", cluster)
        train(tmp_path / "here", "")
    spread, here = open_store(str(tmp_path / "ray")), open_store(str(tmp_path / "here"))
    assert tree(spread) == tree(here)
    assert fsck(Run(spread, "r")) == []
    parts = [uri for uri in spread.list("r/generation=0000/") if ".parts/" in uri and uri.endswith(".json")]
    stages = Counter(uri.split("/")[2].removesuffix(".parts") for uri in parts)
    assert stages["update"] == 8 and set(stages) == {"propose", "solve", "update", "benchmark"}
    nodes = Counter(json.loads(spread.read(uri))["clock"]["host"] for uri in parts)
    print(f"parts a node: {dict(nodes)}; parts a stage: {dict(stages)}")
    assert len(nodes) == 2
