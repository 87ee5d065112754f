"""A command's Prefect server: with one that the environment names, heartbeats are as frequent as its automations expect."""

import os

import pytest

from flows.execution.flow_cleanup import LOST_AFTER_SECONDS
from flows.prefect_ops import command_server


def test_a_run_on_a_server_of_others_is_heard_before_it_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    monkeypatch.setattr(os, "environ", os.environ.copy())  # the server sets defaults, which other tests must not inherit
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(command_server.orphan_guard, "start", lambda: None)
    with command_server.command_server():
        seconds = PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value()
    assert seconds is not None and 2 * seconds < LOST_AFTER_SECONDS
