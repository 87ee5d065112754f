"""S3 servers and addresses that the store declines."""

import os
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError
from fastapi.testclient import TestClient

from flows.audit.conformance import conformance
from flows.backend import Backend
from flows.browser.app import make_app
from flows.config import RunConfig
from flows.execution import run_stage
from flows.run import lease
from flows.storage import AccessRefused, NotStored, Store, StoreRefused, StoreUnavailable, open_store
from flows.store.s3_calls import HURRIED, Patience, RetryableFault, client, settled
from flows.store.s3_store import PART, S3Store
from tests.support.servers import s3_servers


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


class Refusing(BaseHTTPRequestHandler):
    """A server that refuses every request with `status` and `code`."""

    protocol_version = "HTTP/1.1"
    status, code = 400, "ExpiredToken"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = f"<Error><Code>{self.code}</Code><Message>no</Message></Error>".encode()
        self.send_response_only(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_refused_access_is_no_missing_artifact_and_a_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for name, value in s3_servers.environment(f"http://127.0.0.1:{server.server_address[1]}").items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://bucket/x")
        with TestClient(make_app("s3://bucket/x"), base_url="http://127.0.0.1") as pages:
            for address in ("/runs/r", "/runs/r/live/events"):
                answer = pages.get(address)
                assert answer.status_code == 503 and "The store refuses access" in answer.text, address
                assert "the credentials have expired" in answer.text
        for status, code, kind, said in (
            (403, "SomethingElse", AccessRefused, r"refused \(SomethingElse\)"),
            (400, "InvalidArgument", StoreRefused, r"refused \(InvalidArgument\)"),
        ):
            monkeypatch.setattr(Refusing, "status", status)
            monkeypatch.setattr(Refusing, "code", code)
            with pytest.raises(StoreRefused, match=said) as refused:
                store.read("r/a")
            assert type(refused.value) is kind
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


def fault(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "any")


class Server:
    """A client whose server keeps conditional objects and raises these faults in turn, by the name of the request."""

    def __init__(self, **faults: list[ClientError]) -> None:
        self._faults, self._objects = faults, dict[str, dict[str, Any]]()
        self.uploads = [f"u{number}" for number in range(2500)]

    def __getattr__(self, name: str) -> Any:
        def request(**given: Any) -> dict[str, Any]:
            if self._faults.get(name):
                raise self._faults[name].pop(0)
            return dict(getattr(self, f"_{name}")(**given) or {})

        return request

    def _put_object(self, Key: str, Metadata: dict[str, str], **_: Any) -> dict[str, Any]:
        if Key in self._objects:
            raise fault("PreconditionFailed", 412)
        self._objects[Key] = Metadata
        return {"ETag": "x"}

    def _complete_multipart_upload(self, Key: str, **_: Any) -> dict[str, Any]:
        return self._put_object(Key, {})

    def _head_object(self, Key: str, **_: Any) -> dict[str, Any]:
        return {"ETag": "x", "Metadata": self._objects[Key]}

    def _create_multipart_upload(self, **_: Any) -> dict[str, Any]:
        return {"UploadId": "u"}

    def _upload_part(self, **_: Any) -> dict[str, Any]:
        return {"ETag": "e"}

    def _abort_multipart_upload(self, UploadId: str, **_: Any) -> None:
        self.uploads = [one for one in self.uploads if one != UploadId]

    def _delete_object(self, Key: str, **_: Any) -> None:
        self._objects.pop(Key, None)

    def _list_multipart_uploads(self, UploadIdMarker: str = "", **_: Any) -> dict[str, Any]:
        rest = [one for one in self.uploads if one > UploadIdMarker]
        page = sorted(rest)[:1000]
        marks = {"NextKeyMarker": "k", "NextUploadIdMarker": page[-1] if page else ""}
        return {"Uploads": [{"Key": "k", "UploadId": one} for one in page], "IsTruncated": len(rest) > 1000} | marks


class Hours:
    """A clock that goes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, self.clock, self.sleep)


def store_of(server: Server, patience: Patience = HURRIED) -> S3Store:
    store = S3Store("s3://bucket/x", patience=patience)
    store._client = server
    return store


@pytest.mark.parametrize(
    ("code", "status"), [("408", 408), ("QuotaExceeded", 403), ("XMinioAdminBucketQuotaExceeded", 400), ("SlowDown", 503)]
)
def test_what_may_pass_is_tried_again(code: str, status: int) -> None:
    faults = [fault(code, status)]

    def request() -> str:
        if faults:
            raise faults.pop()
        return "done"

    assert settled("s3://b", "u", request) == "done"


OUTAGES = (
    EndpointConnectionError(endpoint_url="http://away"),
    ConnectTimeoutError(endpoint_url="http://away"),
    ReadTimeoutError(endpoint_url="http://away"),
    ConnectionResetError(104, "Connection reset by peer"),
    fault("InternalError", 500),
    fault("", 502),
    fault("SlowDown", 503),
    fault("TooManyRequests", 429),
)


@pytest.mark.parametrize("outage", OUTAGES, ids=repr)
def test_a_patient_store_waits_out_an_outage_and_a_hurried_one_does_not(outage: Exception) -> None:
    hours = Hours()

    def request() -> str:
        if hours.now < 90:
            raise outage
        return "done"

    assert settled("s3://b", "u", request, hours.patience(120)) == "done" and hours.now < 96
    hours.now = 0.0
    with pytest.raises(StoreUnavailable, match=r"\(7 attempts\)$"):
        settled("s3://b", "u", request, hours.patience(0))
    assert hours.now < 7
    hours.now = -1000.0
    with pytest.raises(StoreUnavailable, match=r"\(\d\d+ attempts\)$"):
        settled("s3://b", "u", request, hours.patience(120))
    assert -880 <= hours.now < -874


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (fault("AccessDenied", 403), AccessRefused),
        (fault("NotImplemented", 501), StoreRefused),
        (fault("NoSuchKey", 404), NotStored),
        (fault("QuotaExceeded", 507), StoreUnavailable),
        (RetryableFault("other bytes than were sent"), StoreUnavailable),
        (OSError(28, "No space left on device"), StoreUnavailable),
    ],
    ids=repr,
)
def test_a_patient_store_waits_for_nothing_that_waiting_does_not_mend(refusal: Exception, kind: type[Exception]) -> None:
    hours = Hours()

    def request() -> None:
        raise refusal

    with pytest.raises(kind):
        settled("s3://b", "u", request, hours.patience(120))
    assert hours.now < 7


def test_a_stage_s_writes_and_reads_outlast_an_outage() -> None:
    """Nor does it lose the run's lock to the patience of another step of this machine."""
    hours, away = Hours(), [fault("ServiceUnavailable", 503)] * 20
    server = Server(put_object=[*away], upload_part=[*away], complete_multipart_upload=[], head_object=[*away])
    store = store_of(server, hours.patience(120))
    store._conditional_multipart = True
    assert store.create("r/small", b"x") == "x" and store.create("r/large", bytes(2 * PART + 1)) == "x"
    assert store.exists("r/small") and hours.now > 20


def test_what_computes_a_stage_opens_its_store_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[float] = []

    def opening(url: str, patience: float = 0.0) -> Store:
        opened.append(patience)
        raise StoreUnavailable(url)

    monkeypatch.setattr(run_stage, "open_store", opening)
    with pytest.raises(StoreUnavailable):
        run_stage.execute(run_stage.Spec("s3://b", "r", "match", 0, None, 1, 1), lambda config: Backend(RunConfig()))
    assert opened == [120.0] == [lease.STEP_PATIENCE] and lease.STEP_PATIENCE < lease.GIVE_UP * lease.STALE_SECONDS
    assert open_store("s3://b", 120.0)._patience.seconds == 120.0 and open_store("s3://b")._patience.seconds == 0.0  # type: ignore[attr-defined]


def test_a_server_that_does_not_know_conditions_is_declined_at_once() -> None:
    store = store_of(Server(put_object=[fault("NotImplemented", 501)]))
    with pytest.raises(StoreRefused, match=r"this server cannot do what was asked \(NotImplemented\)"):
        store.create("r/a", b"x")


def test_a_server_that_knows_conditions_only_for_whole_objects_gets_those() -> None:
    store = store_of(Server(complete_multipart_upload=[fault("NotImplemented", 501)]))
    assert store.create("r/a", b"x") == "x" and store._conditional_multipart is False


@pytest.mark.parametrize("request_", ["upload_part", "complete_multipart_upload"])
def test_an_upload_that_a_sweep_ended_begins_again(request_: str) -> None:
    store = store_of(Server(**{request_: [fault("NoSuchUpload", 404)]}))
    assert store._create("r/a", bytes(PART + 1), multipart=True) == "x"


def test_a_sweep_ends_more_uploads_than_one_page_lists() -> None:
    server = Server()
    store_of(server).sweep("r/")
    assert server.uploads == []


@pytest.mark.parametrize(("code", "status"), [("NotImplemented", 501), ("AccessDenied", 403)])
def test_a_server_without_uploads_to_list_has_none_to_end(code: str, status: int) -> None:
    store_of(Server(list_multipart_uploads=[fault(code, status)])).sweep("r/")


def test_who_may_write_and_not_remove_writes() -> None:
    store = store_of(Server(delete_object=[fault("AccessDenied", 403)]))
    assert store.create("r/a", b"x") == "x"


@pytest.mark.parametrize(
    ("named", "region"), [({}, "c"), ({"AWS_REGION": "a"}, "a"), ({"AWS_DEFAULT_REGION": "b", "AWS_REGION": "a"}, "b")]
)
def test_the_region_is_that_of_the_environment_or_else_of_the_profile(
    named: dict[str, str], region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config").write_text("[default]\nregion = c\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert client("s3://bucket/x", 1.0).meta.region_name == region
