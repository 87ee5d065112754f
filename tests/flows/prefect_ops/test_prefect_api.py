"""What a server is told by those who ask it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from flows.prefect_ops import prefect_api
from flows.prefect_password import PASSWORD


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, str | None]]]:
    """The URL of a server, and the Authorization that each path was asked with."""
    seen: dict[str, str | None] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen[self.path] = self.headers.get("Authorization")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true" if self.path.endswith("/health") else b'"3.2.1"')

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv(PASSWORD, "populora:secret")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/api", seen
        finally:
            server.shutdown()
            thread.join()


def test_whoever_is_asked_for_its_health_is_not_sent_the_password(told: tuple[str, dict[str, str | None]]) -> None:
    url, seen = told
    assert prefect_api.answers(url) and seen == {"/api/health": None}


def test_whoever_has_taken_our_port_is_not_sent_the_password(told: tuple[str, dict[str, str | None]]) -> None:
    url, seen = told
    assert prefect_api.version_of_stranger(url) == "3.2.1" and seen == {"/api/admin/version": None}
    assert prefect_api.version_of(url) == "3.2.1" and str(seen["/api/admin/version"]).startswith("Basic ")
