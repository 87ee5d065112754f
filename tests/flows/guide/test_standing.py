"""Where one stands: a store without runs, a run in each state, and a store that fails."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.compare.run_list import RunList
from flows.guide.standing import Standing, standing
from flows.monitoring.live import Follower
from flows.monitoring.run_state import RunState
from flows.monitoring.run_tables import RunTables
from flows.monitoring.status import status
from flows.run.lease import BEATEN, hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support.report_run import made


def at(store: Path) -> Standing:
    return standing(str(store), lambda run_id: store / f"{run_id}.html")


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local times are those of UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_without_a_run_the_first_one_is_next_and_nothing_is_written(tmp_path: Path) -> None:
    assert at(tmp_path / "runs") == Standing((f"store      {tmp_path / 'runs'}: no runs",), ("run",))
    assert list(tmp_path.iterdir()) == []


def test_a_run_at_work_is_to_be_watched_and_a_stopped_one_resumed(tmp_path: Path) -> None:
    with made(tmp_path, "one", 2, until="solve"):
        _, newest = at(tmp_path).lines
        assert newest.startswith("latest     one: running, process ")
        assert newest.endswith("; 1 of 2 generations; last finished: solve of generation 1; next: grade of generation 1")
        assert at(tmp_path).following == ("status", "one")
    state = "stopped inside generation 1; 1 of 2 generations; last finished: solve of generation 1"
    assert at(tmp_path) == Standing((f"store      {tmp_path}: 1 run", f"latest     one: {state}"), ("run", "--resume", "one"))


def test_a_finished_run_is_to_be_reported_and_with_its_report_to_be_browsed(tmp_path: Path) -> None:
    with made(tmp_path, "one", 2):
        pass
    lines = (f"store      {tmp_path}: 1 run", "latest     one: done, 2 generations")
    assert at(tmp_path) == Standing(lines, ("report", "one"))
    (tmp_path / "one.html").write_text("a report")
    assert at(tmp_path) == Standing((lines[0], f"{lines[1]}; its report is {tmp_path / 'one.html'}"), ("browse",))


def test_the_run_with_the_latest_activity_is_shown_but_one_at_work_comes_first(tmp_path: Path, utc: None) -> None:
    for name, began in (("older", 3600.0), ("newer", 7200.0)):
        with hold(FileStore(tmp_path), name) as epoch:
            Run(FileStore(tmp_path), name, epoch).describe({"generations": 3}, {}, {"started": began})
    shown = "newer: stopped in its start; nothing yet; last active 1970-01-01 02:00"
    assert at(tmp_path).lines == (f"store      {tmp_path}: 2 runs", f"latest     {shown}")
    with hold(FileStore(tmp_path), "older") as epoch:
        older = Run(FileStore(tmp_path), "older", epoch)
        older.commit("match", 0, [], [], clock={"started": 7000.0, "seconds": 500.0})
    shown = "older: stopped inside generation 0; 0 of 3 generations; last finished: match of generation 0"
    assert at(tmp_path).lines[1] == f"latest     {shown}; last active 1970-01-01 02:05"
    with hold(FileStore(tmp_path), "newer"):
        assert at(tmp_path).lines[1].startswith("latest     newer: running, ")


def test_a_run_that_has_only_begun_stopped_in_its_start(tmp_path: Path, utc: None) -> None:
    with hold(FileStore(tmp_path), "one") as epoch:
        Run(FileStore(tmp_path), "one", epoch).describe({"generations": 3}, {}, {"started": 1.0})
    assert at(tmp_path).lines[1] == "latest     one: stopped in its start; nothing yet; last active 1970-01-01 00:00"


def test_a_killed_run_has_crashed_wherever_one_asks(tmp_path: Path) -> None:
    with made(tmp_path, "one", 2, until="solve"):
        lease = json.loads((tmp_path / "one" / ".lease").read_text())
    store = FileStore(tmp_path)
    store.replace("one/.lease", json.dumps(lease | {"pid": 2**22 + 1}).encode())  # no process of Linux has a greater id
    left = f"left by process {2**22 + 1} on host {lease['host']}, which was killed"
    state = f"crashed inside generation 1, {left}; 1 of 2 generations; last finished: solve of generation 1"
    assert at(tmp_path) == Standing((f"store      {tmp_path}: 1 run", f"latest     one: {state}"), ("run", "--resume", "one"))
    assert f"lease      {left}\n" in status(Run(store, "one"))
    assert [run.state for run in RunList(store).entries()] == [RunState.CRASHED]
    assert Follower(Run(store, "one"), RunTables(Run(store, "one"))).look().condition == "crashed"


def test_a_suspended_process_has_no_heartbeat_wherever_one_asks(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with made(tmp_path, "one", 2, until="solve"):
        lease = json.loads(store.read("one/.lease"))
    store.replace("one/.lease", json.dumps(lease | {BEATEN: time.monotonic() - 300.0, "beat": 7}).encode())
    words = (
        f"no heartbeat for more than 30 s: process {lease['pid']} on host {lease['host']} may be suspended "
        "(kill -CONT with its number resumes it) or dead, or may have lost the store"
    )
    held = f"held by process {lease['pid']} on host {lease['host']}, last heartbeat 5 min ago"
    so_far = "1 of 2 generations; last finished: solve of generation 1; next: grade of generation 1"
    assert at(tmp_path).lines[1] == f"latest     one: {words}; {held}; {so_far}"
    assert at(tmp_path).following == ("watch", "one")
    found = status(Run(store, "one")).splitlines()
    assert f"now        {words}; at grade of generation 1; 1 of 2 generations done" in found and f"lease      {held}" in found
    assert Follower(Run(store, "one"), RunTables(Run(store, "one"))).look().condition == "silent"
    assert [str(run.state) for run in RunList(store).entries()] == ["no heartbeat"]


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    with made(tmp_path, "one", 1):
        pass
    for name, content in (("broken", "{"), ("empty", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    assert at(tmp_path).lines[0] == f"store      {tmp_path}: 1 run, and unreadable ones: broken, empty"
    assert at(tmp_path).following == ("report", "one")


def test_a_store_that_fails_is_said_and_the_doctor_is_next(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = standing("ftp://somewhere", Path)
    assert found.lines[0].startswith("store      ftp://somewhere: store 'ftp://somewhere': unknown scheme")
    assert found.following == ("doctor", "--store", "ftp://somewhere")
    assert at(tmp_path / "file").following == ("doctor", "--store", str(tmp_path / "file"))


def test_a_bucket_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        found = standing("s3://bucket/runs", Path, seconds=0.5)
    assert found == Standing(("store      s3://bucket/runs: no answer in 0.5 s",), ("doctor", "--store", "s3://bucket/runs"))
