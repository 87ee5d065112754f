"""The store on files: written once, whole, durable; path tricks refused."""

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.audit.conformance import conformance
from flows.run.history import History
from flows.storage import (
    AccessRefused,
    Damaged,
    NotStored,
    Store,
    StoreRefused,
    StoreUnavailable,
    check_run_id,
    open_store,
)
from flows.store.file_store import FileStore

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path.as_uri())


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Runs code in a process of its own, with the project importable."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_what_is_created_once_stays(store: Store) -> None:
    assert store.create("r/a.bin", b"first")
    assert store.create("r/a.bin", b"second") is None
    assert store.read("r/a.bin") == b"first"
    assert store.size("r/a.bin") == 5
    assert store.exists("r/a.bin") and not store.exists("r/b.bin")
    with pytest.raises(NotStored, match=r"r/b\.bin"):
        store.read("r/b.bin")
    store.delete("r/b.bin")
    store.delete("r/a.bin")
    assert store.list("r/", hidden=True) == []


def test_a_stamp_tells_a_new_object_from_the_old_one(store: Store) -> None:
    stamp = store.create("r/a.bin", b"x")
    assert stamp == store.stamp("r/a.bin")
    store.delete("r/a.bin")
    assert store.stamp("r/a.bin") == ""
    store.create("r/a.bin", b"x")
    assert store.stamp("r/a.bin") != stamp


def test_listing_is_sorted_by_prefix_and_hides_dotted_names(store: Store) -> None:
    for uri in ("r/b.json", "r/a/x.json", "r/a.json", "r/.lease", "q/a.json", "r/a/.tmp-1"):
        store.create(uri, b"")
    assert store.list("r/") == ["r/a.json", "r/a/x.json", "r/b.json"]
    assert store.list("r/a") == ["r/a.json", "r/a/x.json"]
    assert store.list("r/.", hidden=True) == ["r/.lease"]
    assert store.list("nothing/here/") == []
    store.sweep("r/")
    assert store.list("r/", hidden=True) == ["r/.lease", "r/a.json", "r/a/x.json", "r/b.json"]


def test_of_many_threads_exactly_one_creates(store: Store) -> None:
    contents = [bytes([number]) * 100_000 for number in range(32)]
    with ThreadPoolExecutor(32) as pool:
        won = list(pool.map(lambda data: store.create("r/a.bin", data), contents))
    assert sum(map(bool, won)) == 1
    assert store.read("r/a.bin") == next(data for data, stamp in zip(contents, won, strict=True) if stamp)
    assert store.list("r/", hidden=True) == ["r/a.bin"]


def test_of_many_processes_exactly_one_creates(store: Store) -> None:
    code = """
import sys
from flows.storage import open_store
store = open_store(sys.argv[1])
print(sum(bool(store.create(f"r/{n}.bin", sys.argv[2].encode() * 1000)) for n in range(60)))
"""
    racing = [python(code, store.url, name) for name in "abcd"]
    assert sum(int(process.communicate()[0]) for process in racing) == 60
    for number in range(60):
        assert len(set(store.read(f"r/{number}.bin"))) == 1


def test_a_writer_killed_at_any_moment_leaves_whole_files_or_none(store: Store, tmp_path: Path) -> None:
    code = """
import sys
from flows.storage import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
for n in range(10**6):
    store.create(f"r/{sys.argv[2]}/{n}.bin", bytes([n % 256]) * 1_000_000)
"""
    rng = random.Random(1)
    for number in range(40):
        if number >= 6 and any(".tmp-" in uri for uri in store.list("r/", hidden=True)):
            break
        writer = python(code, store.url, f"try{number}")
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.1))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    else:
        pytest.fail("no writer was caught in the act")
    for uri in store.list("r/"):
        data = store.read(uri)
        assert len(data) == 1_000_000 and len(set(data)) == 1, uri
    store.sweep("r/")
    assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.parametrize(
    "uri",
    ["", "/etc/passwd", "../x", "r/../../x", "r/./x", "r//x", "r/", "r/a\0b", "r/a b", "r/é", "r\\x", "r/" + "a" * 300, "r/..."],
)
def test_path_tricks_are_refused(store: Store, uri: str) -> None:
    for use in (store.read, store.exists, store.stamp, store.delete, lambda name: store.create(name, b"")):
        with pytest.raises(StoreRefused, match="plain relative path"):
            use(uri)


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "A", "-a", "a\0", "a\n", "a" * 41, "a" * 2048, "ä", ".", "a.b"])
def test_run_ids_with_tricks_are_refused(run_id: str) -> None:
    with pytest.raises(StoreRefused, match="lower-case letters"):
        check_run_id(run_id)


@pytest.mark.parametrize("url", ["", "ftp://host/x", "gs://bucket/x", "file://host/x", "file://", "s4://b", "a\0b"])
def test_urls_that_mean_nothing_are_refused(url: str) -> None:
    with pytest.raises(StoreRefused, match="store"):
        open_store(url)


def test_a_plain_path_and_a_file_url_are_the_same_store(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    open_store(str(folder)).create("r/a.bin", b"x")
    assert open_store(folder.as_uri()).read("r/a.bin") == b"x"


def test_an_unusable_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreRefused, match=r"r/a\.bin: Not a directory"):
        open_store(str(tmp_path / "file" / "store")).create("r/a.bin", b"x")
    for url in (str(tmp_path / "file"), (tmp_path / "file").as_uri()):
        with pytest.raises(StoreRefused, match=r"file' is a file; give a folder"):
            open_store(url)
    with pytest.raises(StoreRefused, match=r"r/a\.bin"):
        open_store("/proc/nothing").create("r/a.bin", b"x")


def test_missing_rights_are_refused_access_and_a_wrong_name_is_not(tmp_path: Path) -> None:
    store, folder = open_store(str(tmp_path)), tmp_path / "r"
    store.create("r/a.bin", b"x")
    folder.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:  # root may read everything
            os.seteuid(65_534)
        with pytest.raises(AccessRefused, match=r"Permission denied"):
            store.read("r/a.bin")
    finally:
        os.seteuid(user)
        folder.chmod(0o700)
    with pytest.raises(StoreRefused, match="Not a directory") as refused:
        store.read("r/a.bin/b")
    assert not isinstance(refused.value, AccessRefused)


def test_a_full_disk_is_unavailable_and_leaves_nothing(store: Store, tmp_path: Path) -> None:
    code = """
import resource, sys
from flows.storage import open_store, StoreUnavailable
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    open_store(sys.argv[1]).create("r/a.bin", b"x" * 5000)
except StoreUnavailable as error:
    print(error)
"""
    said, errors = python(code, store.url).communicate()
    assert said == "r/a.bin: File too large\n", errors
    assert store.list("", hidden=True) == []


def test_a_lock_makes_processes_wait_and_dies_with_its_holder(store: Store) -> None:
    code = """
import sys, time
from flows.storage import open_store
with open_store(sys.argv[1]).lock("r"):
    print("locked", flush=True)
    time.sleep(60)
"""
    holder = python(code, store.url)
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_lock_once, store)
        time.sleep(0.3)
        assert not waiting.done()
        os.kill(holder.pid, signal.SIGKILL)
        waiting.result(timeout=10)
    holder.communicate()


def _lock_once(store: Store) -> None:
    with store.lock("r"):
        pass


def test_errors_carry_their_exit_codes() -> None:
    assert (StoreUnavailable.exit_code, StoreRefused.exit_code, Damaged.exit_code) == (3, 2, 1)


def test_a_folder_keeps_every_promise_of_a_store(tmp_path: Path) -> None:
    checks = list(conformance(tmp_path.as_uri(), large=8 << 20))
    assert [(check.name, check.detail) for check in checks if not check.good] == [] and len(checks) == 7
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_breaks_a_promise_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (check,) = conformance(str(tmp_path / "file" / "store"))
    assert (check.name, check.good) == ("write and read back", False) and "Not a directory" in check.detail


def test_sizes_and_folders_of_a_store(tmp_path):
    store = open_store(str(tmp_path))
    for uri, data in (("run/a.json", b"1234"), ("run/x/b.bin", b"12"), ("other/run.json", b"1"), ("top", b"")):
        store.create(uri, data)
    store.replace("run/.lease", b"hidden")
    assert store.sizes("run/") == {"run/a.json": 4, "run/x/b.bin": 2}
    assert store.folders("") == ["other", "run"]
    assert store.folders("run/") == ["x"]
    assert open_store(str(tmp_path / "none")).folders("") == []
    assert open_store(str(tmp_path / "none")).sizes("run/") == {}


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Make the system refuse a folder, and all below it, with an error number; root would be let in everywhere."""

    def close(folder: Path, number: int) -> None:
        for name in ("scandir", "stat"):
            monkeypatch.setattr(os, name, partial(refuse, getattr(os, name)))
        refused[str(folder)] = number

    def refuse(call: Callable[..., Any], path: Any, **options: Any) -> Any:
        for folder, number in refused.items():
            if str(path).startswith(folder):
                raise OSError(number, os.strerror(number), path)
        return call(path, **options)

    refused: dict[str, int] = {}
    return close


@pytest.mark.parametrize(("number", "kind"), [(errno.EACCES, AccessRefused), (errno.EIO, StoreUnavailable)])
def test_a_generation_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, closed: Callable[[Path, int], None], number: int, kind: type[Exception]
) -> None:
    """A run would be resumed from the one before it."""
    store = open_store(str(tmp_path))
    for name in ("generation=0000", "generation=0001"):
        store.create(f"run/{name}/match.json", b"{}")
    assert History(store, "run").generations() == [0, 1]
    closed(tmp_path / "run" / "generation=0001", number)
    with pytest.raises(kind):
        History(store, "run").generations()
    with pytest.raises(kind, match=r"^run/generation=0001/match\.json: "):
        store.exists("run/generation=0001/match.json")
    assert store.exists("run/generation=0000/match.json") and not store.exists("run/generation=0000/match.json/below")


def test_runs_that_this_user_may_not_enter_hide_no_others(tmp_path: Path, closed: Callable[[Path, int], None]) -> None:
    store = open_store(str(tmp_path))
    for name in ("private", "run"):
        store.create(f"{name}/run.json", b"{}")
    closed(tmp_path / "private", errno.EACCES)
    assert store.folders("") == ["run"]


def test_where_fsync_does_not_reach_the_disk_the_call_that_does_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS. File systems that do not know it, such as those of other machines, are asked for an fsync."""
    calls: list[str] = []
    refusal: list[OSError] = []

    def full(handle: int, command: int) -> None:
        calls.append(f"full {command}")
        if refusal:
            raise refusal[0]

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("fsync"))
    store = open_store(str(tmp_path))
    store.create("a.bin", b"1")
    assert calls == ["full 51", "full 51"], "the file, and its folder"
    refusal.append(OSError(errno.ENOTSUP, "not supported"))
    store.create("b.bin", b"1")
    assert calls[2:] == ["full 51", "fsync"] * 2
    refusal[0] = OSError(errno.EIO, "the disk fails")
    with pytest.raises(StoreUnavailable, match="the disk fails"):
        store.create("c.bin", b"1")


def test_what_replaces_a_note_survives_a_power_cut_and_a_lease_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork's note must be durable before the fork is: else its parent could let go what the fork uses."""
    synced: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    store = FileStore(tmp_path)
    store.replace("run/.lease", b"1")
    monkeypatch.setattr(os, "fsync", noted)
    store.replace("run/.lease", b"2")
    assert str(tmp_path / "run") not in synced
    store.replace("run/.fork-other", b"t0-start")
    assert synced[-1] == str(tmp_path / "run")
