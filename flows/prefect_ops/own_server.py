"""A private Prefect server of this process: it starts and stops with the process, and only the process has its password."""

import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from flows.prefect_ops import prefect_api, supervised

START_SECONDS = 400.0
PATIENCE = 10.0


@contextmanager
def own_server(home: Path, more: Mapping[str, str], *options: str) -> Iterator[tuple[supervised.Child, Callable[[], None]]]:
    """Serve `home` on a free port and make this process its client, with `more` settings for both.

    Yields the server and a function that waits until it answers. The function raises ChildFailed if the server exited or did not
    answer in time.
    """
    # The port is ours before its address and password are told to anybody.
    with socket.create_server(("127.0.0.1", 0)) as listening, _serving(listening, home, more, options) as (server, url):
        yield server, lambda: _wait(server, url)


@contextmanager
def _serving(
    listening: socket.socket, home: Path, more: Mapping[str, str], options: Sequence[str]
) -> Iterator[tuple[supervised.Child, str]]:
    """Run the server on this socket, with this process as its client. Yields it and the URL of its API."""
    port = listening.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    own = {"PREFECT_HOME": str(home), "PREFECT_API_URL": url, "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false"}
    password = f"populora:{secrets.token_urlsafe(24)}"
    own |= {"PREFECT_API_AUTH_STRING": password, "PREFECT_SERVER_API_AUTH_STRING": password}
    own |= prefect_api.settings_without_tls(url, home) | dict(more)
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    log = home / f"server-{port}.log"
    given = listening.fileno()
    command = [sys.executable, "-m", "flows.prefect_ops.ui_server", "--port", str(port), "--fd", str(given), *options]
    server = supervised.start("Prefect server", command, os.environ, log, (given,))
    try:
        yield server, url
    finally:
        server.end(PATIENCE)
        log.unlink(missing_ok=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait(server: supervised.Child, url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if not server.lives:
            raise supervised.ChildFailed(f"the Prefect server {_end_of(server)}")
        if prefect_api.answers(url):
            return
        if time.monotonic() > deadline:
            said = server.last_words() or "it printed nothing"
            raise supervised.ChildFailed(f"the Prefect server did not answer within {START_SECONDS:.0f} s: {said}")
        time.sleep(0.2)


def _end_of(server: supervised.Child) -> str:
    code, said = server.process.returncode, server.last_words()
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}" + (f": {said}" if said else "")
    return f"exited with code {code}: {said or 'set PREFECT_SERVER_LOGGING_LEVEL=WARNING to see why'}"


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
