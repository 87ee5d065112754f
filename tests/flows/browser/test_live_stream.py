"""The stream of a run's live page: events follow the run, no text ends one, and a stream ends with its run, reader or server."""

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from fastapi.testclient import TestClient

from flows.browser import limits
from flows.browser.app import make_app
from flows.browser.limits import STOPPING
from flows.browser.live_stream import BEAT, FULL, Streams
from flows.browser.serve import listen
from flows.run.lease import DOING, hold
from flows.run.run import Run
from flows.storage import AccessRefused, NotStored, StoreUnavailable
from flows.store.file_store import FileStore
from tests.support import example_run

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run that is at work by its lease, and a finished one."""
    root = tmp_path_factory.mktemp("store")
    with hold(FileStore(root), "going") as epoch:
        example_run.build(Run(FileStore(root), "going", epoch), 1)
    values = {"host": "elsewhere", "pid": 1, "beat": 5, "token": "t", DOING: {"planned": 9, "steps": []}}
    (root / "going" / ".lease").write_text(json.dumps(values))
    with hold(FileStore(root), "whole") as epoch:
        example_run.build(Run(FileStore(root), "whole", epoch), 3)
    return root


@pytest.fixture(scope="module")
def pages(store):
    with TestClient(make_app(str(store)), base_url="http://127.0.0.1") as found:
        yield found


def events(text):
    """(name, data) of each event of a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_the_stream_of_a_finished_run_tells_it_and_ends(pages):
    with pages.stream("GET", "/runs/whole/live/events") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store" and "default-src 'none'" in answer.headers["content-security-policy"]
        text = answer.read().decode()
    assert text.startswith("retry: ")
    (name, state), end = events(text)
    assert name == "state" and end == ("end", {}) and state["condition"] == "finished"
    assert state["fields"]["headline"] == "finished: 3 of 3 generations done"


def test_no_text_can_end_an_event():
    values = {"condition": "finished", "text": "a\n\nevent: end\ndata: {}\n\n\r\u2028" + SCRIPT}
    sent = run_stream(Streams(), [values])
    assert [name for name, _ in events(sent.decode())] == ["state", "end"] and events(sent.decode())[0][1] == values


def run_stream(streams, states, *, leave_after=None, stop_after=None, every=0.01):
    """The bytes of a stream whose looks give these states; the last one again and again."""
    left, sent = list(states), []
    stopping = asyncio.Event()

    def look():
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def main():
        leaving = asyncio.Event()

        async def receive():
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if leave_after is not None and len(sent) > leave_after:
                leaving.set()
            if stop_after is not None and len(sent) > stop_after:
                stopping.set()

        await asyncio.wait_for(streams.stream(look, every)({"type": "http", STOPPING: stopping}, receive, send), 30)

    asyncio.run(main())
    assert sent[0]["type"] == "http.response.start"
    ended = sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert ended == (leave_after is None) or sent[0]["status"] == 503
    return b"".join(message.get("body", b"") for message in sent)


def test_an_event_comes_when_something_has_changed(monkeypatch):
    first, second = {"condition": "running", "at": 1}, {"condition": "running", "at": 2}
    sent = run_stream(Streams(), [first, first, first, second, {"condition": "finished"}])
    assert [values.get("at") for _, values in events(sent.decode())] == [1, 2, None, None]
    monkeypatch.setattr("flows.browser.live_stream.BEAT_SECONDS", 0.001)
    assert run_stream(Streams(), [first, first, first, {"condition": "finished"}]).count(BEAT) >= 2


def test_a_store_that_does_not_answer_is_told_and_asked_again():
    fault = StoreUnavailable("bucket: timed out")
    sent = run_stream(Streams(), [{"condition": "running"}, fault, {"condition": "finished"}])
    assert events(sent.decode())[1] == ("fault", {"message": "The store does not answer: bucket: timed out"})
    assert events(sent.decode())[-1][0] == "end"


def test_a_store_that_refuses_access_is_told_and_asked_again_and_a_run_that_is_gone_ends_the_stream():
    refused = AccessRefused("store s3://b: r/run.json: the credentials have expired")
    sent = run_stream(Streams(), [refused, {"condition": "running"}, {"condition": "finished"}])
    found = events(sent.decode())
    assert [name for name, _ in found] == ["fault", "state", "state", "end"]
    assert found[0][1] == {"message": f"The store refuses access: {refused}"}
    gone = run_stream(Streams(), [{"condition": "running"}, NotStored("There is no run r."), {"condition": "running"}])
    assert [name for name, _ in events(gone.decode())] == ["state", "fault", "end"]


def test_a_stream_ends_with_its_reader_and_with_the_server():
    streams = Streams(1)
    going = [{"condition": "running"}]
    assert b"event: state" in run_stream(streams, going, leave_after=2)
    assert b"event: end" not in run_stream(streams, going, stop_after=2)
    assert streams.enter() and not streams.enter(), "both have given their places back"


def test_there_are_so_many_streams_and_no_more():
    streams = Streams(1)
    assert streams.enter()
    assert run_stream(streams, [{"condition": "running"}]).decode() == FULL


class Serving:
    """The browser as `populora browse` serves it, in a thread."""

    def __init__(self, store):
        self._socket = listen("127.0.0.1", 0)
        self.address = self._socket.getsockname()
        self.server = limits.Server(limits.config(make_app(str(store))))
        self.server.install_signal_handlers = lambda: None
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self):
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def stop(self):
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def __exit__(self, *_):
        self.stop()

    def open(self, path):
        """A connection that has asked for a stream, and its first bytes."""
        connection = socket.create_connection(self.address, timeout=30)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        found = b""
        while b"event: " not in found and b"503" not in found:
            found += (piece := connection.recv(65_536))
            assert piece, found
        return connection, found

    def status(self, path, **headers):
        request = urllib.request.Request(f"http://127.0.0.1:{self.address[1]}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


def test_a_server_with_streams_answers_and_stops_cleanly(store, caplog):
    with Serving(store) as serving:
        open_ones = [serving.open("/runs/going/live/events") for _ in range(16)]
        assert all(b"200 OK" in found for _, found in open_ones)
        full, found = serving.open("/runs/going/live/events")
        assert b"503" in found and serving.status("/runs/going") == 200
        full.close()
        open_ones.pop()[0].close()  # its reader leaves: its place is free again
        while b"503" in (again := serving.open("/runs/going/live/events"))[1]:
            again[0].close()
        assert b"200 OK" in again[1]
        foreign = {"Origin": "http://attacker.example"}
        assert serving.status("/runs/going/live/events", **foreign) == 403
        assert serving.status("/runs/going/live/events", Host="attacker.example") == 421
        serving.stop()
        rest = b""
        while piece := again[0].recv(65_536):
            rest += piece
        assert rest.endswith(b"0\r\n\r\n"), "the stream ended as HTTP says"
        for connection, _ in [*open_ones, again]:
            connection.close()
    assert "Cancel" not in caplog.text and "Traceback" not in caplog.text
