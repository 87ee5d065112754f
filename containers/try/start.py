"""What `docker run populora-try:local [OPTION...]` does: load the sandbox image, serve UI and browser, submit the smoke run.

Programs that the model writes run in sandbox containers, which the daemon behind the mounted socket starts. Options go to
`populora run`. The servers listen on 127.0.0.1 of the container, as they do everywhere; `_Door` passes on what arrives at the
container's own address, which is where Docker sends a published port. Exit codes: 2 wrong use, 3 no daemon.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import docker
from docker.errors import APIError, DockerException, ImageNotFound

from flows.prefect_ops import serve

SOCKET = Path("/var/run/docker.sock")
TAR = Path(__file__).with_name("sandbox.tar")
STORE = "/data/runs"
TRUST = "POPULORA_TRUST_UI_WITH_HOST_ROOT"
COMMAND = (
    'docker run --rm -it --group-add "$(stat -c %g /var/run/docker.sock)" -v /var/run/docker.sock:/var/run/docker.sock '
    f"-e {TRUST}=1 -p 127.0.0.1:4200:4200 -p 127.0.0.1:8750:8750 populora-try:local"
)
START_SECONDS = 600.0


def main(options: list[str]) -> int:
    """Serve until stopped and return the exit code."""
    ports = {name: _port(name, usual) for name, usual in (("POPULORA_UI_PORT", 4200), ("POPULORA_BROWSER_PORT", 8750))}
    client = _daemon()
    _check_trust(client)
    _load_sandbox(client)
    _open_doors(list(ports.values()))
    words = ["--port", str(ports["POPULORA_UI_PORT"]), "--browser-port", str(ports["POPULORA_BROWSER_PORT"]), "--store", STORE]
    serving = subprocess.Popen(["populora", "serve", *words])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: serving.terminate())
    if _until_served(serving):
        subprocess.run(["populora", "run", "--detach", "-c", "smoke", "--store", STORE, *options], check=False)
    return _wait(serving)


def _wait(serving: subprocess.Popen[bytes]) -> int:
    """Wait for the servers and collect the processes that others left behind: this one is the container's first."""
    while serving.poll() is None:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_pid != serving.pid:
            os.waitpid(ended.si_pid, 0)
        else:
            time.sleep(0.5)
    return int(serving.returncode)


def _port(name: str, usual: int) -> int:
    text = os.environ.get(name) or str(usual)
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        _stop(2, f"{name}={text}: must be a port between 1024 and 65535")
    return int(text)


def _daemon() -> docker.DockerClient:
    """Return the daemon that starts the sandboxes; ends with 3 if there is none."""
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        if SOCKET.exists() and not os.access(SOCKET, os.R_OK | os.W_OK):
            group = SOCKET.stat().st_gid
            _stop(3, f"{SOCKET} belongs to group {group}, and this container is not in it: add --group-add {group}")
        where = os.environ.get("DOCKER_HOST") or str(SOCKET)
        _stop(
            3,
            f"no Docker daemon answers at {where}: {str(error).splitlines()[0][:200]}",
            "programs that the model writes run in sandbox containers, so this image needs a daemon's socket:",
            COMMAND,
        )
    return client


def _check_trust(client: docker.DockerClient) -> None:
    """End with 2 if the daemon runs as root and nobody has said that this is known."""
    if os.environ.get(TRUST) == "1" or any("name=rootless" in one for one in client.info().get("SecurityOptions") or ()):
        return
    _stop(
        2,
        "this daemon runs as root: whoever takes over this container, or has its UI's password, is root on the machine.",
        f"Mount a rootless daemon's socket, or say that it is known with -e {TRUST}=1 (docs/install.md)",
    )


def _load_sandbox(client: docker.DockerClient) -> None:
    """Give the daemon the sandbox image of this version, under its own tag."""
    tag = os.environ["POPULORA_SANDBOX_IMAGE"]
    try:
        before = client.images.get(tag).id
    except ImageNotFound:
        before = None
    try:
        with TAR.open("rb") as tar:
            loaded = client.images.load(tar)
    except APIError as error:
        _stop(3, f"the daemon does not take the sandbox image: {error.explanation or error}")
    if loaded[0].id != before:
        print(f"sandbox    {tag} loaded", flush=True)


def _until_served(serving: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while serving.poll() is None and time.monotonic() < deadline:
        if serve.address() is not None:
            return True
        time.sleep(0.2)
    return False


def _open_doors(ports: list[int]) -> None:
    address = _own_address()
    if address is None:
        print("network    the host's own: the servers are on its 127.0.0.1", flush=True)
        return
    ready = threading.Event()
    threading.Thread(target=lambda: asyncio.run(_Door(address).keep(ports, ready)), daemon=True).start()
    ready.wait(10)


def _own_address() -> str | None:
    """Return the container's address on its network; None on the host's network, where it would be open to others."""
    links = {link.name: link for link in Path("/sys/class/net").iterdir()} if Path("/sys/class/net").is_dir() else {}
    others = [link for name, link in links.items() if name != "lo"]
    if len(others) != 1 or (others[0] / "iflink").read_text() == (others[0] / "ifindex").read_text():
        return None  # a container's only link is one end of a pair, whose other end has another number
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: it asks for the address of the way out
        return str(probe.getsockname()[0])


class _Door:
    """Passes connections to the container's address on to its 127.0.0.1."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def keep(self, ports: list[int], ready: threading.Event) -> None:
        """Listen until the process ends."""
        for port in ports:
            await asyncio.start_server(lambda reader, writer, port=port: self._pass(reader, writer, port), self._address, port)
        ready.set()
        await asyncio.Event().wait()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()  # not served yet
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass  # one of them left
    finally:
        writer.close()


def _stop(code: int, *lines: str) -> None:
    print("populora-try:", *lines[:1], file=sys.stderr)
    print(*lines[1:], sep="\n", end="\n" if lines[1:] else "", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
