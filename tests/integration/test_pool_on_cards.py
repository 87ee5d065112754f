"""A run whose GPU stages go to the pool `gpu`: each worker keeps one process a card between stages, and ends them with itself."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT
from flows.run.run import Run
from flows.stages import stage_of
from flows.storage import Store, open_store
from tests.integration.test_run_on_cards import clocks
from tests.support import kill_hooks
from tests.support.cards import Machine
from tests.support.service import Service, alive, until
from tests.support.stack import NO_GIT, tree

SETTINGS = ["generations=3", "model.device=auto", "engine.shards=2", "learning.adapters_per_group=2", "benchmark.every=0"]
SETTINGS += ["learning.gradient_checkpointing=false"]  # `auto` means true where the cards are elsewhere, which run.json records
# Loaded by every process of the workers. In the second run, the worker that the process belongs to is killed in the first solve
# of generation 1, when its work is done and nothing is committed yet.
HOOK = """
def watch(module):
    step_of = module.step_of

    def watched(io, config):
        step = step_of(io, config)

        def then_killed(*arguments):
            step(*arguments)
            if io.part and (io.run.run_id, io.stage, io.generation) == ("killed", "solve", 1) and first("solve"):
                (MARKS / "solve").write_text(f"{os.getpid()} {os.getppid()}")
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(60)

        return then_killed

    module.step_of = watched
"""


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_over_three_generations_in_a_pool_a_process_starts_once_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = served(tmp_path, monkeypatch)
    try:
        with worker(service, Machine(folder(tmp_path, "cards"), 2)) as process:
            submitted(service, "r", 1)
            store = open_store(str(service.store))
            assert {card: len(pids) for card, pids in started(store, "r").items()} == {"0": 1, "1": 1}
            assert fsck(Run(store, "r")) == []
            kept = [pid for pids in started(store, "r").values() for pid in pids]
            assert sorted(alive(kept)) == sorted(kept)
            process.terminate()
            assert process.wait(60) == 0
            assert alive(kept) == []
    finally:
        service.kill()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_workers_share_a_run_and_the_loss_of_one_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, hooked = served(tmp_path, monkeypatch), tmp_path / "hook"
    kill_hooks.install(hooked, HOOK)
    machines = [Machine(folder(tmp_path, name), 2) for name in ("one", "two")]
    for number, machine in enumerate(machines):
        machine.keep(number)  # both stand on one host, where two runs cannot have the same card
    try:
        with worker(service, machines[0], hooked), worker(service, machines[1], hooked):
            for run_id in ("quiet", "killed"):
                submitted(service, run_id, 2)
    finally:
        service.kill()
    store = open_store(str(service.store))
    one_machine = alone(tmp_path)
    for run_id in ("quiet", "killed"):
        assert tree(store, run_id) == tree(one_machine, run_id), run_id
        assert fsck(Run(store, run_id)) == []
        assert {card: len(pids) for card, pids in started(store, run_id).items()} == {"0": 1, "1": 1}
    lost, of_worker = map(int, kill_hooks.marks(hooked)["solve"].split())
    pids = [pid for run_id in ("quiet", "killed") for found in started(store, run_id).values() for pid in found]
    assert lost in pids and alive([of_worker, *pids]) == []
    after = {clock["pid"] for uri, clock in gpu_clocks(store, "killed").items() if "generation=0002" in uri}
    assert len(after) == 1 and lost not in after


def folder(parent: Path, name: str) -> Path:
    """A new folder."""
    (parent / name).mkdir()
    return parent / name


def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A server whose runs find this interpreter on PATH, and no card."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    service = Service(tmp_path)
    service.start()
    return service


@contextmanager
def worker(service: Service, machine: Machine, hooked: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`populora worker gpu` on a machine; killed at the end if it still runs."""
    server = {"PREFECT_API_URL": f"{service.url}/api", "PREFECT_API_AUTH_STRING": service.password}
    paths = {"PATH": f"{machine.folder}{os.pathsep}{os.environ['PATH']}"}
    if hooked:
        paths["PYTHONPATH"] = f"{hooked}{os.pathsep}{PROJECT}"
    before, said = online(service), machine.folder / "worker.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "worker", "gpu"],
            cwd=PROJECT,
            env=os.environ | NO_GIT | server | paths,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: online(service) > before, 120, said.read_text)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def submitted(service: Service, run_id: str, workers: int) -> None:
    """A run whose GPU stages go to the pool, waited for."""
    assert online(service) == workers
    run = service.submit(run_id, "--place", "gpu=gpu", *(word for one in SETTINGS for word in ("--set", one)))
    assert service.wait(run) == "COMPLETED", service.words("worker")


def gpu_clocks(store: Store, run_id: str) -> dict[str, dict[str, object]]:
    """The clocks of the run's steps that use a GPU. No other step names a card."""
    found, made = {}, clocks(store, run_id)
    for uri, clock in made.items():
        _, place, name = uri.split("/", 2)
        stage, dot, part = name.removesuffix(".json").partition(".parts/")
        joins = not dot and any(other.startswith(f"{uri.removesuffix('.json')}.parts/") for other in made)
        if place == "start" or stage_of(stage).uses_gpu(part if dot else None, joins):
            found[uri] = clock
        else:
            assert "cuda_visible_devices" not in clock, uri
    return found


def started(store: Store, run_id: str) -> dict[object, set[int]]:
    """The processes of each card that made something of the run."""
    of_card = defaultdict[object, set[int]](set)
    for clock in gpu_clocks(store, run_id).values():
        of_card[clock["cuda_visible_devices"]].add(int(str(clock["pid"])))
    return of_card


def alone(tmp_path: Path) -> Store:
    """The same runs on this machine, without a server or cards."""
    store = tmp_path / "alone"
    own = {"PREFECT_HOME": str(tmp_path / "own")}
    chosen = [word for one in SETTINGS for word in ("--set", one)]
    for run_id in ("quiet", "killed"):
        command = [sys.executable, "-m", "flows.cli", "run", "-c", "chaos", "--run-id", run_id, "--store", str(store), *chosen]
        done = subprocess.run(command, cwd=PROJECT, env=os.environ | NO_GIT | own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    return open_store(str(store))


def online(service: Service) -> int:
    """How many workers take work from the pool."""
    return sum(worker["status"] == "ONLINE" for worker in service.ask("work_pools/gpu/workers/filter", {}))
