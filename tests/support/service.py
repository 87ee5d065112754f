"""`populora serve` as a process of its own, on a home, a store and ports of its own; asked through the API as the UI asks."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.config import PROJECT
from stages.core.sandbox.docker import LABEL
from tests.support.servers import s3_servers
from tests.support.stack import NO_GIT

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
CANCEL = {"type": "CANCELLING", "name": "Cancelling"}
RETRY = {"type": "SCHEDULED", "name": "AwaitingRetry"}
PAUSE = {"type": "PAUSED", "name": "Suspended", "state_details": {"pause_reschedule": True}}
"""What the UI sets when a person chooses Cancel, Retry or Pause (whose time limit is left out)."""


class Service:
    """One server; `stop` ends it, `start` resumes with the same home."""

    def __init__(self, folder: Path) -> None:
        self.home, self.store = folder / "home", folder / "store"
        self.port, self.browser_port = s3_servers.free_port(), s3_servers.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when everything is up."""
        ports = ["--port", str(self.port), "--browser-port", str(self.browser_port)]
        command = [sys.executable, "-m", "flows.cli", "serve", "--home", str(self.home), "--store", str(self.store), *ports]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=PROJECT, env=os.environ | NO_GIT, stdout=output, stderr=output, start_new_session=True
            )
        until(lambda: (self.home / "serving.json").exists(), 400, lambda: self.output.read_text())

    @property
    def password(self) -> str:
        """What the server asks for."""
        return (self.home / "password").read_text().strip()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(120)

    def kill(self) -> None:
        """For the end of a test that failed: what is left must not stay."""
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def submit(self, run_id: str, *options: str) -> str:
        """`populora run --detach`; the id of the flow run."""
        words = ["run", "--detach", "-c", "chaos", "--run-id", run_id, "--store", str(self.store), *options]
        environment = os.environ | {"PREFECT_API_URL": f"{self.url}/api", "PREFECT_API_AUTH_STRING": self.password}
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *words], cwd=PROJECT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stdout.splitlines() if line.startswith("watch it")).rpartition("/")[2]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The API's answer."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {b64encode(self.password.encode()).decode()}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def state(self, flow_run: str) -> str:
        """Type of a run's state."""
        return str(self.ask(f"flow_runs/{flow_run}")["state"]["type"])

    def set(self, flow_run: str, state: dict[str, Any]) -> None:
        """What a click in the UI does."""
        assert self.ask(f"flow_runs/{flow_run}/set_state", {"state": state})["status"] == "ACCEPT"

    def wait(self, flow_run: str, *states: str, seconds: float = 1500) -> str:
        """The state, once it is one of these (by default: a final one)."""
        until(lambda: self.state(flow_run) in (states or FINAL), seconds, lambda: self.words("worker"))
        return self.state(flow_run)

    def of_parent(self, flow_run: str) -> list[str]:
        """States of a run's generations."""
        found = self.ask("flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run]}}})
        return [one["state"]["type"] for one in found]

    def words(self, name: str) -> str:
        """The end of a child's log."""
        return (self.home / "logs" / f"{name}.log").read_text()[-3000:]


def until(true: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> float:
    """Waits; the seconds it took. Fails with what `otherwise` says."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, otherwise()
        time.sleep(0.2)
    return time.monotonic() - began


def family(pid: int) -> list[int]:
    """A process and everything below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def of_runs(pid: int) -> list[int]:
    """The processes below `pid` that do a run's work: Prefect's engine, stage workers, and what they have started."""
    engines = [one for one in family(pid) if b"prefect.engine" in command(one)]
    return sorted({below for engine in engines for below in family(engine)})


def command(pid: int) -> bytes:
    """A process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pids: list[int]) -> list[int]:
    """Those that run; a zombie does not."""
    return [pid for pid in pids if command(pid)]


def containers(pids: list[int]) -> list[str]:
    """The sandboxes that these processes have started."""
    form = '{{.ID}} {{.Label "' + LABEL + '.pid"}}'
    listed = subprocess.run(
        ["docker", "ps", "-a", "--filter", f"label={LABEL}", "--format", form], capture_output=True, text=True
    )
    owned = {str(pid) for pid in pids}
    return [line.split()[0] for line in listed.stdout.splitlines() if line.split()[-1] in owned]


def kill(pid: int) -> None:
    """At once."""
    os.kill(pid, signal.SIGKILL)
