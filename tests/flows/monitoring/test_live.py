"""A run's live state, from its manifests, its tables and its heartbeat."""

import json
import re
import subprocess
import sys

import pytest

from flows.config import PROJECT
from flows.monitoring.live import NEWEST, Follower
from flows.monitoring.live_text import headline
from flows.monitoring.meter import Reading
from flows.monitoring.run_state import SILENT_SECONDS, StateReader
from flows.monitoring.run_tables import RunTables
from flows.monitoring.status import status
from flows.monitoring.working import Working
from flows.run.lease import DOING, STALE_SECONDS, hold
from flows.run.run import Run
from flows.storage import NotStored
from flows.store.file_store import FileStore
from tests.support import example_run
from tests.support.report_run import made


def follower(root, run_id, clock=None):
    run = Run(FileStore(root), run_id)
    return Follower(run, RunTables(run), StateReader(run.store, clock) if clock else None)


def lease(root, run_id, beat, doing, host="elsewhere"):
    """A lease of another machine, as its heartbeat writes it."""
    values = {"host": host, "pid": 7, "token": "t", "beat": beat, DOING: doing}
    (root / run_id / ".lease").write_text(json.dumps(values))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run of 12 generations that stopped after `grade` of its last, and a finished one."""
    root = tmp_path_factory.mktemp("store")
    with made(root, "going", 12, until="grade"):
        pass
    with hold(FileStore(root), "whole") as epoch:
        example_run.build(Run(FileStore(root), "whole", epoch), 3)
    return root


def test_a_run_at_work(store):
    working = Working()
    working.planned = 20
    reading = Reading((("pairs", 1.0, 4.0),), 640, 55.5, 30.0, "pairs")
    with working.step("reward", 11, None) as told:
        told(reading)
        lease(store, "going", 4, working.record())
    state = follower(store, "going").look()
    assert (state.condition, state.stage, state.generation, state.complete, state.planned) == ("running", "reward", 11, 11, 20)
    assert "\nnow        running reward of generation 11; 11 of 20 generations done; reward: 0 s so far · " in status(
        Run(FileStore(store), "going")
    )
    assert state.stage_share == 0.25 and state.speed == (55.5, "now") and 0.57 < state.share < 0.6
    assert [one.stage for one in state.done] == ["match", "propose", "verify", "solve", "grade"] and state.newest == 11
    assert state.left.stage == 30.0 and state.left.generation is not None and state.left.run is not None
    assert state.left.generation > 30.0 and state.left.run > 8 * 10
    tasks = Run(FileStore(store), "going").read_table(11, "tasks").to_pylist()
    assert state.tasks is not None and state.verdicts is not None and state.tasks.statuses is not None
    assert [row["task_id"] for row in state.tasks.rows] == [row["task_id"] for row in tasks[-NEWEST:]][::-1]
    assert sum(state.tasks.statuses.values()) == len(tasks)
    assert all(line.startswith(("g0010", "g0011")) for line in state.alarms)
    (store / "going" / ".lease").unlink()
    stopped = follower(store, "going").look()
    assert stopped.condition == "stopped" and stopped.steps == () and stopped.stage == "reward" and stopped.planned == 12


def test_an_optional_stage_is_skipped_as_the_heartbeat_says(store):
    with made(store, "late", 2, until="rate"):
        pass
    assert follower(store, "late").look().stage == "benchmark"
    working = Working()
    with working.step("evolve", 1, None):
        lease(store, "late", 1, working.record())
    assert follower(store, "late").look().stage == "evolve"
    with working.step("solve", 1, None):
        lease(store, "late", 2, working.record())
    assert follower(store, "late").look().stage == "benchmark", "an old heartbeat does not lead back"


def test_an_update_beside_the_rollouts_does_not_hide_where_the_run_is(store):
    with made(store, "early", 2, until="verify"):
        pass
    working = Working()
    with working.step("update", 1, "00"), working.step("solve", 1, None):
        lease(store, "early", 1, working.record())
        assert follower(store, "early").look().stage == "solve"


def test_a_finished_run(store):
    state = follower(store, "whole").look()
    assert (state.condition, state.stage, state.share, state.complete) == ("finished", "", 1.0, 3)
    lease(store, "whole", 1, {"planned": 5, "steps": []})
    more = follower(store, "whole").look()
    assert (more.condition, more.stage, more.generation, more.planned) == ("running", "match", 3, 5)
    lease(store, "whole", 2, {"planned": "garbled"})
    ending = follower(store, "whole").look()
    assert (ending.condition, ending.stage, ending.share) == ("running", "", 1.0)
    (store / "whole" / ".lease").unlink()


def test_it_sees_what_is_new_and_reads_a_table_once(tmp_path):
    with made(tmp_path, "grows", 2, until="verify"):
        pass
    found = follower(tmp_path, "grows")
    first = found.look()
    assert found.look().tasks is first.tasks
    assert (
        first.verdicts is not None and first.verdicts.generation == 0 and first.tasks is not None and first.tasks.generation == 1
    )
    assert first.stage == "solve"


def test_a_heartbeat_that_stands_still_is_silence(store):
    now = [0.0]
    lease(store, "going", 1, {})
    found = follower(store, "going", lambda: now[0])
    assert found.look().condition == "running"
    now[0] += SILENT_SECONDS + 1
    assert found.look().condition == "silent"
    now[0] += STALE_SECONDS
    assert found.look().condition == "crashed"
    lease(store, "going", 2, {})
    assert found.look().condition == "running"
    (store / "going" / ".lease").write_text("garbled")
    assert found.look().condition == "running"
    (store / "going" / ".lease").unlink()


def test_a_killed_process_is_said_everywhere(tmp_path):
    with made(tmp_path, "killed", 2, until="solve"):
        pass
    code = "with hold(open_store(sys.argv[1]), 'killed'): os.kill(os.getpid(), signal.SIGKILL)"
    code = f"import os, signal, sys\nfrom flows.run.lease import hold\nfrom flows.storage import open_store\n{code}"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=PROJECT, check=False)
    state = follower(tmp_path, "killed").look()
    assert (state.condition, state.stage, state.steps, state.left.run) == ("crashed", "grade", (), None)
    again = "Retry in Prefect or populora run --resume killed continues at"
    assert headline(state).startswith(f"crashed: its process was killed; {again}")
    assert re.search(
        r"^lease +left by process \d+ on host .+, which was killed$", status(Run(FileStore(tmp_path), "killed")), re.M
    )


def test_a_run_that_has_not_begun(tmp_path):
    with pytest.raises(NotStored, match="no run none"):
        follower(tmp_path, "none").look()
    run = Run(FileStore(tmp_path), "new")
    run.describe({"generations": 2}, {}, {})
    state = follower(tmp_path, "new").look()
    assert (state.stage, state.generation, state.share, state.left.run) == ("start", None, 0.0, None)


def test_a_damaged_table_is_a_fault_and_hides_nothing_else(tmp_path):
    with made(tmp_path, "hurt", 1, until="grade"):
        pass
    (tmp_path / "hurt" / "generation=0000" / "tasks.parquet").write_bytes(b"damaged")
    state = follower(tmp_path, "hurt").look()
    assert len(state.faults) == 1 and "its digest is not" in state.faults[0]
    assert state.tasks is not None and state.tasks.rows == () and state.verdicts is not None and state.verdicts.rows
