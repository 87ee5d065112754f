"""`populora browse`: the artifact browser as a separate process."""

import gc
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from flows.browser.app import make_app
from flows.browser.limits import Server, config
from flows.browser.preload import preload
from flows.config import ConfigError
from flows.pages.library import Library
from flows.program import PLAIN, Commands
from flows.servers.gate import LOOPBACK, names_of

LOAD_SECONDS = 5.0
"""After which the plotting library and the newest runs are loaded: pages that are asked for at once do not share their core."""


def serve(
    store_url: str,
    host: str = LOOPBACK[0],
    port: int = 8750,
    names: Sequence[str] = (),
    commands: Commands = PLAIN,
) -> int:
    """Serve the store's pages until stopped, and return the exit code. Raises ConfigError if it cannot listen.

    It answers under this machine's own names, `host`, and `names`. `commands` writes the commands on pages.
    """
    listening = listen(host, port)
    local = host in LOOPBACK
    library = Library(store_url)
    if "://" not in store_url and not Path(store_url).exists():
        print(f"populora: there is no folder {store_url} yet", file=sys.stderr)
    app = make_app(library, names_of(host, names), commands=commands)
    name = f"[{host}]" if ":" in host else host
    print(f"browser    http://{name}:{listening.getsockname()[1]}/  (Ctrl-C to stop)", flush=True)
    if not local:
        print("populora: anyone who reaches this address can read all runs of the store", file=sys.stderr)
    gc.freeze()  # what is loaded now stays: a page's collections need not look at it
    loading = threading.Timer(LOAD_SECONDS, preload, [library])
    loading.daemon = True
    loading.start()
    Server(config(app)).run(sockets=[listening])
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError if the port is in use or the address is not this machine's."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: must be between 0 (any free port) and 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from error
