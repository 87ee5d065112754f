"""S3 servers and addresses that the store declines."""

import os
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from flows.audit.conformance import conformance
from flows.storage import StoreRefused, StoreUnavailable, open_store
from tests.support import s3_servers


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3://b/../x", "s3://b/a b", "s3://b/x?y=1", "s3://b//x"])
def test_urls_that_name_no_prefix_are_refused(url: str) -> None:
    with pytest.raises(StoreRefused):
        open_store(url)


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_servers.environment(f"http://127.0.0.1:{s3_servers.free_port()}").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailable, match=r"Could not connect .* \(7 attempts\)"):
        open_store("s3://bucket/x").read("r/a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(StoreRefused, match="Invalid endpoint: nonsense"):
        open_store("s3://bucket/x")


class Overwriting(BaseHTTPRequestHandler):
    """A server that knows no conditions, as some do not."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes] = {}  # noqa: RUF012

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204)

    def _answer(self, status: int) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_server_that_overwrites_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Overwriting) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for name, value in s3_servers.environment(f"http://127.0.0.1:{server.server_address[1]}").items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://bucket/x")
        with pytest.raises(StoreRefused, match="this server ignores If-None-Match and overwrites objects"):
            store.create("smoke/run.json", b"{}")
        assert Overwriting.objects == {}
        (check,) = conformance("s3://bucket/x")
        assert not check.good and "use another server" in check.detail
        server.shutdown()


def test_the_folder_of_locks_is_this_user_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody may write in the temporary folder, and so may have put something else under that name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in s3_servers.environment("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)
    store, folder = open_store("s3://bucket/x"), tmp_path / f"populora-locks-{os.getuid()}"
    with store.lock("smoke"):
        assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with store.lock("smoke"):
        assert folder.stat().st_mode & 0o777 == 0o700
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreRefused, match="is not a folder owned by this user; remove it, or set TMPDIR"), store.lock("smoke"):
        pass
    folder.unlink()
    folder.write_text("")
    with pytest.raises(StoreRefused, match="is not a folder owned by this user"), store.lock("smoke"):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_locks_that_belongs_to_somebody_else_is_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in s3_servers.environment("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "populora-locks-0"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(StoreRefused, match="is not a folder owned by this user"), open_store("s3://bucket/x").lock("smoke"):
        pass
