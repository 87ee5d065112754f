"""The compose stack from nothing to a finished run on PostgreSQL and a real S3 server, and away again without a trace."""

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stack import Stack

from flows.config import PROJECT
from flows.fsck import fsck
from flows.manifest import Run

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
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.browser_port}/", timeout=60) as page:
        assert page.status == 200

    stack.make("down")
    assert stack.containers(everything=True) == [] and stack.left() != []  # the data stay
    stack.make("up")
    assert stack.state(run) == "Completed"
    assert len(list(stack.store("first").list("r/"))) > 20
    stack.make("down", "--volumes")
    assert stack.left() == [] and not stack.settings.exists()


def rows(stack: Stack, question: str) -> int:
    """The database's answer: it is PostgreSQL that Prefect has written to."""
    psql = ["docker", "exec", stack.containers("postgres")[0], "psql", "-U", "prefect", "-tAc", question]
    return int(subprocess.run(psql, capture_output=True, text=True, check=True).stdout)


def test_the_settings_are_private(tmp_path: Path) -> None:
    script = (PROJECT / "infra" / "setup" / "compose.sh").read_text()
    assert "umask 077" in script
    assert subprocess.run(["bash", "-n", str(PROJECT / "infra" / "setup" / "compose.sh")]).returncode == 0
