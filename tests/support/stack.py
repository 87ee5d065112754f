"""The compose stack under a project name and passwords of its own: `make up` and `make down` as a person calls them."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

from flows.config import PROJECT
from flows.run.run import canonical_json
from flows.storage import Store, open_store
from tests.support.servers import s3_servers

STORE = "s3://populora"
NO_GIT = {"GIT_DIR": "/nonexistent"}
"""Two runs are compared by their bytes: a commit made between them is not what differs."""
FINAL = ("Completed", "Failed", "Crashed", "Cancelled")


class Stack:
    """One stack; its files are in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.settings = name, folder / "env"
        self.port, self.browser_port = s3_servers.free_port(), s3_servers.free_port()
        ports = {"PREFECT_PORT": str(self.port), "BROWSER_PORT": str(self.browser_port)}
        own = {"COMPOSE_PROJECT_NAME": name, "POPULORA_COMPOSE_SETTINGS": str(self.settings)}
        trust = {"POPULORA_TRUST_UI_WITH_HOST_ROOT": "1"}  # the tests' daemon is the host's, and so are they
        self._environment = os.environ | own | ports | trust

    def make(self, target: str, arguments: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """`make TARGET ARGS=...` in the project; returns its output."""
        command = ["make", "--no-print-directory", target, f"ARGS={arguments}"]
        done = subprocess.run(command, cwd=PROJECT, env=self._environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-3000:]}"
        return done

    @property
    def secrets(self) -> dict[str, str]:
        """What `make up` wrote down."""
        return dict(line.split("=", 1) for line in self.settings.read_text().splitlines())

    def containers(self, service: str = "", everything: bool = False) -> list[str]:
        """Ids of the stack's containers."""
        labels = [f"label=com.docker.compose.project={self.name}"]
        labels += [f"label=com.docker.compose.service={service}"] if service else []
        return self._docker("ps", "-q", "--no-trunc", *(["-a"] if everything else []), *_filters(labels))

    def left(self) -> list[str]:
        """Containers, networks and volumes that carry the stack's name."""
        labels = _filters([f"label=com.docker.compose.project={self.name}"])
        found = self.containers(everything=True)
        return found + [one for kind in ("network", "volume") for one in self._docker(kind, "ls", "-q", *labels)]

    def store(self, prefix: str) -> Store:
        """A store on the stack's S3 server, which only its own network reaches: the host asks at the container's address."""
        address = self.inside("s3", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
        os.environ.update(s3_servers.environment(f"http://{address}:7480"))
        os.environ.update(AWS_ACCESS_KEY_ID=self.secrets["S3_ACCESS_KEY"], AWS_SECRET_ACCESS_KEY=self.secrets["S3_SECRET_KEY"])
        return open_store(f"{STORE}/{prefix}")

    def inside(self, service: str, form: str) -> str:
        """What `docker inspect` says of a service's first container."""
        return self._docker("inspect", "--format", form, self.containers(service)[0])[0]

    def submit(self, prefix: str, *options: str) -> str:
        """`populora run --detach` inside the stack; the id of the flow run."""
        words = ["run", "--detach", "-c", "chaos", "--run-id", "r", "--store", f"{STORE}/{prefix}", *options]
        printed = self.make("stack", " ".join(words)).stdout
        return next(line.split()[-1] for line in printed.splitlines() if line.startswith("watch it")).rpartition("/")[2]

    def ask(self, path: str, body: dict[str, Any] | None = None, secret: bool = True) -> Any:
        """The API's answer; a status over 400 is returned as a number."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/{path}", data, {"Content-Type": "application/json"})
        if secret:
            request.add_header("Authorization", f"Basic {b64encode(self.secrets['PREFECT_AUTH'].encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def state(self, flow_run: str) -> str:
        """Name of a run's state."""
        return str(self.ask(f"flow_runs/{flow_run}")["state"]["name"])

    def wait(
        self, flow_run: str, seconds: float, final: tuple[str, ...] = ("Completed", "Failed", "Crashed", "Cancelled")
    ) -> str:
        """The final state of a run."""
        deadline = time.monotonic() + seconds
        while (state := self.state(flow_run)) not in final:
            assert time.monotonic() < deadline, f"{state} after {seconds} s: {self.make('logs', '--tail 40 worker').stdout}"
            time.sleep(1)
        return state

    def stage_runs(self, tag: str) -> list[dict[str, Any]]:
        """Runs of the flow `stage` with the tag, oldest first."""
        wanted = {"flows": {"name": {"any_": ["stage"]}}, "flow_runs": {"tags": {"all_": [tag]}}, "sort": "START_TIME_ASC"}
        return list(self.ask("flow_runs/filter", wanted))

    def _docker(self, *words: str) -> list[str]:
        return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.split()


def tree(store: Store, run_id: str = "r") -> dict[str, bytes]:
    """Every artifact of the run, clocks taken out."""
    found = {}
    for uri in store.list(f"{run_id}/"):
        data = store.read(uri)
        if uri.endswith(".json") and "/adapters/" not in uri:
            data = canonical_json({key: value for key, value in json.loads(data).items() if key != "clock"})
        found[uri] = data
    return found


def _filters(labels: list[str]) -> list[str]:
    return [word for label in labels for word in ("--filter", label)]
