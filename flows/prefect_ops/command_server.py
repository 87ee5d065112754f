"""Prefect for one command: a private server while the command runs, unless the environment names one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.config import PROJECT
from flows.execution import orphan_guard
from flows.notes.end_text import HERE
from flows.prefect_ops.own_server import own_server
from flows.prefect_ops.prefect_api import client_of_environment
from flows.prefect_ops.serve import sign_in


@contextmanager
def command_server() -> Iterator[Callable[[], None]]:
    """Start a quiet private server unless PREFECT_API_URL is set; yield a function that waits until the server answers."""
    orphan_guard.start()  # before the server, which must not outlive us
    quiet = ("PREFECT_LOGGING_LEVEL", "PREFECT_SERVER_LOGGING_LEVEL")  # a failure is reported in one line of ours
    settings = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"} | dict.fromkeys(quiet, "CRITICAL")
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if "PREFECT_API_URL" in os.environ:
        sign_in(os.environ["PREFECT_API_URL"])
        with client_of_environment():
            from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

            from flows.execution.flow_cleanup import HEARTBEAT_SECONDS

            # That server's automation takes a run that is silent for longer for crashed; Prefect's own interval is 180 s.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: HEARTBEAT_SECONDS}):
                yield lambda: None
        return
    home = Path(os.environ.get("PREFECT_HOME", PROJECT / ".cache" / "prefect"))
    with own_server(home, {HERE: "1"}, "--alone") as (_, answers):
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        # A heartbeat thread costs a second at the end of a flow, and without a worker nothing reads the heartbeats.
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield answers
