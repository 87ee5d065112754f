"""Something that answers as a Prefect server does where a test says so, and with 404 elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

Answer = Callable[[str, bytes], tuple[int, str]]
"""From a request, such as `GET /api/health`, and its body to a status and JSON."""


@contextmanager
def server_of_version(version: str) -> Iterator[int]:
    """The port of a server that is asked for its version and its health, and nothing else."""
    known = {"GET /api/admin/version": f'"{version}"', "GET /api/health": "true"}
    with server_that(lambda asked, _body: (200, known[asked]) if asked in known else (404, "")) as port:
        yield port


@contextmanager
def server_that(answer: Answer) -> Iterator[int]:
    """The port of a server that gives these answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(f"{self.command} {self.path}", self.rfile.read(int(self.headers.get("Content-Length", 0))))
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
