"""Processes that a pool's worker keeps for the flow runs of its machine: who starts them, who shares them, and when they end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flows import cards
from flows.config import PROJECT, ConfigError
from flows.execution.code_version import check_version, own_version
from flows.execution.residents import ADDRESS, Residents, idle_minutes, order_of, run_resident
from flows.execution.run_stage import Spec
from flows.execution.stage_process import WorkerLost
from flows.monitoring.meter import Reading
from stages.core.unavailable import Unsuited
from tests.flows.execution.test_slots import _alive
from tests.support.cards import Machine, machine, step

PYTHON = sys.executable
DESCRIPTION = {"config": {"seed": 0}, "clock": {"started": 1.0}}
ASK = "import json, sys; from flows.execution.residents import run_resident; "
ASK += "print(run_resident(sys.argv[1], json.loads(sys.argv[2]), print)['stage'])"
KEEP = """
import signal, sys, time
from flows import cards
from flows.execution import orphan_guard
from flows.execution.residents import Residents
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs without it
orphan_guard.start()
sys.executable = sys.argv[1]
with Residents(cards.cards(), 60) as kept:
    print(kept.address, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machine(tmp_path, monkeypatch, 2)


def silent(_: Reading) -> None:
    return None


def asked(spec: Spec, python: str = "", description: dict[str, Any] = DESCRIPTION, threads: int = 1) -> dict[str, Any]:
    return order_of(spec, description, threads, python)


def flow_run(address: str, order: dict[str, Any]) -> "subprocess.Popen[str]":
    """A process of its own, as Prefect starts one for each stage."""
    command = [PYTHON, "-c", ASK, address, json.dumps(order)]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_over_three_generations_of_flow_runs_an_engine_starts_once_a_card(two: Machine) -> None:
    with Residents(cards.cards(), 60) as kept:
        assert os.environ[ADDRESS] == kept.address
        for generation in range(3):
            stages = [step("propose", generation, "00"), step("propose", generation, "01")]
            runs = [flow_run(kept.address, asked(spec, two.engine)) for spec in stages]
            assert [run.communicate()[0] for run in runs] == ["noted\n"] * 2
            updates = [asked(step("update", generation, "00")), asked(step("update", generation, "01"))]
            with ThreadPoolExecutor(2) as threads:
                done = threads.map(lambda order: run_resident(kept.address, order, silent), updates)
                assert [one["stage"] for one in done] == ["noted"] * 2
    assert ADDRESS not in os.environ
    assert sorted(one.card for one in two.noted("start", "engine")) == ["0", "1"]
    assert sorted(one.card for one in two.noted("start", "trainer")) == ["0", "1"]
    assert len(two.noted("step", "engine")) == 3 * 2 * 3  # a probe, proposals, and sleep before the update
    until(lambda: not any(_alive(one.pid) for one in two.noted("start")))


@pytest.mark.parametrize(
    ("other", "description", "threads"),
    [
        (step("update", 0, "00", run_id="other"), DESCRIPTION, 1),
        (step("update", 0, "00"), {"config": {"seed": 1}, "clock": {"started": 1.0}}, 1),
        (step("update", 0, "00"), {"config": {"seed": 0}, "clock": {"started": 2.0}}, 1),  # made again under its name
        (step("update", 0, "00"), DESCRIPTION, 2),
    ],
)
def test_what_differs_has_processes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Spec, description: dict[str, Any], threads: int
) -> None:
    one = machine(tmp_path, monkeypatch, 1)
    with Residents(cards.cards(), 60) as kept:
        run_resident(kept.address, asked(step("update", 0, "00")), silent)
        run_resident(kept.address, asked(step("update", 1, "00")), silent)
        run_resident(kept.address, asked(other, "", description, threads), silent)
        first, second = one.noted("start")
        assert not _alive(first.pid) and _alive(second.pid)


def test_progress_and_errors_come_back_as_they_are(two: Machine) -> None:
    reading = {"counts": [["completions", 1, 2]], "tokens": 3, "tokens_a_second": None, "seconds_left": None, "left_of": ""}
    progress, failure = json.dumps({"progress": reading}), '{"error": "SandboxUnavailable", "message": "it is away"}'
    told: list[Reading] = []
    python = two.interpreter("engine", f"echo '{progress}'; echo '{failure}'")
    with Residents(cards.cards(), 60) as kept, pytest.raises(Exception, match=r"^it is away$") as raised:
        run_resident(kept.address, asked(step("benchmark"), python), told.append)
    assert type(raised.value).__name__ == "SandboxUnavailable"
    assert told == [Reading([["completions", 1, 2]], 3, None, None)]  # type: ignore[arg-type]


def test_a_flow_run_that_is_killed_takes_its_process_with_it_and_the_next_begins_another(two: Machine) -> None:
    slow = two.interpreter("engine", "sleep 600")
    with Residents(cards.cards(), 60) as kept:
        run = flow_run(kept.address, asked(step("benchmark"), slow))
        until(lambda: len(two.noted("step")) == 1)
        run.kill()
        run.communicate()
        until(lambda: not _alive(two.noted("start")[0].pid))
        assert run_resident(kept.address, asked(step("benchmark"), two.interpreter("engine")), silent)["stage"] == "noted"
    assert len(two.noted("start")) == 2


def test_who_hangs_up_while_it_waits_for_a_card_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(tmp_path, monkeypatch, 1)
    slow = one.interpreter("engine", "while [ ! -e $0.go ]; do sleep 0.1; done")
    with Residents(cards.cards(), 60) as kept, ThreadPoolExecutor(1) as threads:
        first = threads.submit(run_resident, kept.address, asked(step("benchmark"), slow), silent)
        until(lambda: len(one.noted("step")) == 1)
        with socket.socket(socket.AF_UNIX) as second:
            second.connect(kept.address)
            second.sendall(json.dumps(asked(step("update", 0, "00", run_id="other"))).encode() + b"\n")
            time.sleep(0.5)
        time.sleep(0.5)
        Path(f"{slow}.go").touch()
        assert first.result()["stage"] == "noted"
        time.sleep(1.0)
        assert [noted.name for noted in one.noted("start")] == ["engine"] and _alive(one.noted("start")[0].pid)


def test_idle_processes_end(two: Machine) -> None:
    with Residents(cards.cards(), 0.01) as kept:
        run_resident(kept.address, asked(step("update", 0, "00")), silent)
        until(lambda: not _alive(two.noted("start")[0].pid))
        run_resident(kept.address, asked(step("update", 1, "00")), silent)
    assert len(two.noted("start")) == 2


def test_a_worker_that_is_gone_is_lost_and_leaves_no_process(two: Machine) -> None:
    keeper = subprocess.Popen([PYTHON, "-c", KEEP, two.trainer], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert keeper.stdout is not None
    address = keeper.stdout.readline().strip()
    time.sleep(1.5)  # the guard looks twice a second
    slow = two.interpreter("engine", "sleep 600")
    run = flow_run(address, asked(step("benchmark"), slow))
    until(lambda: len(two.noted("step")) == 1)
    time.sleep(1.5)
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()
    last = run.communicate()[1].splitlines()[-1]
    assert last.endswith("WorkerLost: the worker of this machine ended before stage benchmark did")
    until(lambda: not _alive(two.noted("start")[0].pid))
    with pytest.raises(WorkerLost, match="the worker of this machine ended before stage update did"):
        run_resident(address, asked(step("update", 0, "00")), silent)


def test_a_worker_of_another_version_says_so_and_does_nothing(two: Machine) -> None:
    line = f"the worker on {socket.gethostname()} has version {own_version()}, the run 9.9: install the same version there"
    line += " and start its worker again"
    with pytest.raises(Unsuited, match=f"^{re.escape(line)}$"):
        check_version("9.9")
    check_version(own_version())
    with Residents(cards.cards(), 60) as kept, pytest.raises(Unsuited, match=f"^{re.escape(line)}$"):
        run_resident(kept.address, asked(step("update", 0, "00")) | {"version": "9.9"}, silent)
    assert two.noted("start") == []


def test_a_step_at_work_when_the_worker_ends_is_lost_not_failed(two: Machine) -> None:
    slow = two.interpreter("engine", "sleep 600")
    with ThreadPoolExecutor(1) as threads:
        with Residents(cards.cards(), 60) as kept:
            asking = threads.submit(run_resident, kept.address, asked(step("benchmark"), slow), silent)
            until(lambda: len(two.noted("step")) == 1)
        with pytest.raises(WorkerLost, match=r"^the worker of this machine ended before stage benchmark did$"):
            asking.result()


@pytest.mark.parametrize("minutes", ["0", "-1", "soon", "nan", "inf", ""])
def test_minutes_that_are_none(minutes: str) -> None:
    assert idle_minutes({}) == 60
    with pytest.raises(ConfigError, match=f"POPULORA_IDLE_MINUTES={minutes}: give the minutes"):
        idle_minutes({"POPULORA_IDLE_MINUTES": minutes})


def test_only_its_user_may_ask(two: Machine) -> None:
    with Residents(cards.cards(), 60) as kept:
        assert Path(kept.address).parent.stat().st_mode & 0o777 == 0o700
    assert not Path(kept.address).parent.exists()


def test_a_long_temporary_folder_leaves_room_for_the_socket(
    two: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("a" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Residents(cards.cards(), 60) as kept:
        assert run_resident(kept.address, asked(step("update", 0, "00")), silent)["stage"] == "noted"
        assert Path(kept.address).parent.stat().st_mode & 0o777 == 0o700
    assert list(long.iterdir()) == []


def test_a_signal_ends_the_worker_s_processes(two: Machine) -> None:
    """The keeper leaves its `with` as at Ctrl-C."""
    command, quiet = [PYTHON, "-c", KEEP, two.trainer], subprocess.DEVNULL
    keeper = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=quiet, text=True)
    assert keeper.stdout is not None
    address = keeper.stdout.readline().strip()
    run_resident(address, asked(step("update", 0, "00")), silent)
    keeper.send_signal(signal.SIGINT)
    keeper.wait(60)
    keeper.stdout.close()
    until(lambda: not any(_alive(one.pid) for one in two.noted("start")))
