"""A page of somebody else: it tries every way that a web page has into servers on its visitor's machine, and says what it got.

`serving` gives it an origin of its own. `rebinding` gives it the very origin of our server: the first answers come from the
page's owner, later connections end at ours, which is what a name does that is rebound to 127.0.0.1.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

PAGE = Path(__file__).with_suffix(".html").read_bytes()


class _Owner(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = PAGE
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[int]:
    """The port of 127.0.0.1 on which the page is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Owner)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def rebinding(port: int, owner: int) -> Iterator[Event]:
    """127.0.0.2:`port`: connections end at the page's owner until the event is set, then at 127.0.0.1:`port`."""
    moved, listener = Event(), socket.create_server(("127.0.0.2", port))

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port if moved.is_set() else owner))
                Thread(target=_relay, args=(near, far), daemon=True).start()

    Thread(target=accept, daemon=True).start()
    try:
        yield moved
    finally:
        listener.close()


def _relay(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def attempts(url: str, browser_url: str, deployment: str, flow: str) -> list[dict[str, Any]]:
    """Everything that the page tries: {name, how, url, ...} for its function `attack`."""
    run = json.dumps({"state": {"type": "SCHEDULED"}, "job_variables": {"command": "touch /tmp/owned", "env": {"PATH": "/tmp"}}})
    create = f"{url}/api/deployments/{deployment}/create_flow_run"
    posts = {
        "start a run": (create, run),
        "start a run past deployments": (f"{url}/api/flow_runs/", json.dumps({"flow_id": flow})),
        "make a work pool": (f"{url}/api/work_pools/", json.dumps({"name": "foreign", "type": "process"})),
        "list deployments": (f"{url}/api/deployments/filter", "{}"),
        "ask for the password": (f"{url}/enter", "a.b.c"),
    }
    found: list[dict[str, Any]] = []
    for name, (address, body) in posts.items():
        post = {"how": "fetch", "method": "POST", "url": address, "body": body}
        found.append(post | {"name": f"{name}: JSON", "type": "application/json"})
        found.append(post | {"name": f"{name}: plain text", "type": "text/plain"})
        found.append(post | {"name": f"{name}: without asking first", "mode": "no-cors", "type": "text/plain"})
        found.append({"name": f"{name}: a form", "how": "form", "url": address, "body": body})
    reads = ("/api/admin/settings", "/api/health", "/ui-settings", "/enter")
    for base, paths in ((url, reads), (browser_url, ("/", "/healthz", "/metrics"))):
        found += [{"name": f"read {base.rpartition(':')[2]}{path}", "how": "fetch", "url": base + path} for path in paths]
        found.append({"name": f"{base.rpartition(':')[2]} in a frame", "how": "element", "tag": "iframe", "url": f"{base}/"})
    found.append({"name": "a picture of the UI", "how": "element", "tag": "img", "url": f"{url}/v2/completed.svg"})
    sockets = ("events/in", "events/out", "logs/out", "task_runs/subscriptions/scheduled")
    found += [{"name": f"socket {one}", "how": "socket", "url": f"{url.replace('http', 'ws')}/api/{one}"} for one in sockets]
    return found
