"""Suites from the Hugging Face hub: a local server answers as the hub does (its interface for lists, its resolve addresses)."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.config import PROJECT
from flows.suites.suite_data import SAMPLES
from stages.core.suites.catalogue import SUITES

REVISION = SUITES["gsm8k"].revision
NEWEST = "b" * 40
LOAD = """
import json, sys
from pathlib import Path
from flows.config import ConfigError
from flows.storage import StoreUnavailable
from flows.suites.suite_data import load
from stages.core.suites.problems import digest
try:
    print(json.dumps({"digest": digest(load(sys.argv[1], None, Path(sys.argv[2])))}))
except (ConfigError, StoreUnavailable) as error:
    print(json.dumps({type(error).__name__: str(error)}))
"""


class Hub(ThreadingHTTPServer):
    """Two datasets: openai/gsm8k at its pinned revision, zwhe99/amc23 withheld, and what was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.asked = files, list[str]()


class Answer(BaseHTTPRequestHandler):
    """The parts of the hub's interface that fetching a dataset's file needs."""

    server: Hub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        if path.startswith(f"/api/datasets/openai/gsm8k/tree/{REVISION}"):
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in self.server.files.items()
            ]
            self._send(json.dumps(listed).encode(), "application/json")
        elif path.startswith("/api/datasets/openai/gsm8k"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self._send(json.dumps({"id": "openai/gsm8k", "sha": REVISION, "siblings": siblings}).encode(), "application/json")
        elif path.startswith(f"/datasets/openai/gsm8k/resolve/{REVISION}/"):
            self._send(self.server.files[path.split(f"{REVISION}/")[1]], "application/octet-stream")
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), "X-Repo-Commit": REVISION}.items():
            self.send_header(name, value)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub whose gsm8k holds the sample's rows, beside files that nobody asks for."""
    rows = [json.loads(line) for line in (SAMPLES / "gsm8k.jsonl").read_text().splitlines()]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"question": row["question"], "answer": row["answer"]} for row in rows]), file)
    server = Hub({"README.md": b"no", "main/test-00000-of-00001.parquet": file.read_bytes(), "main/train-0.parquet": b"no"})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def _load(name: str, cache: Path, hub: Hub) -> dict[str, str]:
    places = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(cache / "home"), "HF_HUB_OFFLINE": "0"}
    environment = os.environ | places | {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-c", LOAD, name, str(cache)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_suite_comes_from_the_hub_once_at_its_pinned_revision_and_is_checked_ever_after(tmp_path: Path, hub: Hub) -> None:
    first = _load("gsm8k", tmp_path / "cache", hub)
    assert list(first) == ["digest"], first
    resolved = {path for path in hub.asked if "/resolve/" in path}
    assert resolved == {f"/datasets/openai/gsm8k/resolve/{REVISION}/main/test-00000-of-00001.parquet"}
    lock = json.loads((tmp_path / "cache/gsm8k/lock.json").read_text())
    data = hub.files["main/test-00000-of-00001.parquet"]
    assert lock["revision"] == REVISION
    assert lock["files"] == {"main/test-00000-of-00001.parquet": hashlib.sha256(data).hexdigest()}

    hub.asked.clear()
    assert _load("gsm8k", tmp_path / "cache", hub) == first and not hub.asked

    place = tmp_path / "cache/gsm8k/main/test-00000-of-00001.parquet"
    place.write_bytes(data[:-1] + b"?")
    wrong = _load("gsm8k", tmp_path / "cache", hub)["ConfigError"]
    assert "its digest is not" in wrong and "remove" in wrong and not hub.asked


@pytest.mark.slow
def test_a_hub_without_the_suite_is_a_service_that_is_not_there(tmp_path: Path, hub: Hub) -> None:
    message = _load("amc23", tmp_path / "cache", hub)["StoreUnavailable"]
    assert message.startswith("suite amc23 from https://huggingface.co/datasets/zwhe99/amc23: ")
    assert message.endswith("give a copy with --data DIR") and "\n" not in message


def test_what_was_pinned_elsewhere_is_refused(tmp_path: Path) -> None:
    from flows.config import ConfigError
    from flows.suites.suite_data import load

    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/lock.json").write_text(json.dumps({"revision": NEWEST, "files": {}}))
    with pytest.raises(ConfigError, match=r"revision bbbbbbbbbbbb…, not 740312add88f…; remove"):
        load("gsm8k", None, tmp_path)
