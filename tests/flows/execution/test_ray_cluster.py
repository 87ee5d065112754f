"""A Ray cluster of two nodes: parts of a run are spread over both, the bytes are one machine's.

With GPUs, a step has one of them, and its node keeps the processes of each card.
"""

import os
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flows import cards
from flows.audit.fsck import fsck
from flows.config import PROJECT, ConfigError, dump, load
from flows.execution.code_version import own_version
from flows.execution.ray_cluster import NodeCards, Unserved, gpu_nodes, run_here
from flows.execution.stage_process import WorkerLost
from flows.run.run import Run
from flows.stages import stage_of
from flows.storage import open_store
from stages.core.unavailable import Unsuited
from tests.integration.test_run_on_cards import clocks
from tests.support import kill_hooks
from tests.support.cards import Machine, machine, step
from tests.support.ray_nodes import ADDRESS, on_two_nodes
from tests.support.stack import NO_GIT, tree

GPUS = ["generations=3", "model.device=auto", "engine.shards=2", "learning.adapters_per_group=2"]
GPUS += ["learning.gradient_checkpointing=false"]  # `auto` means true where the cards are elsewhere, which run.json records
EIGHT = ["generations=1", "population.teachers=4", "population.students=4", "learning.adapters_per_group=1"]
EIGHT += ["engine.shards=4", "benchmark.members=all", "solve.attempts=2"]
# Loaded by every Python of the cluster. In a store whose name ends in `killed`, a stage's process kills itself in the first solve
# on card 1, and the actor that keeps it in the first update of generation 1 on card 0: after the work, before the manifest.
HOOK = """
def watch(module):
    step_of = module.step_of

    def watched(io, config):
        step, where = step_of(io, config), (io.stage, io.generation, os.environ.get("CUDA_VISIBLE_DEVICES"))

        def then_killed(*arguments):
            step(*arguments)
            if not io.run.store.url.endswith("killed") or io.part is None:
                return
            if where == ("solve", 0, "1") and first("solve"):
                die()
            if where == ("update", 1, "0") and first("update"):
                (MARKS / "update").write_bytes(Path(f"/proc/{os.getppid()}/cmdline").read_bytes())
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(60)

        return then_killed

    module.step_of = watched
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


def test_a_card_that_nvidia_smi_does_not_list_is_gone_whatever_ray_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, two = NodeCards(), machine(tmp_path, monkeypatch, 2)
    monkeypatch.setenv("POPULORA_NODE", "")
    spec = asdict(step("update", 0, "00"))
    two.keep(1)
    gone = r"^card 0 of node host/n1 is gone: nvidia-smi does not list it; start Ray there again without it$"
    with pytest.raises(cards.CardUnavailable, match=gone):
        kept.run("0", spec, "", 1, "host/n1")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    try:
        assert kept.run("0", spec, "", 1, "host/n1")["stage"] == "noted"  # without nvidia-smi, Ray's word counts
    finally:
        kept.end()


def test_a_card_of_a_node_that_is_smaller_than_the_plan_is_unsuited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path / "machine", monkeypatch, 1, memory_mb=8192)
    monkeypatch.setenv("POPULORA_NODE", "")
    store = str(tmp_path / "store")
    Run(open_store(store), "r", 1).describe(dump(load("paper-8gpu", [])), {}, {})
    kept = NodeCards()
    with pytest.raises(Unsuited, match=r"^card 0 of node host/n1 has 8\.0 GiB, but "):
        kept.run("0", asdict(step("update", 0, "00")) | {"store": store}, "", 1, "host/n1")
    kept.end()


def test_a_step_that_no_node_can_take_is_told_of_once_and_lost_after_ten_minutes() -> None:
    said, now = list[str](), [0.0]
    waiting = Unserved(1, said.append, lambda: now[0])
    alone, joined = [node(0), node(1, GPU=8.0, CPU=0.0), node(2, alive=False, GPU=8.0)], [node(0), node(3, GPU=1.0)]
    for nodes in (joined, alone, alone, joined, alone):
        waiting.look(nodes)
        now[0] += 599
    assert said == 2 * [
        "no node of the Ray cluster has one CPU and one GPU, which a step asks for; the run stops if none joins within 10 min"
    ]
    now[0] += 1
    with pytest.raises(WorkerLost, match=r"^no node of the Ray cluster has one CPU and one GPU, which a step asks for$"):
        waiting.look(alone)
    Unserved(0, said.append).look([node(0)])
    assert len(said) == 2


def test_the_card_is_the_one_that_ray_gives_also_where_it_sets_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray` stands for the package, which a machine without a cluster does not have."""
    asked: list[Any] = []
    run = SimpleNamespace(remote=lambda *order: asked.append(order) or {"stage": "update"})
    ray, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
    exceptions.__dict__.update(RayActorError=LookupError, RayTaskError=KeyError)
    context = SimpleNamespace(get_node_id=lambda: "n1", get_job_id=lambda: "j")
    ray.__dict__.update(get=lambda done: done, get_actor=lambda name: SimpleNamespace(run=run))
    ray.__dict__.update(get_gpu_ids=lambda: [3], get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert run_here({"stage": "update"}, "", 1) == {"stage": "update"}
    assert asked[0][0] == "3"


def command(store: Path, settings: list[str], *more: str) -> list[str]:
    """`populora run` to a store."""
    words = ["run", "-c", "chaos", "--run-id", "r", "--store", str(store)]
    chosen = [word for one in ["sandbox.kind=local", *settings] for word in ("--set", one)]
    return [sys.executable, "-m", "flows.cli", *words, *chosen, *more]


def here(store: Path, settings: list[str], folder: Path) -> None:
    """The same run on this machine alone."""
    own = {"PYTHONPATH": str(PROJECT), "PREFECT_HOME": str(folder / "own")}
    done = subprocess.run(command(store, settings), cwd=PROJECT, env=os.environ | NO_GIT | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def variables(folder: Path) -> dict[str, str]:
    """What the nodes and the command have in their environment; modules in `folder` come first."""
    folder.mkdir(exist_ok=True)
    paths = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": f"{folder}{os.pathsep}{PROJECT}"}
    return paths | {"PREFECT_HOME": str(folder / "prefect")}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_eight_adapters_over_two_nodes_without_gpus(tmp_path: Path) -> None:
    placed = command(tmp_path / "ray", EIGHT, "--place", f"ray={ADDRESS}")
    (done,) = on_two_nodes(0, [placed], variables(tmp_path / "shared"))
    assert done.returncode == 0, done.stderr[-3000:]
    here(tmp_path / "here", EIGHT, tmp_path)
    spread = open_store(str(tmp_path / "ray"))
    assert tree(spread) == tree(open_store(str(tmp_path / "here")))
    assert fsck(Run(spread, "r")) == []
    parts = {uri: clock for uri, clock in clocks(spread).items() if ".parts/" in uri}
    stages = Counter(uri.split("/")[2].removesuffix(".parts") for uri in parts)
    assert stages["update"] == 8 and set(stages) == {"propose", "solve", "update", "benchmark"}
    assert len({clock["host"] for clock in parts.values()}) == 2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_on_gpus_of_a_cluster_a_process_starts_once_a_card_and_run_and_a_killed_one_changes_no_byte(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    environment = variables(shared)
    Machine(shared, 2)
    kill_hooks.install(shared, HOOK)
    stores = [tmp_path / "quiet", tmp_path / "killed"]
    runs = [command(store, GPUS, "--place", f"ray={ADDRESS}") for store in stores]
    for done in on_two_nodes(1, runs, environment):
        assert done.returncode == 0, done.stderr[-3000:]
    here(tmp_path / "here", GPUS, tmp_path)
    one_machine = tree(open_store(str(tmp_path / "here")))
    quiet, killed = (open_store(str(store)) for store in stores)
    assert tree(quiet) == one_machine and fsck(Run(quiet, "r")) == []
    assert {card: len(pids) for card, pids in started(quiet).items()} == {"0": 1, "1": 1}
    died = kill_hooks.marks(shared)
    assert set(died) == {"solve", "update"} and b"NodeCards" in died["update"]
    assert tree(killed) == one_machine and fsck(Run(killed, "r")) == []
    assert {card: len(pids) for card, pids in started(killed).items()} == {"0": 2, "1": 2}


def started(store: Any) -> dict[object, set[object]]:
    """The processes on each card that made something of the run: every step that uses a GPU, and no other."""
    found: dict[object, set[object]] = {}
    made = clocks(store)
    for uri, clock in made.items():
        stage, dot, part = uri.split("/")[2].removesuffix(".json").partition(".parts")
        part = uri.rpartition("/")[2].removesuffix(".json") if dot else ""
        joins = not dot and any(other.startswith(f"{uri.removesuffix('.json')}.parts/") for other in made)
        if stage_of(stage).uses_gpu(part or None, joins):
            found.setdefault(clock["cuda_visible_devices"], set()).add((clock["host"], clock["pid"]))
        else:
            assert "cuda_visible_devices" not in clock, uri
    return found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_that_wants_a_gpu_on_a_cluster_without_is_refused_in_one_line(tmp_path: Path) -> None:
    store = tmp_path / "store"
    wanted = command(store, ["generations=1", "model.device=cuda"], "--place", f"ray={ADDRESS}")
    (refused,) = on_two_nodes(0, [wanted], variables(tmp_path / "shared"))
    (said,) = refused.stdout.splitlines()
    assert refused.returncode == 2 and said.startswith(f"run        r: 1 generations, to {store}/r;")
    assert [line for line in refused.stderr.splitlines() if line.startswith("populora")] == [  # Ray and the sandbox say more
        "populora: model.device: cuda was requested, but no node of the Ray cluster has a GPU (ray start --num-gpus); "
        "choose auto or cpu, or another cluster"
    ], refused.stderr
    assert not (store / "r").exists()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nodes_of_another_version_refuse_a_run_in_one_line(tmp_path: Path) -> None:
    """Each step is tried four times over 155 s: another node could have taken it."""
    environment, other = variables(tmp_path / "shared"), tmp_path / "other"
    told = other / "populora_pipeline-9.9.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: populora-pipeline\nVersion: 9.9\n")
    wanted = command(tmp_path / "store", ["generations=1", "model.device=auto"], "--place", f"ray={ADDRESS}")
    (refused,) = on_two_nodes(1, [wanted], environment, {"PYTHONPATH": f"{other}{os.pathsep}{PROJECT}"})
    assert refused.returncode == 3, refused.stderr
    said = [line for line in refused.stderr.splitlines() if line.startswith("populora")]  # Ray and Prefect say more
    own, worker = own_version(), f"the worker on {socket.gethostname()}"
    sources = own.partition("+")[2]
    assert said == [
        f"populora: {worker} has version 9.9+{sources}, the run {own}: install the same version there and start its worker again"
    ], refused.stderr
