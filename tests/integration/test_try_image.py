"""The image to try the project with: one `docker run` gives a finished run, the UI and the browser, and leaves nothing behind."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.config import PROJECT
from tests.support import s3_servers

IMAGE = "populora-try:local"
SOCKET = Path("/var/run/docker.sock")
TRUST = "POPULORA_TRUST_UI_WITH_HOST_ROOT=1"
NAME = "populora-try-test"
pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(2400)]


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *words], capture_output=True, text=True)
    assert not check or done.returncode == 0, (words, done.stderr)
    return done


@pytest.fixture(scope="module")
def image() -> str:
    """The image, built as a person builds it."""
    done = subprocess.run(["bash", "infra/setup/try.sh"], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "-p 127.0.0.1:4200:4200 -p 127.0.0.1:8750:8750" in done.stdout
    return IMAGE


@pytest.fixture
def ports(image: str) -> Iterator[tuple[int, int]]:
    """The UI's and the browser's port of a running container."""
    ui, browser = s3_servers.free_port(), s3_servers.free_port()
    words = ["run", "--rm", "--detach", "--name", NAME, "--group-add", str(SOCKET.stat().st_gid)]
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "-v", f"{SOCKET}:{SOCKET}", "-e", TRUST]
    for name, port in (("POPULORA_UI_PORT", ui), ("POPULORA_BROWSER_PORT", browser)):
        words += ["-e", f"{name}={port}", "-p", f"127.0.0.1:{port}:{port}"]
    docker(*words, image, "-c", "chaos", "--run-id", "tried")
    try:
        yield ui, browser
    finally:
        docker("stop", "--time", "40", NAME, check=False)


def asked(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


def test_one_docker_run_gives_a_finished_run_a_ui_and_a_browser(ports: tuple[int, int]) -> None:
    ui, browser = ports
    deadline = time.monotonic() + 1200
    while "nothing: the run is finished" not in asked(f"http://127.0.0.1:{browser}/runs/tried")[1]:
        assert docker("ps", "-q", "--filter", f"name={NAME}").stdout, "the container has ended"
        assert time.monotonic() < deadline, docker("logs", NAME).stdout[-3000:]
        time.sleep(2)
    said = docker("logs", NAME).stdout
    link = next(line.split()[-1] for line in said.splitlines() if line.startswith("Prefect UI"))
    assert link.startswith(f"http://127.0.0.1:{ui}/") and asked(link)[0] == 200
    assert asked(f"http://127.0.0.1:{ui}/api/flow_runs/count")[0] in (401, 405), "the UI's interface asks for its password"
    sandbox = json.loads(docker("exec", NAME, "cat", "/data/runs/tried/generation=0000/verify.json").stdout)["versions"][
        "sandbox"
    ]
    assert "docker" in json.dumps(sandbox)
    assert docker("exec", NAME, "populora", "fsck", "tried", "--store", "/data/runs").returncode == 0
    docker("stop", "--time", "40", NAME)
    assert docker("ps", "--all", "-q", "--filter", f"name={NAME}").stdout == ""


def test_without_a_daemon_or_without_a_word_about_root_it_ends_with_one_line(image: str) -> None:
    alone = docker("run", "--rm", image, check=False)
    assert alone.returncode == 3 and "no Docker daemon answers" in alone.stderr and "Traceback" not in alone.stderr
    mounted = ["run", "--rm", "-v", f"{SOCKET}:{SOCKET}"]
    stranger = docker(*mounted, image, check=False)
    group = SOCKET.stat().st_gid
    assert stranger.returncode == 3 and f"add --group-add {group}" in stranger.stderr
    unsaid = docker(*mounted, "--group-add", str(group), image, check=False)
    assert unsaid.returncode == 2 and TRUST in unsaid.stderr
