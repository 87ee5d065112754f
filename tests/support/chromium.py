"""A real browser without a screen, driven through its debugging port: pages are opened, read, and photographed."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.servers import s3_servers

PROGRAM = shutil.which("chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync")
FLAGS += ("--disable-dev-shm-usage", "--window-size=1200,900", "--hide-scrollbars")
# What the browser answers to a question that the page it was asked of did not outlive.
BETWEEN_PAGES = ("navigated or closed", "context was destroyed", "Cannot find context", "Cannot find default execution context")


class Refused(AssertionError):
    """The browser does not do a command: the message says why."""


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.events: list[dict[str, Any]] = []

    def do(self, method: str, **parameters: Any) -> Any:
        """One command of the debugging protocol."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise Refused(answer["error"].get("message", ""))
                return answer["result"]
            self.events.append(answer)

    def open(self, address: str) -> None:
        """Goes there; returns when the page has loaded."""
        self.do("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def logged(self) -> list[str]:
        """What the browser has written to its console since `Log.enable`: errors, warnings and what its policies refused."""
        entries = [event["params"]["entry"] for event in self.events if event["method"] == "Log.entryAdded"]
        return [f"{entry['level']}: {entry['text']} ({entry.get('url', '')})" for entry in entries]

    def value(self, expression: str) -> Any:
        """What JavaScript in the page gives, promises awaited."""
        found = self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 90) -> None:
        """Waits until the expression is true, also across a click that leads to another page."""
        deadline = time.monotonic() + seconds
        while not self._holds(expression):
            assert time.monotonic() < deadline, (expression, self.value("document.body.innerText")[:600])
            time.sleep(0.2)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.value(f"Boolean({expression})"))
        except Refused as error:
            if not any(words in str(error) for words in BETWEEN_PAGES):
                raise
            return False

    def picture(self, file: Path) -> None:
        """What a person would see, down to the page's end."""
        size = self.do("Page.getLayoutMetrics")["cssContentSize"]
        taken = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=size | {"scale": 1})
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browser(*flags: str) -> Iterator[Page]:
    """A browser with an empty profile and one tab."""
    assert PROGRAM is not None
    port = s3_servers.free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [PROGRAM, *FLAGS, *flags, f"--user-data-dir={profile}", f"--remote-debugging-port={port}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_tab(port), max_size=None, open_timeout=60) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait(30)


def _tab(port: int) -> str:
    deadline = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                return next(str(one["webSocketDebuggerUrl"]) for one in json.loads(answer.read()) if one["type"] == "page")
        except (OSError, StopIteration):
            assert time.monotonic() < deadline, "the browser does not start"
            time.sleep(0.2)
