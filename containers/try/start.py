"""The process of the image populora-try: `populora serve` and one `populora run`, until SIGTERM or Ctrl-C.

`start.py [--port N] [--browser-port N] [--sandbox local] [OPTION of populora run]...`. Sandboxes need a Docker daemon:
the socket of the host's, mounted at its usual place, or the one that DOCKER_HOST names. The daemon gets the sandbox image that
this image brings. Sandboxes mount nothing and have no network, so nothing here has to have a place or a name that they see.
Without a daemon it ends, unless `--sandbox local` asks for the sandbox that is no wall.

When the run has ended well, the servers go on. Any other end ends everything, with the run's exit code.
"""

import argparse
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import docker
import docker.errors
import requests

from flows import form_links
from flows.config import PROJECT
from flows.prefect_ops import serve
from stages.core.sandbox.protocol import IMAGE

SOCKET, DATA, PACKED = Path("/var/run/docker.sock"), Path("/data"), Path("/try/sandbox.tar.gz")
LABEL = "populora.content"
HELP = "docs/install.md, Without installing"
RUN_SECONDS, SERVE_SECONDS = 10.0, 40.0
"""Patience with the run and with the servers when they are told to end."""
_FAULTS = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


class Unfit(Exception):
    """Something outside is missing. The message is one line, `code` the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def main() -> int:
    """Serve and run until told to end; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="populora-try", description="Other options are those of populora run.", allow_abbrev=False
    )
    parser.add_argument("--port", type=int, default=4200, help="of the Prefect UI, here and where it is published")
    parser.add_argument("--browser-port", type=int, default=8750, help="of the artifact browser, here and where it is published")
    parser.add_argument("--sandbox", choices=("docker", "local"), default="docker", help="local: no wall, but no daemon either")
    ours, of_run = parser.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # the first process of a container has no default
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        check_data()
        if ours.sandbox == "docker":
            print(f"sandboxes   {sandbox_ready()}", flush=True)
        else:
            of_run = [*of_run, "--set", "sandbox.kind=local"]
    except Unfit as error:
        print(f"populora-try: {error}", file=sys.stderr)
        return error.code
    return Household(ours.port, ours.browser_port, of_run).keep()


def check_data() -> None:
    """Raise Unfit unless this user may write to the volume."""
    if not os.access(DATA, os.W_OK):
        raise Unfit(2, f"user {os.getuid()} may not write to {DATA}: mount a named volume there, or a folder of that user")


def sandbox_ready() -> str:
    """Give the daemon the sandbox image that this image brings, unless it has it; return where the daemon is. Raises Unfit."""
    check_socket()
    try:
        client = docker.from_env(timeout=60)
        client.ping()
        content = hashlib.sha256(PACKED.read_bytes()).hexdigest()
        if content not in [image.labels.get(LABEL) for image in client.images.list(name=IMAGE)]:
            recipe = (PROJECT / "containers" / "sandbox" / "Dockerfile").read_text()
            entry = re.search(r"^ENTRYPOINT .*$", recipe, re.M)
            assert entry is not None, recipe
            name, _, tag = IMAGE.rpartition(":")
            changes = [entry[0], f"LABEL {LABEL}={content}"]
            client.api.import_image_from_data(PACKED.read_bytes(), repository=name, tag=tag, changes=changes)
        rootless = any("rootless" in option for option in client.info().get("SecurityOptions") or [])
    except _FAULTS as error:
        raise Unfit(3, f"the Docker daemon does not answer: {str(error).splitlines()[0]}") from error
    who = "its user" if rootless else "root on its machine"
    return f"{os.environ.get('DOCKER_HOST') or SOCKET}: whoever has the UI's password is {who}"


def check_socket() -> None:
    """Raise Unfit, saying which option of docker run is missing, unless DOCKER_HOST or a socket that may be used is there."""
    if os.environ.get("DOCKER_HOST"):
        return
    if not SOCKET.is_socket():
        raise Unfit(3, f"no Docker daemon: add -v {SOCKET}:{SOCKET}, or -e DOCKER_HOST=... ({HELP})")
    if not os.access(SOCKET, os.R_OK | os.W_OK):
        raise Unfit(
            3, f"the socket of the Docker daemon belongs to group {SOCKET.stat().st_gid}: add --group-add {SOCKET.stat().st_gid}"
        )


class Household:
    """The servers and the run, as children of this process, which is the container's first."""

    def __init__(self, port: int, browser_port: int, of_run: list[str]) -> None:
        self._ports = ["--port", str(port), "--browser-port", str(browser_port)]
        self._urls = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", form_links.URL: f"http://127.0.0.1:{port}"}
        self._urls["POPULORA_BROWSER_URL"] = f"http://127.0.0.1:{browser_port}"
        self._of_run = of_run
        self._told = False

    def keep(self) -> int:
        """Start the servers, then the run; return when told to, or when one of them ends badly."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)
        began = time.time()
        servers, run, code = self._start("serve", "--host", "0.0.0.0", *self._ports), None, 0
        while not self._told and not code:
            if servers.poll() is not None:
                code = servers.returncode or 1
            elif run is None and self._answers(servers.pid, began):
                run = self._start("run", *self._of_run)
            elif run is not None and run.poll():
                code = run.returncode if run.returncode > 0 else 1
            self._reap({child.pid for child in (servers, run) if child is not None})
            time.sleep(0.2)
        for child, seconds in ((run, RUN_SECONDS), (servers, SERVE_SECONDS)):
            _end(child, seconds)
        return code

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C at the terminal comes to this process only, which ends them in order.
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *words],
            env=os.environ | (self._urls if words[0] == "run" else {}),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @staticmethod
    def _answers(pid: int, began: float) -> bool:
        """Return whether the servers are up. A container that was killed leaves such a note too, and perhaps of the same pid."""
        note = serve.HOME / "serving.json"
        return note.exists() and note.stat().st_mtime >= began and (serve.address() or {}).get("pid") == pid

    def _tell(self, _number: int, _frame: object) -> None:
        self._told = True

    @staticmethod
    def _reap(own: set[int]) -> None:
        """Reap orphans: they become children of the container's first process."""
        with suppress(ChildProcessError):  # no children at all
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in own:
                os.waitpid(found.si_pid, 0)


def _end(child: "subprocess.Popen[bytes] | None", seconds: float) -> None:
    if child is None or child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(main())
