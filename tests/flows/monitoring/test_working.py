"""What a process computes, as a small record in its lease: bounded, and read without trust."""

import json
from contextlib import ExitStack

import pytest

from flows.monitoring.meter import Reading
from flows.monitoring.working import STEPS, Step, Working, planned_by, steps_of
from flows.run.lease import hold, holding
from flows.store.file_store import FileStore

READING = Reading((("completions", 12.0, 96.0), ("tokens", 3.0, 4.0)), 640, 55.5, 30.0, "completions")


def test_a_record_names_the_running_steps_with_their_newest_reading():
    now = [100.0]
    working = Working(lambda: now[0])
    working.planned = 7
    with working.step("propose", 3, "00") as told, working.step("verify", 3, None):
        told(Reading((("completions", 1.0, 96.0),), 10, None, None))
        told(READING)
        now[0] += 12.34
        record = json.loads(json.dumps(working.record()))
    assert planned_by(record) == 7
    assert steps_of(record) == (Step("propose", 3, "00", 12.3, READING), Step("verify", 3, None, 12.3))
    assert steps_of(working.record()) == ()


def test_a_step_that_fails_is_no_longer_running():
    working = Working()
    with pytest.raises(OSError), working.step("solve", 0, None):
        raise OSError
    assert steps_of(working.record()) == ()


def test_a_record_keeps_the_steps_that_are_first_in_a_generation():
    working = Working()
    with ExitStack() as stack:
        for part in range(STEPS):
            stack.enter_context(working.step("update", 0, f"{part:02d}"))
        stack.enter_context(working.step("verify", 0, None))
        found = steps_of(working.record())
    assert found[0].stage == "verify" and len(found) == STEPS


def test_a_record_is_bounded():
    working = Working()
    steps = [working.step("update", 0, f"{part:02d}") for part in range(100)]
    for step in steps:
        step.__enter__()
    assert len(json.dumps(working.record())) < 4096 and len(steps_of(working.record())) == STEPS


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"steps": "many"},
        {"steps": [None, 3, {"stage": "solve"}, {"stage": "solve", "generation": "x", "part": None, "seconds": 1}]},
        {"steps": [{"stage": "solve", "generation": 1, "part": None, "seconds": 1e400}]},
        {"steps": [{"stage": "solve", "generation": 1, "part": None, "seconds": 1, "reading": {"counts": "none"}}]},
        {"planned": True},
    ],
)
def test_a_record_of_another_shape_says_nothing(record):
    assert steps_of(record) == () and planned_by(record) == 0


def test_every_heartbeat_carries_it(tmp_path):
    store, working = FileStore(tmp_path), Working()
    working.planned = 5
    with hold(store, "run", beat_seconds=0.01, doing=working.record), working.step("solve", 2, None):
        found = holding(store, "run")
        while found is None or not found.doing.get("steps"):
            found = holding(store, "run")
        assert [step.stage for step in steps_of(found.doing)] == ["solve"]
    assert holding(store, "run") is None
