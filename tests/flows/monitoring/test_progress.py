"""Progress: told by engine, trainer and judge, carried over the worker's border, and shown as bars or as lines."""

import errno
import io
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from flows.config import load
from flows.execution.run_stage import Spec
from flows.execution.stage_process import Workers
from flows.monitoring.meter import PERIOD, Meter, Reading, duration
from flows.monitoring.progress import Display, say, silence
from flows.notes.publish import progress_of
from flows.worker import _Backends
from stages.core.engines.hf_engine import HFEngine
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.engines.test_hf_engine import Letters, requests
from tests.stages.core.training.test_grouped_lora import random_weights
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS, lora_of, sample_rows
from tests.stages.test_loop_stages import (
    DIGESTS,
    PlainStyle,
    ScriptedEngine,
    SolvePlan,
    TableSandbox,
    grade,
    matches,
    solve,
    verified,
)

READING = Reading((("seed programs", 3.0, 48.0), ("completions", 12.5, 32.0)), 4210, 70.4, 754.0, "seed programs")


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Heard:
    """A `Progress` that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, float, int]] = []

    def __call__(self, what: str, done: float, total: float, tokens: int = 0) -> None:
        self.told.append((what, done, total, tokens))


def test_the_engine_tells_every_step() -> None:
    heard, lora = Heard(), lora_of(torch.float32)
    adapters = {f"s{n}": random_weights(lora, n) for n in range(3)}
    completions = HFEngine(lora, Letters(), adapters, batch_tokens=160, progress=heard).generate(requests(), 1.0)
    _, dones, totals, tokens = zip(*(told for told in heard.told if told[0] == "completions"), strict=True)
    assert {told[0] for told in heard.told} == {"prompts", "completions"} and set(totals) == {len(completions)}
    assert heard.told[1][:2] == ("prompts", 0) and heard.told[2][1] == heard.told[2][2]
    assert list(dones) == sorted(dones) and dones[0] == 0 and abs(dones[-1] - len(completions)) < 1e-9
    assert tokens[-1] == sum(len(one.token_ids) for one in completions) and list(tokens) == sorted(tokens)
    assert len(heard.told) > max(len(one.token_ids) for one in completions)  # once a token step of every batch


def test_the_trainer_tells_every_pass() -> None:
    heard, lora = Heard(), lora_of()
    adapters = {f"s{n}": Adapter(random_weights(lora, n), {}, 0) for n in range(3)}
    samples = sample_rows(adapters)
    trainer = TorchTrainer(lora, PAD, SETTINGS, progress=heard)
    trainer.update(adapters, samples)
    total = sum(len(ids) for ids in samples["completion_ids"].to_pylist())
    assert heard.told[0] == ("trained tokens", 0, total, 0) and heard.told[-1] == ("trained tokens", total, total, total)
    assert len(heard.told) > 2
    assert weights_sha256(adapters["s0"].weights) == weights_sha256(random_weights(lora_of(), 0))


def test_the_judge_tells_every_answer() -> None:
    known = {("p", "1"): "7", ("p", "2"): "8", ("4", "5"): "4"}
    _, tasks = verified("p|1", "no", "p|2", "q|2", "4|5", "no", known=known)
    plan = SolvePlan(attempts=2, max_new_tokens=8, temperature=1.0)
    rollouts = solve(matches(), DIGESTS, tasks, ScriptedEngine("7"), PlainStyle(), plan, seed=0, generation=0)
    heard = Heard()
    grade(tasks, rollouts, TableSandbox(known), progress=heard)
    count = rollouts.num_rows
    assert count and heard.told == [("answers", done, count, 0) for done in range(count + 1)]


def test_readings_hold_rate_and_time_left_of_the_outermost_count() -> None:
    clock, readings = Clock(), list[Reading]()
    meter = Meter(readings.append, clock)
    meter("seed programs", 1, 5)
    meter("completions", 0, 32)
    clock.now = 10.0
    meter("completions", 8, 32, 400)
    assert readings[-1].counts == (("seed programs", 1, 5), ("completions", 8, 32))
    assert (readings[-1].tokens, readings[-1].tokens_a_second, readings[-1].seconds_left) == (400, 40.0, 30.0)
    assert readings[-1].left_of == "completions" and str(readings[-1]).startswith("30 s left of completions · 40 tokens/s · seed")
    clock.now = 40.0
    meter("completions", 32, 32, 1600)
    meter("seed programs", 2, 5)
    meter("completions", 0, 32)  # the next round
    clock.now = 50.0
    meter("completions", 16, 32, 500)
    assert (readings[-1].seconds_left, readings[-1].left_of) == (150.0, "seed programs")  # one program in 50 s, three to go
    assert readings[-1].tokens == 2100 and readings[-1].tokens_a_second == 50.0
    assert readings[-1].share == 2 / 5
    meter.begin()
    clock.now = 60.0
    meter("answers", 0, 10)
    assert readings[-1] == Reading((("answers", 0, 10),), 0, None, None)


def test_no_time_is_told_before_a_twentieth_is_done() -> None:
    clock, readings = Clock(), list[Reading]()
    meter = Meter(readings.append, clock)
    meter("engine and trainer compared", 0, 1)
    clock.now = 5.0
    meter("engine and trainer compared", 1, 1)
    assert readings[-1].seconds_left is None  # it is over, and says nothing of what follows
    meter("completions", 0, 200)
    for now, done, left in ((35.0, 9, None), (45.0, 10, 760.0)):  # all prompts are read before the first completion
        clock.now = now
        meter("completions", done, 200, done)
        assert readings[-1].seconds_left == left


def test_readings_are_few() -> None:
    clock, readings = Clock(), list[Reading]()
    meter = Meter(readings.append, clock)
    for step in range(10_000):
        clock.now = step / 1000
        meter("completions", step, 10_000, step)
    assert len(readings) <= 10 / PERIOD


def test_a_reading_as_text() -> None:
    assert str(READING) == "13 min left · 70 tokens/s · seed programs 3/48 · completions 12/32 · 4,210 tokens"
    assert str(Reading((("answers", 3, 10),), 0, None, None)) == "answers 3/10"
    assert [duration(seconds) for seconds in (4.4, 99, 100, 5940, 12_000)] == ["4 s", "99 s", "2 min", "99 min", "3 h 20 min"]


def test_the_progress_note_says_the_same() -> None:
    assert progress_of(None, "start", READING, 4) == (0.0, f"start: {READING}")
    share, what = progress_of(1, "propose", READING, 4)
    assert (share, what) == ((1 + (1 + 3 / 48) / 10) / 4, f"propose of generation 1 (2 of 4): {READING}")
    assert progress_of(1, "propose", None, 4) == ((1 + 1 / 10) / 4, "propose of generation 1 (2 of 4)")


def test_progress_crosses_the_border_of_the_worker(tmp_path: Path) -> None:
    """A worker that reports twice before it answers, and one step of which nothing is told."""
    lines = [json.dumps({"progress": asdict(READING)})] * 2 + [json.dumps({"done": {"stage": "grade"}})]
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread spec\n" + "".join(f"echo '{line}'\n" for line in lines) + "read end\n")
    python.chmod(0o755)
    told: list[Reading] = []
    spec = Spec("file:///nowhere", "run", "grade", 0, None, 0, 1)
    with Workers(1) as workers:
        assert workers.run(spec, str(python), told.append) == {"stage": "grade"}
    assert [reading.share for reading in told] == [READING.share] * 2 and str(told[0]) == str(READING)


def test_a_worker_tells_only_while_a_step_runs() -> None:
    answers = io.StringIO()
    backends = _Backends(answers)
    backend = backends.of(load("chaos", []))
    time.sleep(PERIOD)
    backend.progress("completions", 1, 2, 10)
    assert answers.getvalue() == "" and backends.of(load("chaos", [])) is backend
    backends._running = True
    time.sleep(PERIOD)
    backend.progress("completions", 2, 2, 20)
    assert json.loads(answers.getvalue())["progress"]["counts"] == [["completions", 2, 2]]


def test_lines_without_a_terminal() -> None:
    """A step that reports nothing is named too; nothing is said of a step that has ended."""
    lines: list[str] = []
    with Display(lines.append, Console(file=io.StringIO(), force_terminal=False), line_seconds=0.05) as display:
        with display.step("start"):
            wait_for(lambda: lines)
        with display.step("generation 0 (1 of 6) · solve") as told:
            told(READING)
            wait_for(lambda: any("solve" in line for line in lines))
        ended = len(lines)
        time.sleep(0.2)
    assert lines[0] == "start: 0 s so far"
    assert lines[-1] == f"generation 0 (1 of 6) · solve: 0 s so far · {READING}" and len(lines) == ended


def test_lines_that_cannot_be_written_end_no_run() -> None:
    """A full disk behind the log: lines go out when it has room. A reader that has gone: nowhere, also at the process's end."""
    with open("/dev/full", "w") as full:
        with Display(line_seconds=0.05) as display, display.step("start"):
            display.print("g0000", full)
            say("g0001", full)
            time.sleep(0.2)
        silence(full)
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as unread:
        for line in ("g0000", "g0001"):
            display.print(line, unread)


def test_bars_on_a_terminal_that_ends_end_no_run() -> None:
    class Ended(io.StringIO):
        """A terminal whose window is closed."""

        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    lines = io.StringIO()
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Display(lambda line: None, console) as display:
        console.file = Ended()
        display.print("g0000", lines)


def test_bars_on_a_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with Display(lambda line: None, console) as display, display.step("generation 0 (1 of 6) · solve", 0.25) as told:
        told(READING)
        wait_for(lambda: "70 tokens/s" in screen.getvalue())
    shown = screen.getvalue()
    assert "generation 0 (1 of 6) · solve" in shown and "13 min left" in shown and "25%" in shown


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()
