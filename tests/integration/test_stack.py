"""The compose stack from nothing to a finished run on PostgreSQL and a real S3 server, and away again without a trace."""

import json
import os
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
from flows.execution.preflight import DEFAULT_HOURS, HOURS
from flows.execution.residents import DEFAULT_IDLE_MINUTES, IDLE_MINUTES
from flows.monitoring.prices import PREFIX, of_machine
from flows.run.lease import STALE, STALE_SECONDS
from flows.run.run import Run
from flows.settings import Cost
from flows.storage import Store
from tests.support.stack import Stack, tree

TRUST = "POPULORA_TRUST_UI_WITH_HOST_ROOT"
COMPOSE = yaml.safe_load((PROJECT / "infra" / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
SECRETS = ("POSTGRES_PASSWORD", "PREFECT_AUTH", "S3_ACCESS_KEY", "S3_SECRET_KEY", "S3_READ_ACCESS_KEY", "S3_READ_SECRET_KEY")
WRITING, READING = {"S3_ACCESS_KEY", "S3_SECRET_KEY"}, {"S3_READ_ACCESS_KEY", "S3_READ_SECRET_KEY"}
NEEDED = {
    "postgres": {"POSTGRES_PASSWORD"},
    "prefect": {"POSTGRES_PASSWORD", "PREFECT_AUTH"},
    "s3": WRITING | READING,
    "setup": {"PREFECT_AUTH"} | WRITING,
    "worker": {"PREFECT_AUTH"} | WRITING,
    "gpu-worker": {"PREFECT_AUTH"} | WRITING,
    "browser": READING,
}
"""Which secrets a service needs; `docker inspect` shows those that it has."""


def test_nothing_is_published_beyond_this_machine_by_default() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith(("127.0.0.1:", "${PUBLISH_ON:-127.0.0.1}:")) for port in ports)


def test_no_password_has_a_default() -> None:
    text = (PROJECT / "infra" / "compose.yaml").read_text()
    for name in SECRETS:
        assert f"${{{name}:?" in text and f"${{{name}:-" not in text
    assert SERVICES["prefect"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == "${PREFECT_AUTH}"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_the_secrets_that_it_needs_and_no_other(name: str) -> None:
    text = json.dumps(SERVICES[name])
    assert {secret for secret in SECRETS if f"${{{secret}" in text} == NEEDED[name]


def test_the_browser_knows_nothing_of_prefect_and_answers_to_its_own_names() -> None:
    environment = SERVICES["browser"]["environment"]
    assert not [key for key in environment if "PREFECT" in key] and environment["POPULORA_HOSTS"].startswith("browser,")
    assert SERVICES["prefect"]["environment"]["POPULORA_HOSTS"].startswith("prefect,")
    assert not SERVICES["browser"].get("volumes") and not SERVICES["prefect"].get("group_add")


def test_workers_pass_on_what_the_machines_environment_decides() -> None:
    names = {HOURS, IDLE_MINUTES, STALE, "POPULORA_NODE", "POPULORA_SUITES"} | {
        f"{PREFIX}{field.upper()}" for field in Cost.model_fields
    }
    for worker in ("worker", "gpu-worker"):
        own = SERVICES[worker]["environment"]
        assert names <= set(own) and all(own[name].startswith(f"${{{name}:-") for name in names)
    defaults = {name: SERVICES["worker"]["environment"][name].removeprefix(f"${{{name}:-").removesuffix("}") for name in names}
    assert SERVICES["browser"]["environment"][STALE] == f"${{{STALE}:-{defaults[STALE]}}}"  # it says which runs are stale
    assert float(defaults[STALE]) == STALE_SECONDS
    assert float(defaults[HOURS]) == DEFAULT_HOURS and float(defaults[IDLE_MINUTES]) == DEFAULT_IDLE_MINUTES
    assert of_machine(Cost(kwh=0.3), defaults) == Cost(kwh=0.3)


def test_only_workers_reach_a_docker_daemon() -> None:
    holders = {name for name, service in SERVICES.items() if "docker.sock" in json.dumps(service)}
    assert holders == {"worker", "gpu-worker"} and not any(service.get("privileged") for service in SERVICES.values())


@pytest.mark.docker
def test_the_hosts_daemon_is_given_away_only_by_name(tmp_path: Path) -> None:
    """With an ordinary daemon `make up` ends in one line before anything is built or started."""
    own = {"COMPOSE_PROJECT_NAME": "populora-none", "POPULORA_COMPOSE_SETTINGS": str(tmp_path / "env")}
    script = ["bash", str(PROJECT / "infra" / "setup" / "compose.sh"), "up"]
    variables = {key: value for key, value in os.environ.items() if key not in (TRUST, "DOCKER_SOCKET")} | own
    done = subprocess.run(script, env=variables, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and TRUST in done.stderr and "rootless" in done.stderr
    written = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert set(SECRETS) <= set(written) and len(set(written.values())) == len(written)
    assert (tmp_path / "env").stat().st_mode & 0o077 == 0
    (tmp_path / "env").write_text("PREFECT_AUTH=admin:mine\n")  # that of an older stack: what is missing is added
    subprocess.run(script, env=variables, capture_output=True)
    written = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert written["PREFECT_AUTH"] == "admin:mine" and set(SECRETS) <= set(written)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"setup"}))
def test_every_service_comes_back_has_a_health_check_and_no_privileges(name: str) -> None:
    service = SERVICES[name]
    image = (service["image"].partition("populora-")[2]).partition(":")[0]
    dockerfile = PROJECT / "containers" / image / "Dockerfile"
    assert service["restart"] == "unless-stopped"
    assert "healthcheck" in service or "HEALTHCHECK" in dockerfile.read_text()
    assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    assert "\nUSER " in dockerfile.read_text()


def test_a_profile_is_an_option_of_compose_and_brings_its_image(tmp_path: Path) -> None:
    """With stand-ins that note what they are asked for: bash for images.sh, docker for everything else."""
    said = tmp_path / "said"
    answer = 'case "$*" in "compose "*) ;; *) echo name=rootless ;; esac'
    stand_ins = {
        "bash": f'echo "images $*" >>{said}',
        "docker": f'echo "docker [${{COMPOSE_PROFILES:-}}] $*" >>{said}; {answer}',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    own = {"POPULORA_COMPOSE_SETTINGS": str(tmp_path / "env"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    variables = {key: value for key, value in os.environ.items() if key not in ("GPU_IMAGE", "COMPOSE_PROFILES")} | own
    script = ["/bin/bash", str(PROJECT / "infra" / "setup" / "compose.sh"), "up"]
    done = subprocess.run([*script, "--profile", "gpu", "--no-color"], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [images] = [line for line in said.read_text().splitlines() if line.startswith("images")]
    [started] = [line for line in said.read_text().splitlines() if " up " in line]
    assert images.endswith(" gpu")
    assert started.startswith("docker [gpu] compose ") and started.endswith(" up --detach --remove-orphans --no-color")
    assert subprocess.run([*script, "--profile"], env=variables, capture_output=True).returncode == 2


def test_workers_share_the_models_of_the_hub() -> None:
    for name, image in {"worker": "worker", "gpu-worker": "gpu"}.items():
        assert SERVICES[name]["environment"]["HF_HOME"] == "/models" and "models:/models" in SERVICES[name]["volumes"]
        assert "/models" in (PROJECT / "containers" / image / "Dockerfile").read_text()  # a new volume takes its owner from there


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

    assert "/enter#" in printed
    check_secrets(stack)

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


def check_secrets(stack: Stack) -> None:
    """`docker inspect` of each service shows the secrets that it needs, and nobody logs any."""
    hidden = {name: value for name, value in stack.secrets.items() if name in SECRETS and len(value) > 16}
    for service in sorted(set(SERVICES) - {"gpu-worker"}):
        (container,) = stack.containers(service, everything=True)
        shown = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, check=True).stdout
        assert {name for name, value in hidden.items() if value in shown} == NEEDED[service] & set(hidden), service
        said = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
        assert not [name for name, value in hidden.items() if value in said.stdout + said.stderr], service


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
