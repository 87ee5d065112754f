"""The early worker: taken by the first step that needs one, ended where none does."""

import os
import pickle
import sys
from pathlib import Path

import pytest

from flows.config import ConfigError, load
from flows.execution.orphan_guard import _children
from flows.execution.run_stage import Spec
from flows.execution.stage_process import _KNOWN, StageFailed, WorkerLost, Workers, early_worker, stage_hours
from stages.core.child_process import ChildProcess, _runs
from stages.core.engines.protocol import EngineUnavailable


def _alive() -> set[int]:
    return _children(os.getpid())


STEP = ("none", "match", 0, None, 0, 1)


def test_the_first_step_takes_the_early_worker(tmp_path: Path) -> None:
    before = _alive()
    with early_worker(load("chaos", []), prepare=True) as check:
        check()
        (early,) = _alive() - before
        with Workers(1) as workers:
            with pytest.raises(StageFailed, match=r"run none has no run\.json"):
                workers.run(Spec(tmp_path.as_uri(), *STEP))
            assert _alive() - before == {early}
        assert _alive() == before


def test_an_early_worker_that_nobody_takes_ends(tmp_path: Path) -> None:
    before = _alive()
    with early_worker(load("chaos", ["threads=2"]), prepare=False):
        with Workers(1) as workers, pytest.raises(StageFailed):  # a worker of other threads is another one
            workers.run(Spec(tmp_path.as_uri(), *STEP))
        assert len(_alive() - before) == 1
    assert _alive() == before


def test_the_early_worker_says_what_hinders_the_run() -> None:
    config = load("chaos", ["model.name=no-such-folder"])
    with early_worker(config, prepare=True) as check, pytest.raises(ConfigError, match=r"model\.name: folder .* does not exist"):
        check()


def stand_in(script: str, errors: int | None = None) -> ChildProcess:
    """A process in a worker's place, which has written its first answer."""
    made = ChildProcess([sys.executable, "-c", script], group=True, errors=errors)
    assert made.answer() == {}
    return made


def check_replaced(workers: Workers, gone: ChildProcess, folder: Path) -> None:
    """The worker has ended, and the next step is done by another one."""
    assert not gone.running
    with pytest.raises(StageFailed, match=r"run none has no run\.json"):
        workers.run(Spec(folder.as_uri(), *STEP))


def test_a_worker_that_dies_before_it_is_told_is_the_world_s_fault_and_replaced(tmp_path: Path) -> None:
    """It still lives when looked at, and hears no more: what a step meets whose worker is just being killed."""
    dying = stand_in("import os, time; os.close(0); print('{}', flush=True); time.sleep(60)")
    with Workers(1) as workers:
        workers._running[sys.executable] = dying
        with pytest.raises(WorkerLost, match="exited before it received its step"):
            workers.run(Spec(tmp_path.as_uri(), *STEP))
        check_replaced(workers, dying, tmp_path)


DEAD_ENGINE = """
import json, sys
print('{}', flush=True)
for order in sys.stdin:
    print(json.dumps({"error": "EngineUnavailable", "message": "vLLM has died"}), flush=True)
"""


def test_a_worker_whose_engine_has_died_is_replaced(tmp_path: Path) -> None:
    broken = stand_in(DEAD_ENGINE)
    with Workers(1) as workers:
        workers._running[sys.executable] = broken
        with pytest.raises(EngineUnavailable, match="vLLM has died"):
            workers.run(Spec(tmp_path.as_uri(), *STEP))
        check_replaced(workers, broken, tmp_path)


LEFT_BEHIND = """
import subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
print('{"engine": %d}' % engine.pid, flush=True)
"""


@pytest.mark.parametrize("step", ["match", "update"])
def test_what_an_idle_worker_leaves_behind_when_it_dies_ends_before_the_next_step(step: str, tmp_path: Path) -> None:
    """Such as vLLM's engine process, which does not watch its parent, and holds the memory of a GPU."""
    died = ChildProcess([sys.executable, "-c", LEFT_BEHIND], group=True)
    engine = (died.answer() or {})["engine"]
    died.process.wait()
    assert Path(f"/proc/{engine}").exists()
    with Workers(1) as workers:
        workers._running["another" if step == "update" else sys.executable] = died
        with pytest.raises(StageFailed, match=r"run none has no run\.json"):
            workers.run(Spec(tmp_path.as_uri(), "none", step, 0, "0of1" if step == "update" else None, 0, 1))
        assert not _runs(died.process.pid)


NOTING = """
import json, sys
print('{}', flush=True)
for line in sys.stdin:
    order = json.loads(line)
    with open(sys.argv[1], "a") as notes:
        notes.write(f"{sys.argv[2]} {order.get('stage', 'rest')}\\n")
    print(json.dumps({"done": {}}), flush=True)
"""


def test_engines_of_the_card_sleep_before_an_optimizer_step_and_not_before_others(tmp_path: Path) -> None:
    """That of the worker which trains sleeps inside the step, if vLLM is installed in the project's own interpreter."""
    notes = tmp_path / "notes"
    with Workers(1) as workers:
        for name, python in (("own", sys.executable), ("vllm", "another")):
            made = ChildProcess([sys.executable, "-c", NOTING, str(notes), name], group=True)
            assert made.answer() == {}
            workers._running[python] = made
        for stage, part in (("solve", "0of2"), ("update", "0of1"), ("update", None)):
            workers.run(Spec(tmp_path.as_uri(), "none", stage, 0, part, 0, 1))
    assert notes.read_text().split("\n") == ["own solve", "vllm rest", "own update", "own update", ""]


STUCK = """
import faulthandler, re, signal
faulthandler.register(signal.SIGUSR1)
print('{}', flush=True)
re.match('(a*)*b', 'a' * 99)
"""


def test_a_stage_that_passes_its_deadline_shows_where_it_is_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPULORA_STAGE_HOURS", "0.0001")
    with (tmp_path / "errors").open("w") as errors, Workers(1) as workers:
        stuck = workers._running[sys.executable] = stand_in(STUCK, errors.fileno())
        with pytest.raises(StageFailed, match=r"stage match took longer than 0\.0001 h .* POPULORA_STAGE_HOURS"):
            workers.run(Spec(tmp_path.as_uri(), *STEP))
        assert not stuck.running
    assert "re/__init__.py" in (tmp_path / "errors").read_text()


@pytest.mark.parametrize("hours", ["0", "-1", "soon", "nan", "inf", ""])
def test_a_deadline_that_is_none(hours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPULORA_STAGE_HOURS", hours)
    with pytest.raises(ConfigError, match=f"POPULORA_STAGE_HOURS={hours}: give the hours"):
        stage_hours()


@pytest.mark.parametrize("name", sorted(_KNOWN))
def test_a_known_error_is_made_from_its_text_and_survives_a_pickle(name: str) -> None:
    """Ray hands errors on as pickles."""
    error = _KNOWN[name]("adapters/s0: wrong digest")
    again = pickle.loads(pickle.dumps(error))
    assert type(again).__name__ == name and str(again) == str(error) == "adapters/s0: wrong digest"
