"""Orders and answers as JSON lines between a process of ours and its child: what is read, when waiting ends, how it ends."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.core.child_process import CHUNK, ChildProcess

Start = Callable[[str], ChildProcess]
ECHO = "import sys\nfrom stages.core.child_process import answer, orders\nfor order in orders(sys.stdin): "


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[ChildProcess] = []

    def begin(script: str) -> ChildProcess:
        made.append(ChildProcess([sys.executable, "-c", script], group=True))
        return made[-1]

    yield begin
    for child in made:
        child.end()


def test_progress_comes_before_the_answer_and_each_order_has_one(start: Start) -> None:
    child, heard = start(ECHO + "answer(sys.stdout, {'progress': {'n': 1}}); answer(sys.stdout, {'got': order})"), list[object]()
    for order in ({"a": 1}, {"b": "ü\n"}):
        child.send(order)
        assert child.answer(progress=heard.append) == {"got": order}
    assert heard == [{"n": 1}] * 2
    child.end(patience=60.0)
    assert child.process.returncode == 0, "an idle child ends when its input is closed"


def test_a_line_of_many_chunks_and_many_lines_in_one_chunk_are_read_whole(start: Start) -> None:
    child = start(
        f"import json\nprint(json.dumps({{'long': 'x' * {3 * CHUNK}}}))\nfor n in range(9): print(json.dumps({{'n': n}}))"
    )
    assert child.answer() == {"long": "x" * (3 * CHUNK)}
    assert [child.answer() for _ in range(10)] == [*({"n": n} for n in range(9)), None]


def test_what_was_read_before_a_deadline_is_kept(start: Start) -> None:
    child = start("import sys\nprint('{\"a\":', end='', flush=True)\nsys.stdin.readline()\nprint('1}', flush=True)")
    assert child.answer(time.monotonic() + 0.5) is None and child.running
    child.send({})
    assert child.answer() == {"a": 1}


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="no /proc to look at processes")
def test_a_child_whose_own_child_keeps_the_pipe_open_is_seen_to_end(start: Start) -> None:
    """vLLM forks its engine: where only the process in front of it is killed, no end of file comes."""
    child = start(
        "import os, signal, time\n"
        "own = os.fork()\n"
        "if own: os.write(1, b'{\"own\": %d}\\n' % own); os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)"
    )
    told = child.answer()
    assert told is not None and child.answer() is None
    assert runs(told["own"])
    child.end()  # the whole group
    until = time.monotonic() + 60
    while runs(told["own"]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not runs(told["own"])


def runs(process_id: int) -> bool:
    """Whether a process exists and is not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_child_that_ends_gives_no_answer_and_takes_no_order(start: Start) -> None:
    child = start("print('{\"half\":', end='')")
    assert child.answer() is None
    child.process.wait()
    with pytest.raises(BrokenPipeError):
        child.send({})


def test_a_late_child_is_killed_after_its_last_words(start: Start) -> None:
    handler = "signal.signal(signal.SIGUSR1, lambda *_: print('{\"late\": true}', flush=True))"
    child = start(f"import signal, time\n{handler}\nprint('{{}}', flush=True)\nwhile True: time.sleep(9)")
    assert child.answer() == {} and child.answer(time.monotonic()) is None
    assert child.last_words(signal.SIGUSR1, 60.0) == {"late": True}
    assert child.process.wait() == -signal.SIGKILL


class Stuck:
    """A process inside a driver that does not answer: no signal ends it."""

    def __init__(self, process: Any) -> None:
        self._process, self.pid, self.waited = process, process.pid, list[float]()

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        pass

    def wait(self, timeout: float) -> int:
        self.waited.append(timeout)
        raise subprocess.TimeoutExpired("stuck", timeout)


def test_a_killed_child_that_does_not_end_is_waited_for_only_so_long() -> None:
    child = ChildProcess([sys.executable, "-c", "import sys; sys.stdin.read()"])
    process = child.process
    child.process = stuck = Stuck(process)  # type: ignore[assignment]
    assert not child.end(5.0)
    assert stuck.waited == [5.0, 30.0]
    process.kill()
    process.wait()


def test_a_child_that_reads_no_order_ends_all_the_same(start: Start) -> None:
    child = start("import time\nprint('{}', flush=True)\ntime.sleep(600)")
    assert child.answer() == {}
    child.end()
    assert child.process.returncode == -signal.SIGKILL


def test_the_end_of_a_group_is_that_of_its_last_process(start: Start) -> None:
    """As of vLLM's engine process, which holds a GPU's memory for a while after the worker that started it is gone."""
    grandchild = "import sys, time; kept = bytearray(256 << 20); print(1, flush=True); time.sleep(600)"
    child = start(
        "import subprocess, sys\nfrom stages.core.child_process import answer\n"
        f"inner = subprocess.Popen([sys.executable, '-c', {grandchild!r}], stdout=subprocess.PIPE)\n"
        "inner.stdout.readline(); answer(sys.stdout, {'pid': inner.pid}); sys.stdin.read()"
    )
    said = child.answer(time.monotonic() + 60)
    assert said is not None and child.end()
    stat = Path(f"/proc/{said['pid']}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"
