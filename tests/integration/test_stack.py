"""The compose stack from nothing to a finished run on PostgreSQL and a real S3 server, and away again without a trace."""

import json
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.audit.fsck import fsck
from flows.config import PROJECT
from flows.run.run import Run
from flows.storage import Store
from tests.support.stack import Stack, tree

COMPOSE = yaml.safe_load((PROJECT / "infra" / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_nothing_is_published_beyond_this_machine_by_default() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith(("127.0.0.1:", "${PUBLISH_ON:-127.0.0.1}:")) for port in ports)


def test_no_password_has_a_default() -> None:
    text = (PROJECT / "infra" / "compose.yaml").read_text()
    for name in ("POSTGRES_PASSWORD", "PREFECT_AUTH", "S3_ACCESS_KEY", "S3_SECRET_KEY"):
        assert f"${{{name}:?" in text and f"${{{name}:-" not in text
    assert SERVICES["prefect"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == "${PREFECT_AUTH}"


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"setup"}))
def test_every_service_comes_back_has_a_health_check_and_no_privileges(name: str) -> None:
    service = SERVICES[name]
    image = (service["image"].partition("populora-")[2]).partition(":")[0]
    dockerfile = PROJECT / "containers" / image / "Dockerfile"
    assert service["restart"] == "unless-stopped"
    assert "healthcheck" in service or "HEALTHCHECK" in dockerfile.read_text()
    assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    assert "\nUSER " in dockerfile.read_text()


def test_the_gpu_worker_is_a_profile_with_every_gpu() -> None:
    assert SERVICES["gpu-worker"]["profiles"] == ["gpu"]
    assert SERVICES["gpu-worker"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("stack"), "populora-test")
    made.make("down", "--volumes")
    try:
        yield made
    finally:
        made.make("down", "--volumes")


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_from_nothing_to_a_finished_run_and_away_again(stack: Stack) -> None:
    assert stack.left() == []
    printed = stack.make("up").stdout
    assert f"http://127.0.0.1:{stack.port}" in printed and stack.secrets["PREFECT_AUTH"] not in printed
    assert stack.settings.stat().st_mode & 0o077 == 0

    assert stack.ask("deployments/filter", {}, secret=False) == 401
    assert {"train", "benchmark", "report", "fork"} <= {one["name"] for one in stack.ask("deployments/filter", {})}
    run = stack.submit("first", "--set", "generations=1")
    assert stack.wait(run, 1800) == "Completed"
    assert fsck(Run(stack.store("first"), "r")) == []
    assert rows(stack, "select count(*) from flow_run where state_type = 'COMPLETED'") >= 2
    for port in (stack.port, stack.browser_port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
            assert page.status == 200 and "html" in page.headers["content-type"]

    stack.make("down")
    assert stack.containers(everything=True) == [] and stack.left() != []  # the data stay
    stack.make("up")
    assert stack.state(run) == "Completed"
    assert len(list(stack.store("first").list("r/"))) > 20
    stack.make("down", "--volumes")
    assert stack.left() == [] and not stack.settings.exists()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_two_machines_share_a_generation_and_one_of_them_dies(stack: Stack) -> None:
    """Two workers in containers of their own, one store: the run ends on the machine that is left, with the same bytes."""
    stack.make("up", "--scale worker=2")
    settings = ("--set", "generations=1", "--set", "learning.adapters_per_group=1", "--set", "engine.shards=2")
    run = stack.submit("two", *settings, "--place", "sandbox=cpu", "--place", "gpu=cpu")
    two = stack.store("two")
    victim = lost_while_busy(stack, run, two)
    space = subprocess.run(
        ["docker", "exec", victim, "readlink", "/proc/self/ns/pid"], capture_output=True, text=True
    ).stdout.strip()
    began = time.monotonic()
    subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
    assert stack.wait(run, 3000) == "Completed"
    print(f"the run ended {time.monotonic() - began:.0f} s after the loss of a machine")

    assert stack.wait(stack.submit("one", *settings), 3000) == "Completed"
    assert tree(two) == tree(stack.store("one"))
    assert fsck(Run(two, "r")) == []
    ends = Counter(one["state"]["name"] for one in stack.stage_runs("run:r"))
    hosts = Counter(json.loads(two.read(uri))["clock"]["host"] for uri in manifests(two))
    print(f"stage runs: {dict(ends)}; manifests a machine: {dict(hosts)}")
    assert ends["Crashed"] >= 1 and len(hosts) == 2
    assert [line for line in sandboxes() if space in line] == []


def lost_while_busy(stack: Stack, run: str, store: Store) -> str:
    """The container that does not hold the run, once it has committed something and is at work on more."""
    while True:
        assert stack.state(run) not in ("Completed", "Failed", "Crashed", "Cancelled")
        time.sleep(0.5)
        if not store.exists("r/.lease"):
            continue
        holder = json.loads(store.read("r/.lease"))["host"]
        for container in stack.containers("worker"):
            done = [uri for uri in manifests(store) if json.loads(store.read(uri))["clock"]["host"] == container[:12]]
            if not container.startswith(holder) and done and "flows.worker" in top(container):
                return container


def manifests(store: Store) -> list[str]:
    """Of stages and their parts."""
    return [uri for uri in store.list("r/generation=0000/") if uri.endswith(".json")]


def top(container: str) -> str:
    """Command lines of a container's processes."""
    return subprocess.run(["docker", "top", container], capture_output=True, text=True, check=True).stdout


def sandboxes() -> list[str]:
    """Running sandboxes with the labels that say whose they are."""
    listed = ["docker", "ps", "--filter", "label=populora.sandbox", "--format", "{{.ID}} {{.Labels}}"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()


def rows(stack: Stack, question: str) -> int:
    """The database's answer: it is PostgreSQL that Prefect has written to."""
    psql = ["docker", "exec", stack.containers("postgres")[0], "psql", "-U", "prefect", "-tAc", question]
    return int(subprocess.run(psql, capture_output=True, text=True, check=True).stdout)


def test_the_settings_are_private(tmp_path: Path) -> None:
    script = (PROJECT / "infra" / "setup" / "compose.sh").read_text()
    assert "umask 077" in script
    assert subprocess.run(["bash", "-n", str(PROJECT / "infra" / "setup" / "compose.sh")]).returncode == 0
