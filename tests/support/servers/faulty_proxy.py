"""A proxy in front of an S3 server that does to requests what networks and servers do: at random, and only so many times."""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("503", "500", "slow_down", "timeout", "reset", "slow", "truncated", "wrong_bytes", "lost_answer", "half_request")


class FaultyProxy(ThreadingHTTPServer):
    """Serves on a loopback port; `faults` counts what it has done."""

    daemon_threads = True

    def __init__(self, endpoint: str, seed: int, rate: float, most: int, stall: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(endpoint).netloc
        self.rate, self.most, self.stall = rate, most, stall
        self.faults: Counter[str] = Counter()
        self._rng, self._lock = random.Random(seed), threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "FaultyProxy":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what this server is for."""

    def draw(self) -> str:
        with self._lock:
            if self.faults.total() >= self.most or self._rng.random() >= self.rate:
                return ""
            fault = self._rng.choice(FAULTS)
            self.faults[fault] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def handle_expect_100(self) -> bool:
        self.send_response_only(100)
        self.end_headers()
        return True

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.draw()
        if fault in ("503", "500", "slow_down"):
            self._refuse(fault)
        elif fault in ("reset", "timeout"):
            time.sleep(self.server.stall if fault == "timeout" else 0.0)
            self._reset()
        elif fault == "half_request" and body:
            self._forward(body[: len(body) // 2], declared=len(body), answer=False)
            self._reset()
        else:
            status, headers, answer = self._forward(body, declared=len(body))
            if fault == "lost_answer":
                self._reset()
            else:
                self._answer(status, headers, answer, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _forward(self, body: bytes, declared: int, answer: bool = True) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "content-length", "connection"):
                    connection.putheader(name, value)
            if declared or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(declared))
            connection.endheaders(body)
            if not answer:
                return 0, [], b""
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: str) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        is_object = status == 200 and self.command == "GET" and "list-type" not in self.path and "uploads" not in self.path
        if fault == "wrong_bytes" and body and is_object:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == "truncated" and body:
            self.wfile.write(body[: len(body) // 2])
            self._reset()
        elif fault == "slow":
            for at in range(0, len(body), max(len(body) // 3, 1)):
                self.wfile.write(body[at : at + max(len(body) // 3, 1)])
                time.sleep(self.server.stall / 10)
        else:
            self.wfile.write(body)

    def _refuse(self, fault: str) -> None:
        code = {"503": "ServiceUnavailable", "500": "InternalError", "slow_down": "SlowDown"}[fault]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(500 if fault == "500" else 503)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        """Closes with RST, as a dying server does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
