"""A Ray cluster of two nodes: update, rollouts and benchmark of 8 adapters are spread over both; the bytes are one machine's.

With GPUs, a part has one of them, and its node keeps the processes of each card.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT, ConfigError
from flows.execution import cards
from flows.execution.ray_cluster import NodeCards, gpu_nodes
from flows.run.run import Run
from flows.storage import open_store
from tests.support.cards import machine, step
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


def node(number: int, alive: bool = True, **resources: float) -> dict[str, Any]:
    """What Ray says of a node."""
    return {"NodeID": f"n{number}", "Alive": alive, "Resources": {"CPU": 4.0, **resources}}


def test_nodes_with_gpus_keep_processes_unless_the_run_uses_none_of_ray_s() -> None:
    nodes = [node(0), node(1, GPU=8.0), node(2, GPU=4.0), node(3, alive=False, GPU=8.0)]
    assert gpu_nodes(nodes, "auto") == gpu_nodes(nodes, "cuda") == {"n1": 8, "n2": 4}
    assert gpu_nodes(nodes, "cpu") == gpu_nodes(nodes, "cuda:1") == gpu_nodes([node(0)], "auto") == {}


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_cluster_without_gpus_says_so_when_a_run_asks_for_them(device: str) -> None:
    line = rf"^model\.device: {device} was requested, but no node of the Ray cluster has a GPU .*; choose auto or cpu, or another"
    with pytest.raises(ConfigError, match=line):
        gpu_nodes([node(0), node(1, alive=False, GPU=8.0)], device)


def test_on_a_node_an_engine_starts_once_a_card_over_three_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the actor of a node does: Ray names the card, in another order each time."""
    kept = NodeCards()
    four = machine(tmp_path, monkeypatch, 4)
    monkeypatch.setenv("POPULORA_NODE", "")

    def part(generation: int, number: int, card: int, engine: str) -> str:
        stage = "propose" if engine else "update"
        spec = asdict(step(stage, generation, f"{number:02d}"))
        return str(kept.run(str(card), spec, engine, 1, "host/n1")["stage"])

    try:
        with ThreadPoolExecutor(4) as threads:
            for generation in range(3):
                for engine in (four.engine, ""):
                    parts = [(generation, number, (number + generation) % 4, engine) for number in range(4)]
                    assert list(threads.map(lambda values: part(*values), parts)) == ["noted"] * 4
        assert os.environ["POPULORA_NODE"] == "host/n1"
        assert sorted(one.card for one in four.noted("start", "engine")) == ["0", "1", "2", "3"]
        assert sorted(one.card for one in four.noted("start", "trainer")) == ["0", "1", "2", "3"]
        four.keep(1, 2, 3)
        with pytest.raises(cards.CardUnavailable, match=r"^card 0 .* is gone: the worker of stage update exited with code 7$"):
            kept.run("0", asdict(step("update", 0, "00")), four.interpreter("other", "exit 7"), 1, "host/n1")
    finally:
        kept.end()


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of two nodes on this machine, with one CPU each."""
    pytest.importorskip("prefect_ray", reason="the extra ray is not installed: pip install -c constraints.txt -e '.[ray]'")
    with cluster_of(0) as address:
        yield address


@contextmanager
def cluster_of(gpus: int) -> Iterator[str]:
    """Two nodes with so many GPUs each, of which Ray believes that they are there."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": gpus, "object_store_memory": 100_000_000})
    made.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=100_000_000)
    try:
        yield str(made.address)
    finally:
        made.shutdown()


def train(store: Path, address: str, *more: str) -> None:
    environment = os.environ | NO_GIT | {"PYTHONPATH": str(PROJECT), "PREFECT_LOGGING_LEVEL": "CRITICAL"}
    command = [sys.executable, "-c", TRAIN, str(store), address, *SETTINGS, *more]
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


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_on_gpus_of_a_cluster_a_process_starts_once_a_card_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect_ray", reason="the extra ray is not installed: pip install -c constraints.txt -e '.[ray]'")
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180), cluster_of(1) as address:
        from prefect.settings import PREFECT_API_URL

        monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value() or "")
        train(tmp_path / "ray", address, "generations=3", "model.device=auto")
    spread = open_store(str(tmp_path / "ray"))
    parts = [json.loads(spread.read(uri))["clock"] for uri in spread.list("r/") if ".parts/" in uri and uri.endswith(".json")]
    started = {(clock["host"], clock["cuda_visible_devices"], clock["pid"]) for clock in parts}
    assert len(parts) > 40 and len(started) == 2 and fsck(Run(spread, "r")) == []
