"""States of runs: at work, ended, killed, and left by a process of another host."""

import json
import time
from pathlib import Path

from flows.monitoring.run_state import SILENT_SECONDS, RunState, Standing, StateReader
from flows.run.lease import BEATEN, hold
from flows.store.file_store import FileStore


def test_a_held_run_works_a_left_one_has_stopped_or_finished(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    reader = StateReader(store)
    with hold(store, "one"):
        found = reader.standing("one", False)
        assert found.state == RunState.RUNNING and found.who.startswith("process ")
        assert reader.standing("one", True).state == RunState.RUNNING
    assert reader.standing("one", False) == Standing(RunState.STOPPED, "")
    assert reader.standing("one", True) == Standing(RunState.FINISHED, "")


def test_a_lease_whose_process_is_gone_is_a_crash(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with hold(store, "one"):
        lease = json.loads(store.read("one/.lease"))
    store.replace("one/.lease", json.dumps(lease | {"pid": 2**22 + 1}).encode())
    found = StateReader(store).standing("one", False)
    assert found.state == RunState.CRASHED and found.who == f"process {2**22 + 1} on host {lease['host']}"
    assert StateReader(store).standing("one", True).state == RunState.FINISHED


def test_another_hosts_lease_works_until_its_heartbeat_stands_still(tmp_path: Path) -> None:
    store, now = FileStore(tmp_path), [0.0]
    reader = StateReader(store, lambda: now[0], stale_seconds=10.0)

    def beat(number: int) -> None:
        store.replace("one/.lease", json.dumps({"host": "elsewhere", "pid": 7, "token": "a", "beat": number}).encode())

    beat(1)
    assert reader.standing("one", False).state == RunState.RUNNING
    now[0] = 9.0
    beat(2)
    assert reader.standing("one", False).state == RunState.RUNNING
    now[0] = 18.0
    assert reader.standing("one", False).state == RunState.RUNNING
    now[0] = 19.5
    assert reader.standing("one", False) == Standing(RunState.CRASHED, "process 7 on host elsewhere")
    beat(3)
    assert reader.standing("one", False).state == RunState.RUNNING
    patient = StateReader(store, lambda: now[0], stale_seconds=180.0)
    assert patient.standing("one", False).state == RunState.RUNNING
    now[0] += SILENT_SECONDS + 1
    assert patient.standing("one", False) == Standing(RunState.SILENT, "process 7 on host elsewhere")


def test_a_process_of_this_machine_that_writes_no_heartbeat_is_silent_at_the_first_look(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with hold(store, "one"):
        lease = json.loads(store.read("one/.lease"))
        for seconds, state in ((20.0, RunState.RUNNING), (40.0, RunState.SILENT), (4000.0, RunState.SILENT)):
            values = lease | {BEATEN: time.monotonic() - seconds, "beat": 9}
            store.replace("one/.lease", json.dumps(values).encode())
            assert StateReader(store).standing("one", False).state == state
        for seconds, state in ((20.0, RunState.RUNNING), (40.0, RunState.SILENT), (4000.0, RunState.CRASHED)):
            other = lease | {BEATEN: time.monotonic() - seconds, "namespace": "pid:[1]"}
            store.replace("one/.lease", json.dumps(other).encode())
            assert StateReader(store).standing("one", False).state == state, "a container's process cannot be seen from here"
        store.replace("one/.lease", json.dumps(lease | {BEATEN: time.monotonic() - 4000.0, "boot": "another"}).encode())
        assert StateReader(store).standing("one", False).state == RunState.RUNNING, "clocks of two boots are not compared"
