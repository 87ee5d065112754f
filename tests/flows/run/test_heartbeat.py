"""The heartbeat of a lease: it outlives every fault, and ends a process that lost its run or cannot renew it."""

import errno
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from flows.run import heartbeat
from flows.run.lease import Fenced, LeaseLost, hold, newest_epoch
from flows.storage import Store, StoreUnavailable, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def nobody(store: Store) -> int:
    """Leave the store as if one process had held the run, which nobody holds now. Return its epoch."""
    with hold(store, "smoke") as epoch:
        return epoch


def lease(store: Store) -> dict[str, Any]:
    return json.loads(store.read("smoke/.lease"))


def wait_for(happened: Any) -> None:
    """Returns when it has; pytest's own limit ends a wait that is in vain."""
    while not happened():
        time.sleep(0.02)


def test_the_heartbeat_beats(store: Store) -> None:
    with hold(store, "smoke", beat_seconds=0.05):
        time.sleep(0.5)
        assert lease(store)["beat"] >= 2


class Flaky:
    """A store that fails for a while, with whatever error, or does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fault: Exception | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self.hanging = ""  # what hangs; all if empty

    def __getattr__(self, name: str) -> Any:
        if self.hanging in ("", name):
            self.hangs.wait()
        if self.fault is not None:
            raise self.fault
        return getattr(self._store, name)


FAULTS = [StoreUnavailable("down for a moment"), MemoryError(), KeyError("beat")]
FAULTS += [OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.ENOLCK, errno.ESTALE, errno.EIO)]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_no_error_ends_the_heartbeat(store: Store, fault: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    flaky: Any = Flaky(store)
    with hold(flaky, "smoke", beat_seconds=0.05):
        flaky.fault = fault
        wait_for(lambda: "run smoke: the heartbeat failed (" in capsys.readouterr().err)
        flaky.fault = None
        beat = lease(store)["beat"]
        wait_for(lambda: lease(store)["beat"] > beat + 1)
    assert "run smoke: the heartbeat succeeds again\n" in capsys.readouterr().err


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("hangs", [False, True])
def test_a_holder_that_cannot_renew_its_lease_stops_while_it_is_still_its_own(store: Store, hangs: bool) -> None:
    """Whatever the main thread waits for; and it leaves the lease as it is, because the store would not answer that either."""
    flaky, before = Flaky(store), nobody(store)
    said = "run smoke: no heartbeat for 1 s .* stopped before another process takes the run over; the same command resumes it"

    def held() -> None:
        with hold(cast(Store, flaky), "smoke", beat_seconds=0.05, stale_seconds=1.2):
            if hangs:
                flaky.hangs.clear()
                threading.Timer(3.0, flaky.hangs.set).start()
            else:
                flaky.fault = OSError(errno.ENOLCK, "No locks available")
            subprocess.run(["sleep", "60"], check=True)

    with pytest.raises(LeaseLost, match=said):
        held()
    assert LeaseLost.exit_code == 3 and lease(store)["pid"] == os.getpid()
    assert newest_epoch(store, "smoke") == before + 1, "nobody else had it"


def test_the_owner_of_the_newest_epoch_keeps_its_lease(store: Store) -> None:
    """Whatever became of the file: removed, or overwritten by the late heartbeat of a process that was overtaken."""
    late = json.dumps({"pid": 7, "host": "far", "token": "theirs"}).encode()
    with hold(store, "smoke", beat_seconds=0.05):
        store.replace("smoke/.lease", late)
        wait_for(lambda: lease(store)["pid"] == os.getpid())
        store.delete("smoke/.lease")
        wait_for(lambda: store.exists("smoke/.lease"))
        beat = lease(store)["beat"]
        wait_for(lambda: lease(store)["beat"] > beat)
    assert not store.exists("smoke/.lease")


@pytest.mark.usefixtures("interruptible")
def test_a_process_whose_run_was_taken_over_is_interrupted(store: Store) -> None:
    """Without waiting for its next commit, and it leaves the new owner's lease alone."""
    theirs = json.dumps({"pid": 7, "host": "far", "token": "theirs"}).encode()
    said = r"run smoke was taken over by process 7 on host far; this process \(epoch \d+\) commits nothing more"

    def overtaken() -> None:
        with hold(store, "smoke", beat_seconds=0.05) as epoch:
            store.create(f"smoke/.epoch-{epoch + 1:06d}", theirs)
            store.replace("smoke/.lease", theirs)
            subprocess.run(["sleep", "60"], check=True)

    with pytest.raises(Fenced, match=said):
        overtaken()
    assert lease(store)["pid"] == 7


def test_a_heartbeat_leaves_the_run_s_commits_alone(store: Store) -> None:
    """While the store does not answer it, a commit of the same process gets its turn."""
    slow: Any = Flaky(store)
    with hold(slow, "smoke", beat_seconds=0.05):
        slow.hanging = "read"
        slow.hangs.clear()
        time.sleep(0.3)  # a heartbeat waits for the store by now
        began = time.monotonic()
        with store.lock("smoke"):
            assert time.monotonic() - began < 5
        slow.hangs.set()


def test_a_renewal_that_hangs_keeps_no_process_from_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease stays as it is: the store would not answer its removal either."""
    monkeypatch.setattr(heartbeat, "JOIN_SECONDS", 0.2)
    flaky: Any = Flaky(store)
    began = time.monotonic()
    with hold(flaky, "smoke", beat_seconds=0.05):
        flaky.hanging = "replace"
        flaky.hangs.clear()
        threading.Timer(4.0, flaky.hangs.set).start()
        time.sleep(0.3)  # a heartbeat waits for the store by now
    assert time.monotonic() - began < 3 and lease(store)["pid"] == os.getpid()
    flaky.hangs.set()


def test_a_garbled_lease_is_written_anew_and_one_that_cannot_be_read_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, path = open_store(str(tmp_path)), tmp_path / "smoke" / ".lease"
    with hold(store, "smoke", beat_seconds=0.05):
        store.replace("smoke/.lease", b"garbled")
        wait_for(lambda: path.read_bytes() != b"garbled")
        (tmp_path / "link").symlink_to(".lease")
        (tmp_path / "link").replace(path)  # to itself
        said = "run smoke: the heartbeat failed (smoke/.lease: Too many levels of symbolic links); retrying"
        wait_for(lambda: said in capsys.readouterr().err)
        path.unlink()
