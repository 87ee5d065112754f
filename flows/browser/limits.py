"""Limits on time and concurrency: a slow reader, a slow store or many requests must not block the browser.

The first byte of a response comes within a deadline; otherwise the response is 503. The reader takes each piece within another
deadline; otherwise the connection is closed. A thread whose response no one waits for finishes by itself, with its own timeouts.
"""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

ANSWER_SECONDS = 60.0
DOWNLOAD_SECONDS = 1800.0  # a file of many gigabytes is fully hashed before its first byte
PIECE_SECONDS = 60.0
CONNECTIONS = 64
STOPPING = "populora.stopping"
"""In each request's scope: an event that is set when the server stops. A response without an end of its own ends then."""
BODY = b"503 Service Unavailable: no answer in time, or too many at once. Try again.\n"


class Limited:
    """An ASGI application that adds deadlines to another one."""

    def __init__(self, app: Any, answer: float = ANSWER_SECONDS, piece: float = PIECE_SECONDS) -> None:
        self._app, self._answer, self._piece = app, answer, piece
        self._left: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End responses that have no end of their own."""
        self._stopping.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = scope | {STOPPING: self._stopping}
        started, given_up = asyncio.Event(), False

        async def sending(message: Any) -> None:
            if given_up:
                raise ConnectionError("no one waits for this response any more")
            started.set()
            await asyncio.wait_for(send(message), self._piece)

        task = asyncio.create_task(self._app(scope, receive, sending))
        beginning = asyncio.create_task(started.wait())
        deadline = max(self._answer, DOWNLOAD_SECONDS) if "/files/" in scope["path"] else self._answer
        try:
            await asyncio.wait({task, beginning}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if started.is_set() or task.done():
                await task
                return
        finally:
            beginning.cancel()
        given_up = True
        self._left.add(task)
        task.add_done_callback(self._forget)
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(BODY)).encode()), (b"retry-after", b"10")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: it could not send, as it was told


class Impatient(H11Protocol):
    """uvicorn's HTTP/1.1 with a deadline for the first request's head, for which uvicorn itself waits forever."""

    patience = 15.0

    def connection_made(self, transport: Any) -> None:
        """Start the clock."""
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(self.patience, self._end_if_silent)

    def _end_if_silent(self) -> None:
        begun: Any = self.cycle  # None until a request's head is complete, despite uvicorn's annotation
        if begun is None and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn, which ends streams before it waits for its connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        app: Any = self.config.app
        app.stop()
        await super().shutdown(sockets)


def config(app: Any) -> uvicorn.Config:
    """Return the browser's server settings."""
    return uvicorn.Config(
        Limited(app),
        http=Impatient,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
