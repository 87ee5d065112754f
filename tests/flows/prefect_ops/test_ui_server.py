"""The server's socket: inherited from the process that told others the address, and kept over restarts."""

import http.client
import os
import socket
import sys
from pathlib import Path

from flows.config import PROJECT
from flows.prefect_ops import supervised

SERVER = """
from flows.prefect_ops import ui_server

async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"ours"})

ui_server.listen_and_serve(app, ui_server.options().parse_args(), "warning")
"""


def asked(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/")
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


def test_the_server_answers_on_the_socket_that_it_inherits_also_after_a_restart(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given, port = listening.fileno(), listening.getsockname()[1]
        command = [sys.executable, "-c", SERVER, "--port", str(port), "--fd", str(given)]
        variables = {**os.environ, "PYTHONPATH": str(PROJECT)}
        child = supervised.start("server", command, variables, tmp_path / "log", (given,))
        try:
            assert asked(port) == b"ours"
            child.process.kill()
            child.process.wait()
            assert supervised.keep([child]) == ["server"]
            assert asked(port) == b"ours"
        finally:
            child.end(4.0)
        assert child.last_words() == ""
