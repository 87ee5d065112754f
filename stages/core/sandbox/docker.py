"""Docker sandbox: a pool of warm, hardened, attested containers, driven over their attached standard streams.

The order is create, attach, start: otherwise bytes that arrive with the response headers would be lost. The client holds the
container's standard input. If this process dies for any reason, the supervisor reads end of file and the container is removed.
"""

import contextlib
import os
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.types
import requests

from stages.core.sandbox.daemon import START, unreachable, unsuited
from stages.core.sandbox.link import SANDBOX_FOLDER, RunLimits, missing_walls
from stages.core.sandbox.pool import Pool
from stages.core.sandbox.protocol import IMAGE, SandboxUnavailable

LABEL = "populora.sandbox"
_FAULTS = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
_REMOVE_SECONDS, _PIDS = 5.0, 32
_CAPABILITIES = {"SETUID", "SETGID", "KILL"}


class DockerSandbox(Pool):
    """Implements `Sandbox` with containers of `image`."""

    def __init__(
        self,
        image: str = IMAGE,
        containers: int = 2,
        limits: RunLimits | None = None,
        runtime: str | None = None,
        window: int = 64,
        recycle_after: int = 10_000,
    ):
        self.image, self.runtime, self.owner = image, runtime, uuid.uuid4().hex
        self.removers: list[threading.Thread] = []
        self.mend = f"image {image} holds another runner than this checkout. Rebuild it with {_mending(image)}"
        if why := unsuited():
            raise SandboxUnavailable(why)
        try:
            self.client = docker.from_env(timeout=60)  # starting a container takes long on a busy machine,
            self.asker = docker.from_env(timeout=7)  # answering a ping does not
            self.asker.ping()
            self.info = self.client.info()
            self.image_id = str(self.client.images.get(image).id)
            self._sweep()
        except docker.errors.ImageNotFound as error:
            raise SandboxUnavailable(f"image {image} is missing. Build it with {_mending(image)}") from error
        except _FAULTS as error:
            raise SandboxUnavailable(f"Docker does not answer ({unreachable(error)}); {START}") from error
        # the same in every container: should a program find its uid out, it would not know its container
        super().__init__(self._start_container, containers, limits or RunLimits(), 100_000, window, recycle_after, apart=0)

    def attestation(self) -> dict[str, object]:
        """Return image, engine and walls, as read back from inside a container."""
        found = super().attestation()
        missing = _missing(found, self.info, self._memory_mb() << 20)
        facts = {"engine": self.info.get("ServerVersion"), "security": self.info.get("SecurityOptions"), "runtime": self.runtime}
        return {"kind": "docker", "wall": True, "image": self.image_id, "missing": missing, **facts, **found}

    def close(self) -> None:
        """Stop every container of this sandbox."""
        super().close()
        for remover in self.removers:
            if remover.ident is not None:
                remover.join(_REMOVE_SECONDS)
        self.client.close()
        self.asker.close()

    def check(self) -> None:
        """Raise SandboxUnavailable within seconds if the daemon does not answer."""
        try:
            self.asker.ping()
        except _FAULTS as error:
            raise SandboxUnavailable(f"Docker does not answer ({unreachable(error)}); {START}") from error

    def _start_container(self, number: int) -> "ContainerLink":
        self.check()
        try:
            link = ContainerLink(self.client.containers.create(**self._arguments(number)))
            self.removers = [remover for remover in self.removers if remover.ident is None or remover.is_alive()] + [link.remover]
            return link
        except _FAULTS as error:
            raise SandboxUnavailable(f"no sandbox container could be started: {error}") from error

    def _memory_mb(self) -> int:
        return self.limits.memory_mb + 64 * (self.limits.witnesses + 4)

    def _arguments(self, number: int) -> dict[str, object]:
        memory = f"{self._memory_mb()}m"
        ulimit = docker.types.Ulimit
        return {
            "image": self.image_id,
            "stdin_open": True,  # with detach unset, StdinOnce: standard input ends when the client dies
            "user": "0:0",
            "hostname": "sandbox",
            "network_mode": "none",
            "read_only": True,
            "ipc_mode": "none",
            "cap_drop": ["ALL"],
            "cap_add": sorted(_CAPABILITIES),
            "security_opt": ["no-new-privileges:true", "seccomp=" + (SANDBOX_FOLDER / "seccomp.json").read_text()],
            "mem_limit": memory,
            "memswap_limit": memory,
            "oom_score_adj": 500,
            "pids_limit": _PIDS,
            "ulimits": [ulimit(name=name, soft=value, hard=value) for name, value in (("nofile", 64), ("core", 0), ("fsize", 0))],
            "log_config": docker.types.LogConfig(type="none"),
            "auto_remove": True,
            "runtime": self.runtime,
            "labels": {LABEL: "1", LABEL + ".owner": self.owner, LABEL + ".host": _host(), LABEL + ".pid": str(os.getpid())},
            "name": f"populora-sandbox-{self.owner[:12]}-{number}",
        }

    def _sweep(self) -> None:
        """Remove containers with our label whose process on this host is gone."""
        for container in self.client.containers.list(all=True, sparse=True, filters={"label": LABEL}):
            labels = container.attrs.get("Labels") or {}
            pid = labels.get(LABEL + ".pid", "")
            if labels.get(LABEL + ".host") == _host() and pid.isdigit() and not alive(int(pid)):
                with contextlib.suppress(docker.errors.APIError):
                    container.remove(force=True)


def _mending(image: str) -> str:
    """Return the command that builds an image from this checkout."""
    own = f"docker build --network none --build-arg BASE=populora-base:local -t {image} containers/sandbox"
    return "`make setup`" if image == IMAGE else f"`{own}`"


def alive(pid: int) -> bool:
    """Return whether a process with this id exists. The kernel is asked, because macOS has no `/proc`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _host() -> str:
    """Identify this boot of this machine and its process namespace: process ids are valid only there.

    Without `/proc` (macOS), use the host name and the network card's address. Containers left by another boot are then kept if
    their pid is in use again; they stop by themselves.
    """
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()} {uuid.getnode():012x}"


def _missing(found: dict[str, object], info: dict[str, object], memory: int) -> list[str]:
    """Return the names of walls that were requested but are not visible from inside."""
    supervisor = found.get("supervisor")
    status = supervisor if isinstance(supervisor, dict) else {}
    checks = {
        "network_namespace": found.get("interfaces") == ["lo"],
        "read_only": found.get("writable_mounts") == [],
        "seccomp_profile": status.get("Seccomp") == "2",
        "no_new_privs": status.get("NoNewPrivs") == "1",
        "capabilities": status.get("CapBnd") == "00000000000000e0",
        "pid_1": found.get("pid") == 1,
        "memory_cgroup": _within(found.get("memory_limit"), memory, info.get("MemoryLimit")),
        "pids_cgroup": _within(found.get("pids_limit"), _PIDS, info.get("PidsLimit")),
        "user_namespace": any(
            "userns" in str(option) or "rootless" in str(option) for option in _list(info.get("SecurityOptions"))
        ),
    }
    missing = [name for name, stands in checks.items() if not stands]
    return missing + [name for name in missing_walls(found) if name not in missing]


def _within(seen: object, most: int, known: object) -> bool:
    """Return whether a limit is in force, as seen from inside or, if invisible there (gVisor), as the daemon reports it."""
    return int(seen) <= most if isinstance(seen, str) and seen.isdigit() else seen is None and known is True


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


class ContainerLink:
    """A container's attached streams: raw bytes in; Docker's 8-byte headers are stripped from the output."""

    def __init__(self, container: "docker.models.containers.Container"):
        self.container = container
        self.remover = threading.Thread(target=self._remove, daemon=True)
        self.stream = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        self.socket: socket.socket = self.stream._sock
        try:
            container.start()
        except _FAULTS:
            self.close()
            raise
        self.socket.setblocking(False)
        self.buffer, self.errors = bytearray(), bytearray()

    def filenos(self) -> tuple[int, int]:
        """Return the descriptors to poll for reading and for writing."""
        descriptor = self.socket.fileno()
        return descriptor, descriptor

    def send(self, data: bytes | bytearray) -> int:
        """Write as many bytes as fit and return their number."""
        try:
            return self.socket.send(data[: 1 << 18])
        except BlockingIOError:
            return 0

    def receive(self) -> bytes | None:
        """Return the bytes received; None at end of stream."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return b""
        self.buffer += data
        output = self._demultiplex()
        return output or (b"" if data else None)

    def _demultiplex(self) -> bytes:
        """Take whole blocks off the buffer: type, three zeros, length, bytes. The end of standard error is kept for messages."""
        output, position = [], 0
        while len(self.buffer) - position >= 8:
            size = int.from_bytes(self.buffer[position + 4 : position + 8], "big")
            if len(self.buffer) - position < 8 + size:
                break
            block = bytes(self.buffer[position + 8 : position + 8 + size])
            if self.buffer[position] == 1:
                output.append(block)
            else:
                self.errors += block[:2048]
                del self.errors[:-4096]
            position += 8 + size
        del self.buffer[:position]
        return b"".join(output)

    def said(self) -> str:
        """Return its last output, for messages."""
        return self.errors.decode(errors="replace")[-300:]

    def close(self) -> None:
        """Stop the container and everything in it."""
        with contextlib.suppress(*_FAULTS):
            self.stream.close()
            self.socket.close()
        # A hanging daemon must not block the caller; the next sandbox sweeps what remains.
        self.remover.start()

    def _remove(self) -> None:
        with contextlib.suppress(*_FAULTS):
            self.container.remove(force=True)
