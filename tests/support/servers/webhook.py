"""A webhook on this machine that keeps what it is sent, and a mail server that does."""

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any


@contextmanager
def webhook(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and the JSON bodies that it gets, each with the path under `path`. It answers with `status`."""
    got: list[dict[str, Any]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(json.loads(body) | {"path": self.path})
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with _served(HTTPServer(("127.0.0.1", 0), Answer)) as port:
        yield f"http://127.0.0.1:{port}/hook?token=SECRET-TOKEN", got


@contextmanager
def mail_server() -> Iterator[tuple[int, list[str]]]:
    """Its port, and the letters that it gets, as they are sent."""
    letters: list[str] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().strip():
                word = line.split()[0].upper()
                if word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = []
                    while (text := self.rfile.readline().decode()).rstrip("\r\n") != ".":
                        lines.append(text)
                    letters.append("".join(lines))
                self.wfile.write(b"221 bye\r\n" if word == "QUIT" else b"250 yes\r\n")
                if word == "QUIT":
                    return

    with _served(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)) as port:
        yield port, letters


@contextmanager
def _served(server: socketserver.TCPServer) -> Iterator[int]:
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
