"""`populora watch`: lines without a terminal, a table that fits one, and how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from flows.config import PROJECT
from flows.monitoring.live import DoneStage, Follower, LiveState, Tail
from flows.monitoring.live_text import changes, headline
from flows.monitoring.meter import Reading
from flows.monitoring.run_tables import RunTables
from flows.monitoring.time_left import TimeLeft
from flows.monitoring.watching import STOPPED_SECONDS, table, watch
from flows.monitoring.working import Step
from flows.run.lease import STALE_SECONDS, hold
from flows.run.run import Run
from flows.storage import StoreUnavailable
from flows.store.file_store import FileStore
from tests.support import example_run

LISTENS = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
"""A program that becomes the one in its arguments, with SIGINT as a terminal gives it."""
HOSTILE = "[red]def f(x):[/red]\n\x1b[2Jreturn '\u202e'"
READING = Reading((("completions", 24.0, 96.0),), 640, 55.5, 30.0, "completions")
ROW = {"task_id": "g0001-m00-p000", "teacher_id": "t0", "kind": "deduction", "status": "valid", "program": HOSTILE}
RUNNING = LiveState(
    "run", "running", 4, 1, "solve", 1, (Step("solve", 1, None, 12.0, READING),), TimeLeft(30.0, 90.0, 500.0), (55.5, "now"), 1,
    (DoneStage("match", 0.1, {}), DoneStage("propose", 60.0, {"proposals": 12})),
    Tail(1, (ROW,), {"valid": 10, "error": 2}), None, ("g0001 drift: too far",), (),
)  # fmt: skip
LATER = replace(
    RUNNING,
    stage="grade",
    steps=(),
    done=(*RUNNING.done, DoneStage("solve", 42.0, {"answers": 40})),
    alarms=("g0001 slow: solve",),
)
FINISHED = replace(LATER, condition="finished", stage="", generation=None, complete=4)


def run_through(states, console, clock=lambda: 0.0):
    """What `watch` returns when these are what it sees; an exception is raised where it stands."""
    left = list(states)

    def look():
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return watch(look, console, lambda _: None, clock)


def test_without_a_terminal_a_line_for_each_change():
    out = io.StringIO()
    assert run_through([RUNNING, RUNNING, LATER, FINISHED], Console(file=out, width=40)) == 0
    assert out.getvalue().splitlines() == [
        "run: running solve of generation 1; 1 of 4 generations done",
        "tasks of generation 1: valid 10, error 2",
        "alarm: g0001 drift: too far",
        "solve of generation 1: done in 42 s; answers 40",
        "grade of generation 1: running; about 8 min left of the run",
        "alarm: g0001 slow: solve",
        "generation 3 done: 4 of 4",
        "run: finished: 4 of 4 generations done",
    ]


def test_a_new_generation_begins_its_list_anew():
    following = replace(LATER, complete=2, stage="propose", generation=2, newest=2, done=(DoneStage("match", 0.1, {}),))
    assert list(changes(LATER, following)) == [
        "generation 1 done: 2 of 4",
        "match of generation 2: done in 0 s",
        "propose of generation 2: running; about 8 min left of the run",
    ]


def test_the_last_stages_of_a_generation_come_before_its_end():
    ended = (*LATER.done, DoneStage("benchmark", 21.0, {}), DoneStage("evolve", 0.0, {}))
    last = replace(LATER, condition="finished", stage="", generation=None, planned=2, complete=2, done=ended, alarms=())
    assert list(changes(LATER, last)) == [
        "benchmark of generation 1: done in 21 s",
        "evolve of generation 1: done in 0 s",
        "generation 1 done: 2 of 2",
        "run: finished: 2 of 2 generations done",
    ]


@pytest.mark.parametrize("width", [200, 80, 30])
def test_a_table_fits_the_terminal_and_obeys_no_text(width):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(table(replace(RUNNING, faults=("[bold]broken[/bold]\x1b]0;title\x07",))))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text and "\u202e" not in text and "[bold]" in text
    assert text.count("Newest tasks") == 1
    assert width < 80 or ("[red]def f" in text and "\\x1b[2J" in text and "about 90 s left of the generation" in text)


def test_on_a_terminal_it_ends_with_the_last_table():
    out = io.StringIO()
    assert run_through([RUNNING, FINISHED], Console(file=out, width=100, force_terminal=True)) == 0
    assert "finished: 4 of 4 generations done" in out.getvalue()


def test_a_run_that_nobody_works_on_ends_it_after_a_while():
    now, out = [0.0], io.StringIO()

    def clock():
        now[0] += 1.0
        return now[0]

    stopped = replace(RUNNING, condition="stopped", steps=())
    assert run_through([RUNNING, stopped], Console(file=out), clock) == 1
    assert STOPPED_SECONDS <= now[0] < 3 * STOPPED_SECONDS and "resumes it" in out.getvalue()
    now[0] = 0.0
    assert run_through([replace(RUNNING, condition="silent")], Console(file=out), clock) == 1 and now[0] >= STALE_SECONDS


def test_a_store_that_does_not_answer_is_asked_again():
    out = io.StringIO()
    fault = StoreUnavailable("bucket: timed out\nmore")
    assert run_through([RUNNING, fault, fault, FINISHED], Console(file=out)) == 0
    assert out.getvalue().count("the store does not answer (bucket: timed out); asking again") == 1
    with pytest.raises(StoreUnavailable):
        run_through([fault], Console(file=out))


def test_headlines():
    assert headline(replace(RUNNING, condition="silent")).startswith("no heartbeat")
    assert headline(replace(FINISHED, condition="running")) == "4 of 4 generations done; the run is ending"
    assert headline(replace(RUNNING, condition="stopped", stage="start", generation=None)).startswith("stopped: no process")


def test_the_command_ends_with_the_run_and_leaves_quietly(tmp_path):
    with hold(FileStore(tmp_path), "whole") as epoch:
        example_run.build(Run(FileStore(tmp_path), "whole", epoch), 1)
    description = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert description["config"]["generations"] == 3
    command = [sys.executable, "-m", "flows.cli", "watch", "whole", "--store", str(tmp_path)]
    # Whoever runs the tests with nohup or in the background has SIGINT ignored, and a child inherits that: not so at a terminal.
    listening = [sys.executable, "-c", LISTENS, *command]
    with subprocess.Popen(listening, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("whole: stopped: no process works on the run; populora run")
        assert f"--store {tmp_path} --resume whole continues at match of generation 1; 1 of 3 generations done" in said
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (130, "") and "Traceback" not in out
    description["config"]["generations"] = 1
    (tmp_path / "whole" / "run.json").write_text(json.dumps(description))
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0 and "whole: finished: 1 of 1 generations done" in done.stdout and done.stderr == ""
    missing = subprocess.run([*command[:4], "hole", *command[5:]], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert missing.returncode == 2 and "did you mean" in missing.stderr.lower()


def test_a_run_that_grows_is_followed_to_its_end(tmp_path):
    """A run that another process writes meanwhile: every stage is told, and the last line says that it is finished."""
    store, out = FileStore(tmp_path), io.StringIO()
    with hold(store, "grows", beat_seconds=0.05) as epoch:
        run = Run(store, "grows", epoch)
        config = example_run.CONFIG.model_copy(update={"generations": 1})
        example_run.build(run, 0, config)
        population = example_run.start(run)
        look = Follower(Run(store, "grows"), RunTables(Run(store, "grows"))).look
        seen = [look()]
        example_run.one_generation(run, population, 0, last=True)
        seen.append(look())
    seen.append(look())
    assert run_through(seen, Console(file=out)) == 0
    said = out.getvalue()
    assert "evolve of generation 0: done" in said and said.index("match of generation 0") < said.index("evolve of generation 0")
    assert "finished: 1 of 1 generations done" in said
