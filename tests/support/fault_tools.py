"""What the fault tests share: a process that builds a run, a network that goes away, and machines of their own names."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
sys.path.append("tests")
from tests.support import example_run
from flows.execution.orphan_guard import exit_on_sigterm
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
exit_on_sigterm()
url, generations, stale = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
try:
    store = open_store(url)
    with hold(store, "smoke", beat_seconds=0.2, stale_seconds=stale) as epoch:
        print(epoch, flush=True)
        example_run.build(Run(store, "smoke", epoch), generations)
except Exception as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(getattr(error, "exit_code", 1))
"""


def builder(url: str, generations: int, stale: float = 30.0, prefix: tuple[str, ...] = (), **more: str) -> subprocess.Popen[str]:
    """A process that makes or resumes the run of example_run.py; it prints its epoch first. `more` is environment."""
    command = [*prefix, sys.executable, "-c", BUILD, url, str(generations), str(stale)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | more, text=True, **pipes)


def at_work(process: subprocess.Popen[str]) -> None:
    """Returns when a builder holds the lease."""
    assert process.stdout is not None and process.stdout.readline().strip().isdigit(), process.communicate()


def machine(name: str) -> tuple[str, ...]:
    """Runs a command under another host name, as on another machine; give it a TMPDIR of its own, too."""
    return ("unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh")


def namespace_gap(*flags: str) -> str | None:
    """What keeps new namespaces from being made here; None when nothing does."""
    if shutil.which("unshare") is None:
        return "unshare(1) is missing (util-linux)"
    done = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True)
    return f"no new namespace: {done.stderr.strip()}" if done.returncode else None


class Gate:
    """Passes TCP connections on to `target` (host:port) while it is open; closed, it refuses, as when a server is gone."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._port = 0
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Accepts (again), on the same port."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Ends every connection and refuses new ones."""
        assert self._listener is not None
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections, self._connections = self._connections, set()
        for one in connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._target)
                with self._lock:
                    self._connections |= {client, server}
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """Pass both directions on until both have ended; then the descriptors are given back."""
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        with self._lock:
            self._connections -= {client, server}
        client.close()
        server.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
