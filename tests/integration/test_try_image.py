"""The image that shows everything with one `docker run`: built from the local base, and run by the command of the docs."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.config import PROJECT
from tests.support.servers.s3_servers import free_port

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(3600)]
IMAGE, SANDBOX = "populora-try:local", "populora-sandbox:try"
SHORT = "-c chaos --set generations=1 --run-id short"
RUN = "/data/runs/short"


def documented() -> str:
    """The command of docs/install.md."""
    section = (PROJECT / "docs" / "install.md").read_text().split("## Without installing")[1].split("\n## ")[0]
    block = next(block for block in re.findall(r"```bash\n(.*?)```", section, re.S) if block.startswith("docker run"))
    return block.replace("\\\n", " ").strip()


@pytest.fixture(scope="module", autouse=True)
def _image() -> Iterator[None]:
    done = subprocess.run(["bash", "infra/setup/images.sh", "try"], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    yield
    subprocess.run(["docker", "image", "rm", "--force", SANDBOX], capture_output=True)


class Trial:
    """One container of the image, started by the documented command on ports and a volume of its own."""

    def __init__(self) -> None:
        self.name = f"populora-try-{os.getpid()}"
        self.port, self.browser_port = free_port(), free_port()

    def start(self) -> None:
        command = documented()
        for text, own in (
            ("--rm -it --name populora ", f"--detach --name {self.name} "),
            ("127.0.0.1:4200:4200", f"127.0.0.1:{self.port}:{self.port}"),
            ("127.0.0.1:8750:8750", f"127.0.0.1:{self.browser_port}:{self.browser_port}"),
            ("-v populora:/data", f"-v {self.name}:/data"),
        ):
            assert command.count(text) == 1, (text, command)
            command = command.replace(text, own)
        docker_line = f"{command} --port {self.port} --browser-port {self.browser_port} {SHORT}"
        subprocess.run(["bash", "-c", docker_line], check=True, capture_output=True)

    def inside(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["docker", "exec", self.name, *words], capture_output=True, text=True)

    def said(self) -> str:
        done = subprocess.run(["docker", "logs", self.name], capture_output=True, text=True)
        return done.stdout + done.stderr

    def until(self, *condition: str, seconds: float = 1500) -> None:
        deadline = time.monotonic() + seconds
        while self.inside(*condition).returncode:
            assert time.monotonic() < deadline and self.inspected("{{.State.Running}}") == "true", self.said()
            time.sleep(0.5)

    def inspected(self, form: str) -> str:
        done = subprocess.run(["docker", "inspect", "--format", form, self.name], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def sandboxes(self) -> list[dict[str, Any]]:
        """The sandboxes of any process of this container, as the daemon knows them."""
        space = self.inside("readlink", "/proc/self/ns/pid").stdout.strip()
        listed = subprocess.run(["docker", "ps", "-q", "--filter", "label=populora.sandbox"], capture_output=True, text=True)
        known = [found for one in listed.stdout.split() for found in _inspect(one)]
        return [one for one in known if space and space in one["Config"]["Labels"]["populora.sandbox.host"]]

    def stop(self) -> int:
        """As `docker stop`, with its own patience; the exit code."""
        subprocess.run(["docker", "stop", self.name], check=True, capture_output=True)
        return int(self.inspected("{{.State.ExitCode}}"))

    def remove(self, volume: bool = True) -> None:
        subprocess.run(["docker", "rm", "--force", self.name], capture_output=True)
        if volume:
            subprocess.run(["docker", "volume", "rm", self.name], capture_output=True)


def _inspect(container: str) -> list[dict[str, Any]]:
    done = subprocess.run(["docker", "inspect", container], capture_output=True, text=True)
    return list(json.loads(done.stdout)) if done.returncode == 0 else []  # it may have ended meanwhile


def status_of(port: int, path: str = "/", body: bytes | None = None, **headers: str) -> tuple[int, str]:
    """Status and body of an answer through the published port."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"} | headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_one_command_runs_serves_stops_and_resumes() -> None:
    trial = Trial()
    try:
        trial.start()
        trial.until("test", "-f", f"{RUN}/generation=0000/match.json")
        assert trial.inside("id", "-u").stdout.strip() == "10001"
        trial.until(
            "python", "-c", "from flows.storage import open_store as s; assert s('/data/runs').exists('short/start/start.json')"
        )
        check_servers(trial)
        seen = trial.sandboxes()
        assert seen and all(one["Mounts"] == [] and one["HostConfig"]["NetworkMode"] == "none" for one in seen)
        before = trial.inside("sha256sum", f"{RUN}/run.json", f"{RUN}/generation=0000/match.json").stdout
        finished = trial.inside("test", "-f", f"{RUN}/generation=0000/evolve.json").returncode == 0

        began = time.monotonic()
        assert trial.stop() == 0, trial.said()
        print(f"stopped {'after' if finished else 'inside'} the run in {time.monotonic() - began:.1f} s")
        names = {one["Name"] for one in seen}
        left = subprocess.run(["docker", "ps", "--all", "--format", "/{{.Names}}"], capture_output=True, text=True).stdout.split()
        assert names.isdisjoint(left)
        trial.remove(volume=False)

        trial.start()
        trial.until("test", "-f", f"{RUN}.html")
        assert trial.inside("populora", "fsck", "short").stdout.startswith("short: 0 findings; ")
        assert trial.inside("sha256sum", f"{RUN}/run.json", f"{RUN}/generation=0000/match.json").stdout == before
        check_servers(trial)
        assert status_of(trial.browser_port, "/runs/short/generations/0")[0] == 200
        assert trial.inside("populora", "serve", "--link").stdout.startswith(f"http://127.0.0.1:{trial.port}/enter#")
        assert trial.stop() == 0
    finally:
        print(trial.said()[-4000:])
        trial.remove()


def check_servers(trial: Trial) -> None:
    """Both answer through the published ports, to their own names only, and the printed link signs in."""
    link = re.search(rf"http://127\.0\.0\.1:{trial.port}/enter#(\S+)", trial.said())
    assert link is not None
    for port in (trial.port, trial.browser_port):
        assert status_of(port)[0] == 200
        assert status_of(port, Host="attacker.example")[0] == 421
        assert status_of(port, Origin="http://attacker.example")[0] == 403
    assert status_of(trial.port, "/api/flow_runs/count", b"{}")[0] == 401
    status, given = status_of(trial.port, "/enter", link[1].encode())
    assert status == 200
    password = json.loads(given)["password"]
    assert password == b64encode(trial.inside("cat", "/data/serve/password").stdout.strip().encode()).decode()
    status, count = status_of(trial.port, "/api/flow_runs/count", b"{}", Authorization=f"Basic {password}")
    assert status == 200 and int(count) >= 1
    assert "short" in status_of(trial.browser_port)[1]


@pytest.mark.parametrize(
    ("options", "words", "code", "said"),
    [
        ((), (), 3, "no Docker daemon: add -v /var/run/docker.sock:/var/run/docker.sock, or -e DOCKER_HOST="),
        (("-e", "DOCKER_HOST=tcp://127.0.0.1:9"), (), 3, "the Docker daemon does not answer: "),
        (("--tmpfs", "/data:uid=0,mode=700"), (), 2, "user 10001 may not write to /data"),
        ((), ("--port", "many"), 2, "argument --port: invalid int value"),
    ],
)
def test_what_is_missing_is_said_and_no_other_sandbox_is_taken(
    options: tuple[str, ...], words: tuple[str, ...], code: int, said: str
) -> None:
    done = subprocess.run(["docker", "run", "--rm", *options, IMAGE, *words], capture_output=True, text=True)
    assert done.returncode == code and said in done.stderr and done.stdout == "" and "Traceback" not in done.stderr


@pytest.mark.skipif(
    Path("/var/run/docker.sock").exists() and not Path("/var/run/docker.sock").stat().st_gid, reason="its group is 0"
)
def test_a_socket_of_another_group_is_said_with_its_number() -> None:
    socket = "/var/run/docker.sock"
    done = subprocess.run(["docker", "run", "--rm", "-v", f"{socket}:{socket}", IMAGE], capture_output=True, text=True)
    assert done.returncode == 3 and f"add --group-add {Path(socket).stat().st_gid}" in done.stderr


def test_a_setting_that_does_not_fit_ends_the_container_with_its_code() -> None:
    """The local sandbox needs no daemon, is asked for by name, and says what it is not; a wrong setting is one line."""
    words = ["--sandbox", "local", "-c", "chaos", "--set", "generations=0"]
    done = subprocess.run(["docker", "run", "--rm", IMAGE, *words], capture_output=True, text=True)
    assert done.returncode == 2 and "populora: generations: " in done.stderr and "Traceback" not in done.stderr
    assert "/enter#" in done.stdout  # the servers were up
