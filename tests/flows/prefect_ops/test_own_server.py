"""Private Prefect servers: two first ones of a home, and one that ends before it answers."""

import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.prefect_ops import own_server, supervised
from tests.support.servers.prefect_double import server_of_version

SILENT = "http://127.0.0.1:9/api"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_first_servers_of_a_home_both_start(tmp_path: Path) -> None:
    """Both would create the database's tables, and one would find half of them there."""
    with ExitStack() as stack:
        waits = [stack.enter_context(own_server.own_server(tmp_path, {}, "--alone"))[1] for _ in range(2)]
        for wait in waits:
            wait()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit(3)", "exited with code 3: set PREFECT_SERVER_LOGGING_LEVEL=WARNING to see why"),
        ("print('no room', flush=True); raise SystemExit(1)", "exited with code 1: no room"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL$"),
    ],
)
def test_a_server_that_ends_before_it_answers_is_reported(script: str, said: str, tmp_path: Path) -> None:
    server = supervised.start("Prefect server", [sys.executable, "-c", script], {}, tmp_path / "log")
    with pytest.raises(supervised.ChildFailed, match=said):
        own_server._wait(server, SILENT)


@pytest.mark.parametrize(("script", "said"), [("", "it printed nothing"), ("print('slow', flush=True);", "slow")])
def test_a_server_that_does_not_answer_in_time_is_reported(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_server, "START_SECONDS", 1.0)
    server = supervised.start(
        "Prefect server", [sys.executable, "-c", f"import time; {script} time.sleep(60)"], {}, tmp_path / "log"
    )
    try:
        with pytest.raises(supervised.ChildFailed, match=f"did not answer within 1 s: {said}"):
            own_server._wait(server, SILENT)
    finally:
        server.end(0.0)


def test_nobody_else_can_take_the_port_before_the_server_has_it(tmp_path: Path) -> None:
    with own_server.own_server(tmp_path, {}, "--alone") as (server, _):
        assert server.lives
        port = urlsplit(os.environ["PREFECT_API_URL"]).port
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                thief.bind(("127.0.0.1", port))


def test_an_answer_of_somebody_else_is_not_taken_for_that_of_a_server_that_has_ended(tmp_path: Path) -> None:
    server = supervised.start("Prefect server", [sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path / "log")
    server.process.wait()
    with server_of_version("3.2.1") as port, pytest.raises(supervised.ChildFailed, match="exited with code 3"):
        own_server._wait(server, f"http://127.0.0.1:{port}/api")
