"""The part of the Hugging Face hub that an upload uses, on 127.0.0.1: repositories in memory, one commit at a time."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_the-token-of-the-tests"


@dataclass
class FakeHub:
    """What the server holds and was asked. `large`: weights go as Git LFS objects; `answer`: a status for every request."""

    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    large: bool = False
    answer: int = 0

    def respond(self, method: str, path: str, token: str, body: bytes) -> tuple[int, Any]:
        """Return a status and what the response says."""
        self.asked.append((method, path, token))
        if self.answer:
            return self.answer, {"error": f"as told, for {token}"}
        if token != f"Bearer {TOKEN}" and not path.startswith("/objects/"):
            return 401, {"error": f"Invalid credentials: {token}"}
        words = path.strip("/").split("/")
        match [method, *words]:
            case ["PUT", "objects", oid]:
                self.objects[oid] = body
                return 200, {}
            case ["GET", "api", "models", owner, name]:
                return self._model(f"{owner}/{name}")
            case ["GET", "api", "models", owner, name, "resolve" | "revision", *_]:
                return self._model(f"{owner}/{name}")
            case ["POST", "api", "repos", "create"]:
                return self._create(json.loads(body))
            case ["POST", "api", "validate-yaml"]:
                return (400, {"errors": [{"message": "no metadata"}]}) if b"---" not in body else (200, {"warnings": []})
            case ["POST", "api", "models", owner, name, "preupload", "main"]:
                return 200, {"files": [self._mode(file) for file in json.loads(body)["files"]]}
            case ["POST", owner, name, "info", "lfs", "objects", "batch"]:
                return 200, {"transfer": "basic", "objects": [self._place(one) for one in json.loads(body)["objects"]]}
            case ["POST", "api", "models", owner, name, "commit", "main"]:
                return self._commit(f"{owner}/{name}", body)
        return 404, {"error": f"no such address: {path}"}

    def _model(self, name: str) -> tuple[int, Any]:
        if name not in self.private:
            return 404, {"error": "Repository not found"}
        return 200, {"id": name, "modelId": name, "private": self.private[name], "sha": "0" * 40, "siblings": [], "tags": []}

    def _create(self, wanted: dict[str, Any]) -> tuple[int, Any]:
        name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
        hidden = wanted.get("private") or wanted.get("visibility") == "private"
        self.private[name] = bool(hidden)
        self.files[name] = {}
        return 200, {"url": f"{self.url}/{name}", "name": name, "id": "1"}

    def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
        lfs = self.large and file["path"].endswith(".safetensors")
        return {"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, "oid": None}

    def _place(self, one: dict[str, Any]) -> dict[str, Any]:
        return one | {"authenticated": True, "actions": {"upload": {"href": f"{self.url}/objects/{one['oid']}"}}}

    def _commit(self, name: str, body: bytes) -> tuple[int, Any]:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.files[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[name][value["path"]] = self.objects[value["oid"]]
        return 200, {"commitUrl": f"{self.url}/{name}/commit/1", "commitOid": "1", "success": True}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub of its own, for as long as the block lasts."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0].replace(".git/", "/")
            status, value = hub.respond(self.command, path, self.headers.get("Authorization", ""), body)
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status == 404 and value.get("error") == "Repository not found":
                self.send_header("X-Error-Code", "RepoNotFound")  # by which huggingface_hub tells it from a wrong address
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = _do

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
