"""Prefect's server and UI behind our own gate.

Added to Prefect: Host and Origin checks (flows/servers/gate.py), a password, a link that opens the UI
(flows/servers/login_link.py), a content security policy, SQLite transactions that wait for the lock, and
migrations in turn.

The UI of Prefect 3.8 requests an analytics host even when analytics are off, and logos from a content network. The policy makes
the browser refuse both. `python -m flows.prefect_ops.ui_server --host 127.0.0.1 --port 4200`; everything else is configured
by Prefect's own settings. `--alone` is the server of one command: no page, no schedules.
"""

import argparse
import asyncio
import fcntl
import importlib
import os
import socket
import sys
import time
from contextlib import suppress
from typing import IO, Any

import sqlalchemy
import uvicorn

from flows.execution import gc_tuning
from flows.prefect_ops.form_server import FormServer
from flows.servers.gate import Gate, names_of
from flows.servers.login_link import Entrance

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "frame-ancestors 'none'",
    )
)
SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_UI_API_URL": "/api",  # relative: correct behind any port, tunnel or proxy
    # Slots of dead runs must not leak when a server loses its memory in a restart.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # SQLite writes one transaction at a time: larger batches keep a burst of tasks from blocking the next flow's start.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # how long SQLite waits for its lock: the default loses events on a busy machine
    # The store is authoritative: the server may forget finished runs after a while, so that its database stays bounded.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(14 * 24 * 3600),
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P3D",
}
"""Prefect's settings for our servers. The environment takes precedence."""

ALONE = {
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # saves a second at every start
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "false",
}
"""What the server of one command switches off: no one views it, and it has no automations."""


TURN_SECONDS = 120.0
"""How long a server may create or upgrade its database while another waits: it takes seconds."""

PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"
STARTUP_FAILURE = 3
"""The exit code of a server that could not start; uvicorn's own."""


class PolicyHeaders:
    """An ASGI application that adds the policy to each response."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request. Headers are added when the response starts."""

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer")]
                message = message | {"headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self._app(scope, receive, sending)


def take_turns() -> None:
    """Make Prefect's transactions take SQLite's lock when they begin, and wait for it.

    By default they take it at their first write, and fail if another has written since they read. Every few generations a run's
    client then gets a 503 and sleeps for two seconds.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration  # noqa: PLC0415  after the settings

    begin = AioSqliteConfiguration.begin_transaction

    def begin_immediately(self: Any, session: Any, with_for_update: bool = False) -> Any:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = begin_immediately  # type: ignore[method-assign]


def migrate_in_turn() -> None:
    """Let one server at a time create or upgrade an SQLite database.

    Two first servers of a database at once, such as those of two runs started in a fresh clone, would each meet the other's
    half-made tables, and one would exit.
    """
    from prefect.server.database.interface import PrefectDBInterface  # noqa: PLC0415  after the settings

    create = PrefectDBInterface.create_db

    async def create_in_turn(self: Any) -> None:
        url = sqlalchemy.engine.make_url(self.database_config.connection_url)
        file = url.database if url.get_backend_name() == "sqlite" else ""
        if not file or file.startswith(("file:", ":memory:")):
            await create(self)
            return
        with open(f"{file}.lock", "w") as lock:  # released when it is closed or the process dies
            await _wait_for_turn(lock)
            await create(self)

    PrefectDBInterface.create_db = create_in_turn  # type: ignore[method-assign]


async def _wait_for_turn(lock: IO[str]) -> None:
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                message = f"waited {TURN_SECONDS:.0f} s for {lock.name}, which other Prefect servers hold"
                print(message, file=sys.stderr, flush=True)  # the server's log may be too quiet for the exception
                raise TimeoutError(message) from None
        except OSError:  # no locks on this file system
            return
        await asyncio.sleep(0.1)


def walled(app: Any, host: str, password: str) -> Any:
    """Return Prefect's application behind the gate, the login link, the links to forms and the policy."""
    return Gate(
        Entrance(FormServer(PolicyHeaders(app)), password),
        names_of(host),
        closed=("/api", "/docs", "/openapi.json"),
        probes=("/api/health", "/api/ready"),
    )


def options() -> argparse.ArgumentParser:
    """Return the parser of this server's options."""
    parser = argparse.ArgumentParser(prog="python -m flows.prefect_ops.ui_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4200)
    parser.add_argument("--fd", type=int, help="an inherited socket that listens there: otherwise this process makes its own")
    parser.add_argument("--alone", action="store_true", help="run without the UI and without schedules")
    return parser


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    arguments = options().parse_args()
    for name, value in (SETTINGS | (ALONE if arguments.alone else {})).items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_UI_URL", f"http://{arguments.host}:{arguments.port}")
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = os.environ["PREFECT_UI_URL"]  # by default, any page may read responses
    password = os.environ.get(PASSWORD, "")
    if ":" not in password:
        sys.exit(f"{PASSWORD} is not set: anyone who reaches this server could start programs; set it to user:password")
    if home := os.environ.get("PREFECT_HOME"):  # default: in the package, which this user may not own
        os.environ.setdefault("PREFECT_UI_STATIC_DIRECTORY", os.path.join(home, "ui"))
    from prefect.server.api.server import create_app  # noqa: PLC0415  reads the settings on import

    importlib.import_module("flows.notes.apprise_block")  # otherwise its automations cannot send to blocks of this kind
    take_turns()
    migrate_in_turn()
    app = walled(create_app(final=True, ephemeral=arguments.alone), arguments.host, password)
    level = os.environ.get("PREFECT_SERVER_LOGGING_LEVEL", "warning").lower()
    with gc_tuning.relaxed_gc():
        listen_and_serve(app, arguments, level)


def listen_and_serve(app: Any, arguments: argparse.Namespace, level: str) -> None:
    """Serve on the inherited socket, or on host and port."""
    config = uvicorn.Config(app, host=arguments.host, port=arguments.port, log_level=level, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    # Its own option `fd` takes the socket for a Unix one, and then leaves Nagle's delay on.
    with suppress(KeyboardInterrupt):  # sent again once it has stopped
        server.run(sockets=None if arguments.fd is None else [socket.socket(fileno=arguments.fd)])
    if not server.started:
        sys.exit(STARTUP_FAILURE)


if __name__ == "__main__":
    main()
