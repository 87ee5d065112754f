"""A run whose GPU stages go to the pool `gpu`: its worker keeps one process a card between stages, and ends them with itself."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT
from flows.run.run import Run
from flows.stages import stage_of
from flows.storage import open_store
from tests.integration.test_run_on_cards import clocks
from tests.support.cards import Machine
from tests.support.service import Service, alive, until
from tests.support.stack import NO_GIT

SETTINGS = ["generations=3", "model.device=auto", "engine.shards=2", "learning.adapters_per_group=2", "benchmark.every=0"]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_over_three_generations_in_a_pool_a_process_starts_once_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cards").mkdir()
    machine = Machine(tmp_path / "cards", 2)
    here = Path(sys.executable).parent  # a pool's runs find their interpreter on PATH
    monkeypatch.setenv("PATH", os.pathsep.join([str(machine.folder), str(here), os.environ["PATH"]]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    service = Service(tmp_path)
    service.start()
    server = {"PREFECT_API_URL": f"{service.url}/api", "PREFECT_API_AUTH_STRING": service.password}
    with (tmp_path / "gpu.log").open("wb") as log:
        command = [sys.executable, "-m", "flows.cli", "worker", "gpu"]
        environment = os.environ | NO_GIT | server
        worker = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: online(service), 120, lambda: (tmp_path / "gpu.log").read_text())
        run = service.submit("r", "--place", "gpu=gpu", *(word for one in SETTINGS for word in ("--set", one)))
        assert service.wait(run) == "COMPLETED", (tmp_path / "gpu.log").read_text()[-3000:]
        store = open_store(str(service.store))
        of_card = defaultdict[object, set[int]](set)
        for uri, clock in clocks(store).items():
            _, folder, name = uri.split("/", 2)
            stage, dot, part = name.removesuffix(".json").partition(".parts/")
            if folder == "start" or stage_of(stage).uses_gpu(part if dot else None):
                of_card[clock["cuda_visible_devices"]].add(int(str(clock["pid"])))
            else:
                assert "cuda_visible_devices" not in clock, uri
        assert {card: len(pids) for card, pids in of_card.items()} == {"0": 1, "1": 1}
        assert fsck(Run(store, "r")) == []
        kept = [pid for pids in of_card.values() for pid in pids]
        assert sorted(alive(kept)) == sorted(kept)
        worker.terminate()
        assert worker.wait(60) == 0
        assert alive(kept) == []
    finally:
        if worker.poll() is None:
            worker.kill()
        service.kill()


def online(service: Service) -> bool:
    """Whether a worker takes work from the pool."""
    return any(worker["status"] == "ONLINE" for worker in service.ask("work_pools/gpu/workers/filter", {}))
