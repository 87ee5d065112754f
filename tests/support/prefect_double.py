"""Something that answers as a Prefect server does when it is asked for its version, and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread


@contextmanager
def server_of_version(version: str) -> Iterator[int]:
    """The port of such a server."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"/api/admin/version": f'"{version}"', "/api/health": "true"}.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
