"""Prefect's server and UI behind our own gate.

Added to Prefect: Host and Origin checks (flows/servers/gate.py), a password, a link that opens the UI
(flows/servers/login_link.py), a content security policy, and transactions of SQLite that wait their turn.

The UI of Prefect 3.8 requests an analytics host even when analytics are off, and logos from a content network. The policy makes
the browser refuse both. `python -m flows.prefect_ops.ui_server --host 127.0.0.1 --port 4200`; everything else is Prefect's own
settings. `--alone` is the server of one command: no page, no schedules.
"""

import argparse
import os
import sys
from typing import Any

import uvicorn

from flows.execution import gc_tuning
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
    "PREFECT_UI_API_URL": "/api",  # relative: right behind any port, tunnel or proxy
    # Slots of runs that died must not leak with the memory of a server that was restarted.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # SQLite writes one transaction at a time: larger batches keep a burst of tasks from blocking the next flow's start.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # how long SQLite waits for its lock: on a busy machine the default loses events
    # The store is the truth: what the server remembers of finished runs may go after a while, so that its database stays bounded.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(14 * 24 * 3600),
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P3D",
}
"""Prefect's settings for our servers; the environment wins."""

ALONE = {
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # a second of every start
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "false",
}
"""What the server of one command does without: nobody looks at it, and it has no automations."""


PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"


class PolicyHeaders:
    """An ASGI application whose every answer carries the policy."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request: headers are added as the answer starts."""

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer")]
                message = message | {"headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self._app(scope, receive, sending)


def take_turns() -> None:
    """Makes Prefect's transactions take SQLite's lock as they begin, and wait for it.

    They took it at their first write, and were refused if another had written since they read: every few generations the client
    of a run was answered 503 and slept for two seconds.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration  # noqa: PLC0415  settings first

    begin = AioSqliteConfiguration.begin_transaction

    def begin_immediately(self: Any, session: Any, with_for_update: bool = False) -> Any:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = begin_immediately  # type: ignore[method-assign]


def walled(app: Any, host: str, password: str) -> Any:
    """Prefect's application behind everything that keeps others out."""
    return Gate(Entrance(PolicyHeaders(app), password), names_of(host), closed=("/api", "/docs", "/openapi.json"))


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m flows.prefect_ops.ui_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4200)
    parser.add_argument("--alone", action="store_true", help="without the page and without schedules")
    arguments = parser.parse_args()
    for name, value in (SETTINGS | (ALONE if arguments.alone else {})).items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("PREFECT_UI_URL", f"http://{arguments.host}:{arguments.port}")
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = os.environ["PREFECT_UI_URL"]  # by default it lets every page read answers
    password = os.environ.get(PASSWORD, "")
    if ":" not in password:
        sys.exit(f"{PASSWORD} is not set: whoever reaches this server could start programs; give it user:password")
    if home := os.environ.get("PREFECT_HOME"):  # not into the package, as is the default: who serves may not be who installed
        os.environ.setdefault("PREFECT_UI_STATIC_DIRECTORY", os.path.join(home, "ui"))
    from prefect.server.api.server import create_app  # noqa: PLC0415  it reads the settings when it is imported

    take_turns()
    app = walled(create_app(final=True, ephemeral=arguments.alone), arguments.host, password)
    level = os.environ.get("PREFECT_SERVER_LOGGING_LEVEL", "warning").lower()
    with gc_tuning.relaxed_gc():
        uvicorn.run(app, host=arguments.host, port=arguments.port, log_level=level, timeout_graceful_shutdown=3)


if __name__ == "__main__":
    main()
