"""The lease decides who starts, the epoch who commits; judged by the observer's own clock."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from flows.run import heartbeat
from flows.run.lease import Fenced, LeaseHeld, LeaseLost, _renew, _started, check_epoch, hold, holding, newest_epoch
from flows.run.run import Run
from flows.storage import NotStored, Store, StoreRefused, StoreUnavailable, open_store

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys, time
from flows.execution.orphan_guard import exit_on_sigterm
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
exit_on_sigterm()
store = open_store(sys.argv[1])
with hold(store, "smoke", beat_seconds=0.1, stale_seconds=float(sys.argv[2])) as epoch:
    run = Run(store, "smoke", epoch)
    early = run.write_blob("generation=0000/matches.parquet", b"frozen writer")
    print(epoch, flush=True)
    sys.stdin.readline()
    run.commit("match", 0, [], [early])
    print("committed", flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def holder(store: Store, stale_seconds: float = 30.0) -> subprocess.Popen[str]:
    """Another process that holds the lease and commits when told to."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLDER, store.url, str(stale_seconds)], cwd=ROOT, text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline().strip().isdigit(), process.communicate()
    return process


def nobody(store: Store) -> int:
    """Leave the store as if one process had held the run, which nobody holds now. Return its epoch."""
    with hold(store, "smoke") as epoch:
        return epoch


def lease(store: Store) -> dict[str, Any]:
    return json.loads(store.read("smoke/.lease"))


def test_the_lease_is_there_while_held_and_gone_afterwards(store: Store) -> None:
    with hold(store, "smoke") as epoch:
        held = lease(store)
        assert newest_epoch(store, "smoke") == epoch and held["pid"] == os.getpid()
    with pytest.raises(NotStored):
        lease(store)
    with pytest.raises(ZeroDivisionError), hold(store, "smoke"):
        _ = 1 / 0
    with pytest.raises(NotStored):
        lease(store)
    assert newest_epoch(store, "smoke") == epoch + 1


def test_the_heartbeat_beats(store: Store) -> None:
    with hold(store, "smoke", beat_seconds=0.05):
        time.sleep(0.5)
        assert lease(store)["beat"] >= 2


def test_a_second_process_is_told_who_holds_the_run(store: Store) -> None:
    first = holder(store)
    began = time.monotonic()
    said = f"run smoke is in use by process {first.pid} on host "
    with pytest.raises(LeaseHeld, match=said), hold(store, "smoke"):
        pass
    assert time.monotonic() - began < 5
    assert first.communicate("go\n") == ("committed\n", "")


def test_a_dead_holder_on_this_host_is_taken_over_at_once(store: Store) -> None:
    first = holder(store)
    theirs = newest_epoch(store, "smoke")
    first.kill()
    first.communicate()
    began = time.monotonic()
    with hold(store, "smoke") as epoch:
        assert epoch == theirs + 1
    assert time.monotonic() - began < 1


def test_a_dead_holder_not_yet_reaped_is_dead(store: Store) -> None:
    first = holder(store)
    theirs = newest_epoch(store, "smoke")
    first.kill()
    time.sleep(0.2)  # a zombie: its parent, this test, has not waited for it
    with hold(store, "smoke") as epoch:
        assert epoch == theirs + 1
    first.communicate()


def test_a_later_process_with_the_same_pid_is_not_the_holder(store: Store) -> None:
    with hold(store, "smoke") as earlier:
        held = lease(store)
    store.create("smoke/.lease", json.dumps(held | {"started": "1", "token": "x"}).encode())
    began = time.monotonic()
    with hold(store, "smoke") as epoch:
        assert epoch == earlier + 1
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "another boot"}, {"namespace": "pid:[1]"}])
def test_elsewhere_a_holder_is_dead_only_when_its_heartbeat_stood_still(store: Store, change: dict[str, str]) -> None:
    with hold(store, "smoke") as earlier:
        held = lease(store)
    store.create("smoke/.lease", json.dumps(held | change | {"started": "1", "token": "x"}).encode())
    began = time.monotonic()
    with hold(store, "smoke", beat_seconds=0.1, stale_seconds=1.0) as epoch:
        assert epoch == earlier + 1
    assert 1.0 <= time.monotonic() - began < 4


def test_a_writer_frozen_overtaken_and_woken_changes_nothing(store: Store) -> None:
    first = holder(store)
    theirs = newest_epoch(store, "smoke")
    first.send_signal(signal.SIGSTOP)
    with hold(store, "smoke", beat_seconds=0.1, stale_seconds=1.0) as epoch:
        run = Run(store, "smoke", epoch)
        mine = run.write_blob("generation=0000/matches.parquet", b"second writer")
        first.send_signal(signal.SIGCONT)
        said, errors = first.communicate("go\n")
        assert said == "" and first.returncode == 1
        assert re.search(
            rf"Fenced: run smoke was taken over by process {os.getpid()} on host .*\(epoch {theirs}\) commits nothing", errors
        )
        run.commit("match", 0, [], [mine])
        assert run.done("match", 0) and run.read_blob(mine) == b"second writer"
        assert lease(store)["pid"] == os.getpid(), "the woken writer must not release a lease that is no longer its own"


def test_a_woken_writer_does_not_remove_what_is_committed(store: Store) -> None:
    with hold(store, "smoke", beat_seconds=3600) as old:  # a beat would tell that it was overtaken
        frozen = Run(store, "smoke", old)
        store.delete("smoke/.lease")
        with hold(store, "smoke") as new:
            run = Run(store, "smoke", new)
            ref = run.write_blob("generation=0000/matches.parquet", b"new")
            run.commit("match", 0, [], [ref])
            with pytest.raises(Fenced):
                frozen.write_blob("generation=0000/matches.parquet", b"old")
            with pytest.raises(Fenced):
                frozen.commit("propose", 0, [], [])
            assert run.done("match", 0)


def test_sigterm_releases_the_lease(store: Store) -> None:
    first = holder(store)
    began = time.monotonic()
    first.terminate()
    first.communicate()
    assert first.returncode == 143 and time.monotonic() - began < 5
    assert not store.exists("smoke/.lease")


def test_of_many_starts_at_once_one_gets_the_run(store: Store) -> None:
    code = """
import sys, time
from flows.run.lease import LeaseHeld, hold
from flows.storage import open_store
try:
    with hold(open_store(sys.argv[1]), "smoke", beat_seconds=0.2) as epoch:
        print("held", flush=True)
        time.sleep(6)
except LeaseHeld:
    print("refused")
"""
    racing = [
        subprocess.Popen([sys.executable, "-c", code, store.url], cwd=ROOT, text=True, stdout=subprocess.PIPE) for _ in range(5)
    ]
    assert sorted(process.communicate()[0] for process in racing) == ["held\n"] + ["refused\n"] * 4


def test_a_killed_writer_s_temporaries_are_swept_by_the_next_holder(store: Store) -> None:
    store.create("smoke/adapters/t0/.tmp-1", b"half")
    store.create("smoke/benchmarks/probe/.tmp-1", b"still being written, without the lease")
    with hold(store, "smoke"):
        left = [uri for uri in store.list("smoke/", hidden=True) if ".tmp-" in uri]
    assert left == ["smoke/benchmarks/probe/.tmp-1"]


def test_check_epoch_names_the_new_owner(store: Store) -> None:
    with hold(store, "smoke") as epoch:
        check_epoch(store, "smoke", epoch)
        store.create(f"smoke/.epoch-{epoch + 1:06d}", json.dumps({"host": "far", "pid": 7}).encode())
        with pytest.raises(Fenced, match="taken over by process 7 on host far"):
            check_epoch(store, "smoke", epoch)


def test_a_run_that_was_removed_and_began_again_admits_no_writer_of_the_old_one(store: Store, tmp_path: Path) -> None:
    """Nor does the old holder write its heartbeats over the new one's lease."""
    with hold(store, "smoke", beat_seconds=3600) as old:
        frozen = Run(store, "smoke", old)
        shutil.rmtree(tmp_path / "smoke")
        with hold(store, "smoke") as new:
            assert new != old, "both are the first start of their run"
            run = Run(store, "smoke", new)
            ref = run.write_blob("generation=0000/matches.parquet", b"new")
            with pytest.raises(Fenced, match=r"^run smoke was (taken over|removed, and started again) by process \d+ on host "):
                frozen.commit("match", 0, [], [])
            said = _renew(store, "smoke", {"token": "old"}, old, dict, 7)
            assert f"(epoch {old}) commits nothing more" in said and lease(store)["pid"] == os.getpid()
            run.commit("match", 0, [], [ref])


def test_a_benchmark_of_a_run_that_was_removed_is_not_stored_in_one_that_began_under_its_id(store: Store, tmp_path: Path) -> None:
    scoring = Run(store, "smoke", nobody(store))
    scoring.describe({"cost": {}}, {}, {"started": 1.0})
    old = Run(store, "smoke")
    assert old.history.description() is not None
    shutil.rmtree(tmp_path / "smoke")
    Run(store, "smoke", nobody(store)).describe({"cost": {}}, {}, {"started": 2.0})
    with pytest.raises(Fenced, match=r"^run smoke was removed, and started again, since this process began; it commits nothing"):
        old.commit_benchmark("probe/asked/all", [], [], {}, {}, {})
    assert Run(store, "smoke").history.benchmarks() == []
    new = Run(store, "smoke")
    new.history.description()
    new.commit_benchmark("probe/asked/all", [], [], {}, {}, {})
    assert len(Run(store, "smoke").history.benchmarks()) == 1


def test_a_process_that_is_hidden_from_this_user_counts_neither_as_ended_nor_as_alive(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /proc is mounted with hidepid; only the signal tells that the process exists."""

    def not_ours(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "stat").touch()
    hidden = str(tmp_path / "proc")
    assert _started(os.getpid(), hidden) == "", "our own process would be visible: it has ended"
    monkeypatch.setattr(os, "kill", not_ours)
    assert _started(7, hidden) is None
    with hold(store, "smoke"):
        held = lease(store)
    store.create("smoke/.lease", json.dumps(held | {"pid": 2**22 + 1, "started": "1"}).encode())  # more than a kernel gives
    found = holding(store, "smoke")
    assert found is not None and not found.ended and not found.alive


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


def test_a_process_that_was_frozen_for_long_renews_its_lease_and_works_on(store: Store) -> None:
    first = holder(store, stale_seconds=1.0)
    first.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    first.send_signal(signal.SIGCONT)
    beat = lease(store)["beat"]
    wait_for(lambda: lease(store)["beat"] > beat)
    assert first.communicate("go\n") == ("committed\n", "")


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


def wait_for(happened: Any) -> None:
    """Returns when it has; pytest's own limit ends a wait that is in vain."""
    while not happened():
        time.sleep(0.02)


def test_a_lock_that_the_file_system_refuses_is_the_store_s_own_error(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "smoke" / ".lock").mkdir(parents=True)
    with pytest.raises(StoreRefused, match=r"smoke/\.lock: Is a directory"), store.lock("smoke"):
        pass
    with pytest.raises(OSError, match="of the block's own") as caught, store.lock("other"):
        raise OSError(errno.EIO, "of the block's own")
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("said", ["soon", "nan", "0", "-5", "3"])
def test_a_time_that_no_live_process_could_keep_takes_over_no_run(tmp_path: Path, said: str) -> None:
    program = (
        "import sys\nfrom flows.run.lease import hold\nfrom flows.storage import StoreRefused, open_store\n"
        "try:\n    with hold(open_store(sys.argv[1]), 'run'): print('held')\nexcept StoreRefused as error: print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | {"POPULORA_STALE_SECONDS": said},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"POPULORA_STALE_SECONDS={said}: give a number of seconds, at least 10\n"
