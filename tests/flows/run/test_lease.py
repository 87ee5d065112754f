"""The lease decides who starts, the epoch who commits; judged by the observer's own clock."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.run.lease import Fenced, LeaseHeld, _renew, _started, check_epoch, hold, holding, newest_epoch
from flows.run.run import Run
from flows.storage import NotStored, Store, open_store

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


def test_a_process_that_was_frozen_for_long_renews_its_lease_and_works_on(store: Store) -> None:
    first = holder(store, stale_seconds=1.0)
    first.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    first.send_signal(signal.SIGCONT)
    beat = lease(store)["beat"]
    wait_for(lambda: lease(store)["beat"] > beat)
    assert first.communicate("go\n") == ("committed\n", "")


def wait_for(happened: Any) -> None:
    """Returns when it has; pytest's own limit ends a wait that is in vain."""
    while not happened():
        time.sleep(0.02)


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
