"""`populora browse`: the artifact browser as a process of its own."""

import socket
import sys
from collections.abc import Sequence

import uvicorn

from flows.browser.app import make_app
from flows.browser.limits import config
from flows.config import ConfigError
from flows.servers.gate import LOOPBACK, names_of


def serve(store_url: str, host: str = LOOPBACK[0], port: int = 8750, names: Sequence[str] = ()) -> int:
    """Serves the store's pages until it is stopped; the exit code. Raises ConfigError where it cannot listen.

    It answers under this machine's own names, `host`, and `names`.
    """
    listening = listen(host, port)
    local = host in LOOPBACK
    app = make_app(store_url, names_of(host, names))
    name = f"[{host}]" if ":" in host else host
    print(f"browser    http://{name}:{listening.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
    if not local:
        print("populora: anybody who reaches this address reads every run of the store", file=sys.stderr)
    uvicorn.Server(config(app)).run(sockets=[listening])
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError when the port is taken or the address is not this machine's."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: between 0 (any free one) and 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from error
