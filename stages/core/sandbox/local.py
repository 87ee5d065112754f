"""Local sandbox, without Docker: the same runner as a child process, with the walls that this machine's kernel allows.

For machines without Docker (rented GPU pods). It is weaker: it has no file system of its own and no memory control group, and
network, process and IPC namespaces only if `unshare` may create them. It must be requested by name, warns once in red, and
attests which walls are missing.
"""

import os
import shutil
import subprocess
import sys

from stages.core.sandbox.link import SANDBOX_FOLDER, RunLimits, missing_walls
from stages.core.sandbox.pool import Pool
from stages.core.sandbox.protocol import SandboxUnavailable

RUNNER = SANDBOX_FOLDER / "runner" / "supervisor.py"
_NAMESPACES = ["--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
NOTICE = "The local sandbox is not a wall: programs run on this machine itself. Use Docker for models that you do not trust."
_warned: list[str] = []


class LocalSandbox(Pool):
    """Implements `Sandbox` with processes of this machine."""

    mend = "containers/sandbox/runner has changed since this process started; restart the process"

    def __init__(self, workers: int = 2, limits: RunLimits | None = None, window: int = 64, recycle_after: int = 10_000):
        if why := unsuited(sys.platform):
            raise SandboxUnavailable(why)
        if not _warned:
            _warned.append("said")
            print(f"\033[31m{NOTICE}\033[0m", file=sys.stderr)
        self.prefix = _namespace_command()
        base = 200_000 + os.getpid() % 50_000 * 4_096  # programs of two runs on one machine do not share a uid
        super().__init__(self._start_process, workers, limits or RunLimits(), base, window, recycle_after)

    def _start_process(self, number: int) -> "ProcessLink":
        return ProcessLink([*self.prefix, sys.executable, "-s", "-S", "-P", "-B", str(RUNNER)])

    def attestation(self) -> dict[str, object]:
        """Return the active walls, and the names of those that a container would add."""
        found = super().attestation()
        missing = ["container", "own_filesystem", "memory_cgroup", "pids_cgroup"]
        missing += [] if self.prefix else ["network_namespace", "pid_namespace", "ipc_namespace"]
        return {"kind": "local", "wall": False, "image": None, "missing": missing + missing_walls(found), **found}


def unsuited(platform: str) -> str:
    """Return why the local sandbox does not work on a system; empty on Linux, whose kernel its limits and filters need."""
    if platform.startswith("linux"):
        return ""
    return f"the local sandbox needs Linux, this is {platform}: use Docker (docs/install.md#without-docker)"


def _namespace_command() -> list[str]:
    """Return the `unshare` command that works here, or an empty list."""
    tool = shutil.which("unshare")
    options = [_NAMESPACES] if os.getuid() == 0 else [["--user", "--map-root-user", *_NAMESPACES]]
    for option in options if tool else []:
        command = [str(tool), *option]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return []


class ProcessLink:
    """A supervisor as a child process, its standard streams as the link."""

    def __init__(self, command: list[str]):
        environment = {"LC_ALL": "C.UTF-8", "PATH": os.defpath}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, bufsize=0, cwd="/"
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)

    def filenos(self) -> tuple[int, int]:
        """Return the descriptors to poll for reading and for writing."""
        return self.output, self.input

    def send(self, data: bytes | bytearray) -> int:
        """Write as many bytes as fit and return their number."""
        try:
            return os.write(self.input, data[: 1 << 16])
        except BlockingIOError:
            return 0

    def receive(self) -> bytes | None:
        """Return the bytes received; None at end of stream."""
        try:
            return os.read(self.output, 1 << 18) or None
        except BlockingIOError:
            return b""

    def said(self) -> str:
        """Return its exit status, for messages."""
        return f"exit status {self.process.poll()}"

    def close(self) -> None:
        """Stop the supervisor and everything in it."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
