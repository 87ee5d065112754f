"""Who gets in: names and origins of requests, the password and its link, and what a run from a server may name."""

import asyncio
import base64
import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flows import allowed, cli
from flows.config import PROJECT, ConfigError
from flows.prefect_ops import prefect_api, serve, ui_server
from flows.prefect_ops.own_server import own_server
from flows.prefect_password import PASSWORD
from flows.servers import login_link
from flows.servers.gate import HOSTS, LOOPBACK, Gate, Refused, names_of
from tests.support.servers.prefect_double import server_of_version

PAGE = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def scope(path: str = "/", method: str = "GET", **headers: str) -> dict[str, Any]:
    given = {"host": "127.0.0.1:4200"} | {name.replace("_", "-"): value for name, value in headers.items()}
    listed = [(name.encode(), value.encode()) for name, value in given.items() if value]
    return {"type": "http", "method": method, "path": path, "headers": listed}


def refused(asked: dict[str, Any], names: frozenset[str] = names_of("127.0.0.1")) -> int | None:
    """The status with which the gate turns a request away; None when it lets it in."""
    try:
        Gate(None, names, closed=("/api",)).check(asked)
    except Refused as error:
        return error.status
    return None


@pytest.mark.parametrize("host", ["127.0.0.1:4200", "localhost", "LOCALHOST:1", "[::1]:4200"])
def test_this_machine_has_these_names(host: str) -> None:
    assert refused(scope(host=host)) is None


def test_a_probe_is_answered_at_any_address_and_nothing_else() -> None:
    gate = ui_server.walled(None, "127.0.0.1", "user:password")
    for path in ("/api/health", "/api/ready"):
        for host in ("10.244.1.7:4200", "[fd00::7]:4200"):  # how a kubelet asks
            gate.check(scope(path, host=host))
        for host in ("attacker.example", "10.244.1.7.attacker.example:4200", "", "[::1"):
            with pytest.raises(Refused, match="does not go by that name"):
                gate.check(scope(path, host=host))
        with pytest.raises(Refused, match="does not go by that name"):
            gate.check(scope(path, method="POST", host="10.244.1.7:4200"))
    for path in ("/", "/api/flow_runs", "/api/health/", "/api/healthy"):
        with pytest.raises(Refused, match="does not go by that name"):
            gate.check(scope(path, host="10.244.1.7:4200"))


@pytest.mark.parametrize(
    "host",
    ["attacker.example:4200", "127.0.0.1.attacker.example", "", "127.0.0.1@attacker.example:1", "[::1", "127.0.0.1:x", "0.0.0.0"],
)
def test_no_other_name_is_answered(host: str) -> None:
    assert refused(scope(host=host)) == 421


def test_two_hosts_are_none() -> None:
    asked = scope()
    asked["headers"].append((b"host", b"attacker.example"))
    assert refused(asked) == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:4200", None),
        ("https://127.0.0.1:4200", None),
        ("http://127.0.0.1:8750", 403),
        ("http://localhost:4200", 403),
        ("https://attacker.example", 403),
        ("null", 403),
        ("http://127.0.0.1:4200.attacker.example", 403),
    ],
)
def test_only_a_page_of_the_server_itself_may_ask(origin: str, status: int | None) -> None:
    assert refused(scope("/api/flow_runs/", "POST", origin=origin)) == status
    assert refused(scope("/api/flow_runs/", "OPTIONS", origin=origin)) == status
    assert refused(scope("/api/events/in", origin=origin) | {"type": "websocket", "method": None}) == status


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_to_pages_and_embed_nothing(site: str) -> None:
    assert refused(scope("/runs", sec_fetch_site=site, **PAGE)) is None
    assert refused(scope("/api/health", sec_fetch_site=site, **PAGE)) == 403
    assert refused(scope("/runs", "POST", sec_fetch_site=site, **PAGE)) == 403
    assert refused(scope("/logo.svg", sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image")) == 403
    assert refused(scope("/", sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe")) == 403
    assert refused(scope("/api/x", sec_fetch_site="same-origin", sec_fetch_mode="cors", sec_fetch_dest="empty")) is None


def test_further_names_are_listed_and_beyond_loopback_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_of("0.0.0.0") == names_of("::") == frozenset(LOOPBACK)
    assert names_of("10.0.0.5", ["proxy.example"]) == {*LOOPBACK, "10.0.0.5", "proxy.example"}
    monkeypatch.setenv(HOSTS, "prefect, Browser.example")
    assert refused(scope(host="prefect:4200"), names_of("0.0.0.0")) is None
    assert refused(scope(host="browser.example"), names_of("0.0.0.0")) is None


# --- the link -----------------------------------------------------------------------------------------------------------------


def test_a_ticket_opens_once() -> None:
    door = login_link.Entrance(None, "user:secret")
    earlier = login_link.ticket("user:secret", login_link.LIFETIME - 60)
    given = login_link.ticket("user:secret")
    assert "secret" not in given
    assert door.spend(given) and not door.spend(given)
    for wrong in (
        "",
        "a.b",
        "ffffffff.x.y",
        "é.é.é",
        given[:-1] + "0",
        login_link.ticket("user:other"),
        earlier,  # made before the server started: it may have been used
        login_link.ticket("user:secret", -1),
    ):
        assert not door.spend(wrong), wrong


def asked(app: Any, asking: dict[str, Any], body: bytes = b"") -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    asyncio.run(app(asking, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def test_the_links_page_hands_the_password_to_its_own_script_only() -> None:
    door = ui_server.walled(None, "127.0.0.1", "user:secret")
    status, headers, page = asked(door, scope(login_link.PATH))
    assert status == 200 and b"secret" not in page and b"script-src 'sha256-" in headers[b"content-security-policy"]
    post = scope(login_link.PATH, "POST", origin="http://127.0.0.1:4200")
    status, headers, answer = asked(door, post, login_link.ticket("user:secret").encode())
    assert base64.b64decode(json.loads(answer)["password"]) == b"user:secret"
    assert status == 200 and headers[b"cache-control"] == b"no-store" and b"access-control-allow-origin" not in headers
    assert asked(door, post, b"wrong")[0] == 403 and asked(door, post, b"x" * 1000)[0] == 403
    foreign = scope(login_link.PATH, "POST", origin="http://127.0.0.1:9")
    assert asked(door, foreign, login_link.ticket("user:secret").encode())[0] == 403


def test_prefects_pages_look_for_the_password_where_the_link_leaves_it() -> None:
    import prefect

    for version in ("ui", "ui-v2"):
        folder = Path(prefect.__file__).parent / "server" / version / "assets"
        assert any(f"`{login_link.STORAGE_KEY}`" in file.read_text() for file in folder.glob("*.js")), version


# --- a real server ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Address and password of the server that `populora run` starts beside itself."""
    with own_server(tmp_path_factory.mktemp("own"), {"PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL"}, "--alone") as (_, answers):
        answers()
        there = os.environ.pop("PREFECT_API_URL"), os.environ.pop(PASSWORD)
        os.environ.pop(ui_server.PASSWORD)  # the other tests of this file are no clients of this server
        yield there


def status_of(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, str | None]:
    """(status, who may read the answer)."""
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["access-control-allow-origin"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["access-control-allow-origin"]


@pytest.mark.timeout(300)
def test_the_server_of_a_run_has_the_same_walls(server: tuple[str, str]) -> None:
    url, secret = server
    basic = {"Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}
    route = f"{url}/deployments/filter"
    assert status_of(route, "POST", b"{}", **basic) == (200, None)
    assert status_of(route, "POST", b"{}") == (401, None)
    assert status_of(route, "POST", b"{}", **basic, Origin="https://attacker.example") == (403, None)
    asking = {"Origin": "https://attacker.example", "Access_Control_Request_Method": "POST"}
    assert status_of(route, "OPTIONS", **asking) == (403, None)
    assert status_of(route, "POST", b"{}", **basic, Host="attacker.example") == (421, None)
    assert status_of(f"{url}/health", Host="attacker.example") == (421, None)
    sockets = url.replace("http", "ws", 1)
    with pytest.raises(InvalidStatus, match="403"), connect(f"{sockets}/events/in", origin="https://attacker.example"):  # type: ignore[arg-type]
        pass
    with connect(f"{sockets}/events/in", subprotocols=["prefect"]) as socket:  # type: ignore[list-item]
        socket.send(json.dumps({"type": "auth", "token": "wrong"}))
        with pytest.raises(Exception, match="1008"):
            socket.recv(timeout=30)


@pytest.mark.timeout(300)
def test_a_wrong_password_is_told_from_a_server_that_is_not_there(
    server: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, server[1])
    prefect_api.require(server[0])
    monkeypatch.setenv(PASSWORD, "populora:wrong")
    with pytest.raises(ConfigError, match="refuses the password: set PREFECT_API_AUTH_STRING"):
        prefect_api.require(server[0])


def test_without_a_password_no_server_starts() -> None:
    variables = {name: value for name, value in os.environ.items() if name != ui_server.PASSWORD}
    done = subprocess.run(
        [sys.executable, "-m", "flows.prefect_ops.ui_server"], env=variables, cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "anyone who reaches this server could start programs" in done.stderr


# --- the password of serve ----------------------------------------------------------------------------------------------------


def test_serve_makes_a_password_once_that_only_its_owner_reads(tmp_path: Path) -> None:
    made = serve.password(tmp_path)
    assert serve.password(tmp_path) == made and len(made) > 40
    assert stat.S_IMODE((tmp_path / "password").stat().st_mode) == 0o600
    variables = serve.environment(serve.ServeOptions("runs", home=tmp_path, functions=(tmp_path,)))
    assert variables[PASSWORD] == variables[ui_server.PASSWORD] == made
    assert variables[allowed.FOLDERS] == str(tmp_path.resolve())


def test_a_password_whose_writer_was_killed_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("")
    made = serve.password(tmp_path)
    assert made.startswith("populora:") and serve.password(tmp_path) == made
    assert [file.name for file in tmp_path.iterdir()] == ["password"]


def test_our_commands_know_the_password_of_this_machines_server_and_tell_it_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "x")
    monkeypatch.delenv(PASSWORD)
    made = serve.password(tmp_path)
    serve.sign_in("http://127.0.0.1:4200/api", tmp_path)
    assert PASSWORD not in os.environ  # none is up
    there = {"pid": os.getpid(), "url": "http://127.0.0.1:4200"}
    (tmp_path / "serving.json").write_text(json.dumps(there))
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert serve.address(tmp_path) == there
        serve.sign_in("http://10.0.0.1:4200/api", tmp_path)
        assert PASSWORD not in os.environ
        serve.sign_in("http://127.0.0.1:4200/api", tmp_path)
        assert os.environ[PASSWORD] == made
        assert serve.link(tmp_path).startswith("http://127.0.0.1:4200/enter#")
    monkeypatch.delenv(PASSWORD)
    with (tmp_path / "lock").open() as other:  # another of our commands asks at the same time
        fcntl.flock(other, fcntl.LOCK_SH)
        serve.sign_in("http://127.0.0.1:4200/api", tmp_path)
    assert PASSWORD not in os.environ  # its process number is another's, and so may be its port
    with pytest.raises(prefect_api.ServerUnreachable, match="no populora serve is running"):
        serve.link(tmp_path)


def test_a_client_asks_the_server_of_the_environment_though_prefect_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import get_current_settings

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv(PASSWORD, "user:secret")
    with prefect_api.client_of_environment():
        found = get_current_settings().api
        assert found.url == "http://127.0.0.1:9/api" and found.auth_string is not None
        assert found.auth_string.get_secret_value() == "user:secret"
    assert get_current_settings().api.url != "http://127.0.0.1:9/api"


def test_who_listens_on_all_addresses_is_reached_on_this_machine() -> None:
    everywhere = serve.ServeOptions("/runs", "0.0.0.0", 4300)
    assert (everywhere.url, everywhere.browser_url) == ("http://127.0.0.1:4300", "http://127.0.0.1:8750")
    assert serve.ServeOptions("/runs", "10.0.0.1").url == "http://10.0.0.1:4200"


def test_a_link_needs_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--home", str(tmp_path), "--link"]) == 3
    assert "no populora serve is running" in capsys.readouterr().err


def test_a_folder_of_functions_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--home", str(tmp_path), "--functions", str(tmp_path / "none")]) == 2
    assert "--functions" in capsys.readouterr().err


def test_a_worker_without_a_password_is_told_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with server_of_version("unauthorized") as port:  # it is healthy, and tells its version to nobody
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        assert cli.main(["worker", "cpu"]) == 2
    assert "refuses the password" in capsys.readouterr().err


def test_every_promise_of_the_security_page_has_its_test() -> None:
    page = (PROJECT / "docs" / "security.md").read_text()
    promised = re.findall(r"`(test_\w+)\.(test_\w+)`", page)
    assert len(promised) > 15
    sources = {path.stem: path.read_text() for path in (PROJECT / "tests").rglob("test_*.py")}
    missing = [name for file, name in promised if f"def {name}(" not in sources[file]]
    assert missing == []
