"""A run's live state as server-sent events: a bounded number of streams that end with their reader, their run or the server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from time import monotonic
from typing import Any

from anyio import to_thread
from starlette.responses import PlainTextResponse, Response

from flows.browser.errors import KINDS, explain
from flows.browser.limits import STOPPING
from flows.run.manifest import Json
from flows.run.run import Retired
from flows.storage import NotStored

STREAMS = 16  # at once, of the server's 64 connections
EVENT_SECONDS = 2.0  # between two looks: a run's heartbeat comes as often
BEAT_SECONDS = 15.0  # of silence, after which a comment shows both sides that the connection lives
LIFE_SECONDS = 3600.0  # the reader's script then connects again
RETRY = b"retry: 3000\n\n"
BEAT = b": beat\n\n"
FULL = "Too many pages follow runs at the moment. The page reloads itself instead.\n"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class Streams:
    """The streams of one server."""

    def __init__(self, most: int = STREAMS) -> None:
        self._most, self._open = most, 0

    def stream(self, look: Callable[[], Json], every: float = EVENT_SECONDS) -> "Stream":
        """Return an ASGI response that sends what `look` returns (called in a thread) whenever it differs from the last time."""
        return Stream(self, look, every)

    def enter(self) -> bool:
        """Count a stream, unless there are too many."""
        if self._open >= self._most:
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        """Count it no more."""
        self._open -= 1


class Stream(Response):
    """One stream."""

    def __init__(self, streams: Streams, look: Callable[[], Json], every: float) -> None:
        super().__init__()
        self._streams, self._look, self._every = streams, look, every

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send events until the run is finished or gone, the reader leaves, or the server stops."""
        if not self._streams.enter():
            await PlainTextResponse(FULL, 503, {"Retry-After": "30"})(scope, receive, send)
            return
        leaving: asyncio.Event = asyncio.Event()
        stopping: asyncio.Event = scope.get(STOPPING) or leaving
        watching = asyncio.create_task(_until_gone(receive, leaving))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            async for piece in self.pieces(leaving, stopping):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not leaving.is_set():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watching.cancel()
            self._streams.leave()

    async def pieces(self, *ending: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield events and heartbeats until one of the events is set, or the run is finished or gone."""
        yield RETRY
        began = said = monotonic()
        before = b""
        while not _ended(ending) and monotonic() - began < LIFE_SECONDS:
            asking = asyncio.create_task(self._event())
            try:
                while not await _first_of(ending, BEAT_SECONDS, asking):  # a store may take minutes to answer
                    yield BEAT
                if _ended(ending):
                    return
                piece, finished = asking.result()
            finally:
                asking.cancel()
            if piece != before:
                before, said = piece, monotonic()
                yield piece
            elif monotonic() - said >= BEAT_SECONDS:
                said = monotonic()
                yield BEAT
            if finished:
                yield b"event: end\ndata: {}\n\n"
                return
            await _first_of(ending, self._every)

    async def _event(self) -> tuple[bytes, bool]:
        try:
            values = await to_thread.run_sync(self._look, abandon_on_cancel=True)
        except KINDS as error:
            fault, gone = explain(error), isinstance(error, NotStored) and not isinstance(error, Retired)
            return _message("fault", {"message": f"{fault.heading}: {fault.message}"}), gone
        return _message("state", values), values["condition"] == "finished"


def _message(name: str, values: Json) -> bytes:
    # JSON without line breaks, and ASCII: no text in it can end the event or begin another field.
    return f"event: {name}\ndata: {json.dumps(values, ensure_ascii=True)}\n\n".encode("ascii")


async def _until_gone(receive: Any, leaving: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    leaving.set()


def _ended(ending: Iterable[asyncio.Event]) -> bool:
    return any(event.is_set() for event in ending)


async def _first_of(ending: Iterable[asyncio.Event], seconds: float, *tasks: asyncio.Task[Any]) -> bool:
    """Wait for an event or a task. Returns whether one came in time."""
    waits = [asyncio.create_task(event.wait()) for event in ending]
    try:
        done, _ = await asyncio.wait([*waits, *tasks], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in waits:
            task.cancel()
