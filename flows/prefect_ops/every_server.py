"""The Prefect servers that runs of this machine may use, one after the other, for a command that sets something up on each.

There are two: the one of `populora serve`, and the private one that a plain `populora run` starts, each with a database in its
own home. A server that is not running is started for a moment. With PREFECT_API_URL there is that one only. Imports no Prefect.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from flows.config import PROJECT
from flows.execution import orphan_guard
from flows.prefect_ops import prefect_api, serve
from flows.prefect_ops.own_server import own_server
from flows.prefect_password import PASSWORD

QUIET = ("PREFECT_LOGGING_LEVEL", "PREFECT_SERVER_LOGGING_LEVEL")
Found = TypeVar("Found")


def quiet() -> None:
    """Keep Prefect from writing to the terminal, before it is imported: a failure is reported in one line of ours."""
    for name in QUIET:
        os.environ.setdefault(name, "CRITICAL")


def on_every_server(do: Callable[[], Found], home: Path = serve.HOME) -> dict[str, Found]:
    """Do it with each server as Prefect's own, and return what it gives by server. `home` is the folder of `populora serve`.

    Raises ServerUnreachable, ConfigError or ChildFailed.
    """
    orphan_guard.start()  # before a server, which must not outlive us
    found = {}
    for label, server in _servers(home):
        with server:
            found[label] = do()
    return found


def _servers(home: Path) -> Iterator[tuple[str, AbstractContextManager[None]]]:
    if url := os.environ.get("PREFECT_API_URL"):
        yield f"the server at {url}", _client_of(url, home)
        return
    plain = Path(os.environ.get("PREFECT_HOME", PROJECT / ".cache" / "prefect"))
    yield "populora run", _private(plain)
    running = serve.address(home)
    yield "populora serve", _private(home / "prefect") if running is None else _client_of(f"{running['url']}/api", home)


@contextmanager
def _private(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # its database has addresses, and the key to them
    with ExitStack() as stack:
        _, wait = stack.enter_context(own_server(folder, {}, "--alone"))
        wait()
        stack.enter_context(prefect_api.client_of_environment())
        yield


@contextmanager
def _client_of(url: str, home: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ("PREFECT_API_URL", PASSWORD)}
    os.environ["PREFECT_API_URL"] = url
    try:
        serve.sign_in(url, home)
        prefect_api.require(url)
        with prefect_api.client_of_environment():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
