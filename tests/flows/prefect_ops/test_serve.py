"""`populora serve` with runs that are cancelled, retried, suspended and killed, and its own end and second start."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT
from flows.prefect_ops import ui_server
from flows.run.run import Run
from flows.storage import open_store
from tests.support.service import CANCEL, PAUSE, RETRY, Service, alive, command, containers, family, kill, of_runs, until
from tests.support.stack import NO_GIT, tree

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(5400)]
ONE = ("--set", "generations=1")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("serve"))
    made.start()
    try:
        yield made
    finally:
        made.kill()


def at_work(service: Service, run: str, manifest: str) -> list[int]:
    """The run's processes, once this manifest is there and a stage worker is busy with the next stage."""
    store = open_store(str(service.store))
    assert service.process is not None
    until(lambda: store.exists(manifest), 1500, lambda: service.words("worker"))
    assert service.state(run) == "RUNNING"
    found = of_runs(service.process.pid)
    assert any(b"flows.worker" in command(pid) for pid in found)
    return found


def test_it_says_where_it_is_and_its_page_asks_no_other_host(service: Service) -> None:
    printed = service.output.read_text()
    assert service.url in printed and f"http://127.0.0.1:{service.browser_port}" in printed
    assert f"serve --link --home {service.home}" in printed and f"PREFECT_API_URL={service.url}/api PREFECT_API_AUTH_" in printed
    asked = urllib.request.Request(f"{service.url}/v2/dashboard", headers={"Accept": "text/html"})  # as a browser asks for a page
    with urllib.request.urlopen(asked) as page:
        assert page.headers["content-security-policy"] == ui_server.POLICY
    with urllib.request.urlopen(f"{service.url}/ui-settings") as settings:
        assert b'"api_url":"/api"' in settings.read()


def test_the_nightly_benchmark_is_scheduled(service: Service) -> None:
    wanted = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}, "deployments": {"name": {"any_": ["benchmark"]}}}
    seconds = until(lambda: bool(service.ask("flow_runs/filter", wanted)), 180, lambda: service.words("server"))
    print(f"scheduled runs after {seconds:.0f} s: {len(service.ask('flow_runs/filter', wanted))}")


def test_a_wrong_value_makes_no_run(service: Service) -> None:
    train = service.ask("deployments/name/train/train")
    before = service.ask("flow_runs/count", {})
    values = train["parameters"] | {"run_id": "Über Run"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        service.ask(f"deployments/{train['id']}/create_flow_run", {"parameters": values})
    with refused.value:
        assert refused.value.code in (409, 422) and b"run_id" in refused.value.read()
    assert service.ask("flow_runs/count", {}) == before


def test_cancel_ends_everything_and_retry_resumes_to_the_same_bytes(service: Service) -> None:
    run = service.submit("r", *ONE)
    processes = at_work(service, run, "r/generation=0000/verify.json")
    sandboxes = containers(processes)
    assert sandboxes
    service.set(run, CANCEL)
    seconds = until(lambda: not alive(processes) and not containers(processes), 120, lambda: str(alive(processes)))
    assert service.wait(run) == "CANCELLED"
    until(lambda: set(service.of_parent(run)) == {"CANCELLED"}, 60, lambda: str(service.of_parent(run)))
    found = Run(open_store(str(service.store)), "r")
    assert fsck(found) == [] and not found.store.exists("r/.lease")
    kept = tree(found.store)
    print(f"{len(processes)} processes and {len(sandboxes)} sandboxes were gone {seconds:.1f} s after the cancel")

    service.set(run, RETRY)
    assert service.wait(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
    whole = service.store.parent / "whole"
    words = ["run", "-c", "chaos", "--run-id", "r", "--store", str(whole), *ONE]
    words = [sys.executable, "-m", "flows.cli", *words]
    assert subprocess.run(words, cwd=PROJECT, env=os.environ | NO_GIT, capture_output=True).returncode == 0
    assert tree(found.store) == tree(open_store(str(whole)))
    assert {uri: data for uri, data in tree(found.store).items() if uri in kept} == kept  # nothing was written twice


def test_a_killed_run_is_crashed_with_its_generation_and_can_be_retried(service: Service) -> None:
    run = service.submit("killed", *ONE)
    processes = at_work(service, run, "killed/generation=0000/propose.json")
    engine = next(pid for pid in processes if b"prefect.engine" in command(pid))
    kill(engine)
    until(lambda: not alive(processes) and not containers(processes), 120, lambda: str(alive(processes)))
    assert service.wait(run) == "CRASHED"
    until(lambda: set(service.of_parent(run)) == {"CRASHED"}, 180, lambda: str(service.of_parent(run)))
    service.set(run, RETRY)
    assert service.wait(run, "COMPLETED", "FAILED") == "COMPLETED"
    assert fsck(Run(open_store(str(service.store)), "killed")) == []


def test_a_suspended_run_frees_the_machine_and_continues_when_resumed(service: Service) -> None:
    run = service.submit("paused", *ONE)
    processes = at_work(service, run, "paused/generation=0000/match.json")
    service.set(run, PAUSE)
    until(lambda: not alive(processes), 600, lambda: str(alive(processes)))
    assert service.state(run) == "PAUSED" and "RUNNING" not in service.of_parent(run)
    assert service.ask(f"flow_runs/{run}/resume", {})["status"] == "ACCEPT"
    assert service.wait(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"


def test_a_lost_worker_is_replaced_and_its_run_ends(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    run = service.submit("orphan", *ONE)
    processes = at_work(service, run, "orphan/generation=0000/match.json")
    assert service.process is not None
    workers = [pid for pid in family(service.process.pid) if b"prefect\0worker\0start" in command(pid)]
    kill(workers[0])
    until(lambda: not alive(processes), 120, lambda: str(alive(processes)))
    assert service.wait(run, "CRASHED", "FAILED", seconds=400) in ("CRASHED", "FAILED")
    service.set(run, RETRY)
    assert service.wait(run, "COMPLETED", seconds=900) == "COMPLETED"


def test_it_ends_cleanly_and_starts_again_on_what_it_knew(service: Service) -> None:
    assert service.process is not None
    run, everybody = service.submit("last", *ONE), family(service.process.pid)
    at_work(service, run, "last/generation=0000/match.json")
    everybody = family(service.process.pid)
    began = time.monotonic()
    assert service.stop() == 0
    print(f"ended {len(everybody)} processes in {time.monotonic() - began:.1f} s")
    until(lambda: not alive(everybody), 30, lambda: str([command(pid) for pid in alive(everybody)]))
    assert not Path(service.home / "serving.json").exists()
    service.start()
    assert service.wait(run) in ("CANCELLED", "CRASHED", "FAILED")
    service.set(run, RETRY)
    assert service.wait(run, "COMPLETED", seconds=900) == "COMPLETED"
