"""What is the world's fault is no verdict: killed workers, a dead daemon, nonsense on the stream, a killed host."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from ast import literal_eval
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import pytest

from flows.audit.attack_catalogue import REACH
from stages.core.sandbox import link as sandbox_link
from stages.core.sandbox import local
from stages.core.sandbox.link import Record, RunLimits, Worker
from stages.core.sandbox.local import RUNNER, LocalSandbox
from stages.core.sandbox.pool import Pool
from stages.core.sandbox.protocol import Job, SandboxUnavailable, Verdict
from stages.core.sandbox.verdicts import ProgramRun
from stages.core.sandbox.verdicts import verdict as verdict_on
from stages.core.values.canonical import canonical, parse_arguments

ADD = [Job(f"def f(x):\n    return x + {number}", "1", number % 3 == 0) for number in range(300)]
SUMS = [str(1 + number) for number in range(300)]


def texts(verdicts: Iterable[Verdict]) -> list[str | None]:
    return [verdict.text for verdict in verdicts]


def test_order_duplicates_and_a_slow_one_in_front() -> None:
    sandbox = LocalSandbox(2)
    slow = Job("def f():\n    return sum(range(3 * 10 ** 6))", "", False)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run([slow, *ADD, ADD[0], ADD[0]])) == ["4499998500000", *SUMS, "1", "1"]
        assert texts(sandbox.run([])) == []


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel counts no waiting")
def test_waiting_for_a_core_is_no_part_of_a_program_s_wall_time() -> None:
    turns = 2 * 10**7
    began = time.process_time()
    sum(range(turns))
    alone = time.process_time() - began
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    sandbox, hogs = LocalSandbox(1, RunLimits(cpu_seconds=20 * alone, wall_seconds=6 * alone)), []
    try:
        assert texts(sandbox.run(ADD[:1])) == SUMS[:1]
        hogs += [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(16)]
        (verdict,) = sandbox.run([Job(f"def f():\n    return sum(range({turns}))", "", False)])
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        sandbox.close()
        os.sched_setaffinity(0, cores)
    assert verdict.text == str(turns * (turns - 1) // 2), verdict


def test_a_killed_worker_costs_no_verdict() -> None:
    sandbox = LocalSandbox(2)
    with contextlib.closing(sandbox):
        found = []
        for number, verdict in enumerate(sandbox.run(ADD * 4)):
            found.append(verdict.text)
            if number in (20, 100):
                link = sandbox.workers[0].link
                link.process.kill()  # type: ignore[attr-defined]
        assert found == SUMS * 4 and sandbox.counts["workers_lost"] >= 1


class FaultyLink:
    """Passes on a real link, but spoils what comes back or dies at a given job."""

    def __init__(self, link: object, spoil: object):
        self.link, self.spoil = link, spoil

    def __getattr__(self, name: str) -> object:
        return getattr(self.link, name)

    def send(self, data: bytes | bytearray) -> int:
        if callable(self.spoil) and self.spoil(bytes(data)):
            self.link.close()  # type: ignore[attr-defined]
            raise BrokenPipeError
        return self.link.send(data)  # type: ignore[attr-defined, no-any-return]


def test_a_killed_template_costs_no_verdict_and_no_worker() -> None:
    """Killed while it is idle, it cannot tell the pid of a program; the next job runs in another one of the same supervisor."""
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD[:4])) == SUMS[:4]
        for _ in range(3):
            for pid in templates(sandbox.workers[0].link.process.pid):  # type: ignore[attr-defined]
                os.kill(pid, signal.SIGKILL)
            assert texts(sandbox.run(ADD)) == SUMS
        assert sandbox.counts["workers_lost"] == 0


def test_servers_with_modules_that_never_start_are_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without imports are judged all the same."""
    broken = tmp_path / "runner"
    shutil.copytree(RUNNER.parent, broken)
    text = (broken / "template.py").read_text()
    (broken / "template.py").write_text(
        text.replace('if sys.argv[4] == "full":', 'if sys.argv[4] == "full":\n        raise SystemExit(1)', 1)
    )
    monkeypatch.setattr(sandbox_link, "SANDBOX_FOLDER", tmp_path)
    monkeypatch.setattr(local, "RUNNER", broken / RUNNER.name)
    sandbox, slow = LocalSandbox(1, RunLimits(cpu_seconds=0.2)), Job("def f():\n    while True: pass", "", False)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD[:4])) == SUMS[:4]
        with pytest.raises(SandboxUnavailable, match="workers ended one after another"):
            list(sandbox.run([Job("import math\ndef f():\n    return math.floor(1.5)", "", False), *ADD[4:8], slow, *ADD[8:12]]))
        named = Job('def f():\n    raise type("the program\'s server ended", (Exception,), {})()', "", False)
        assert texts(sandbox.run([*ADD[:4], named])) == [*SUMS[:4], None]


def templates(pid: int) -> list[int]:
    """The template servers below a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    below = [int(child) for child in children]
    own = [child for child in below if b"template.py" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return own + [one for child in below for one in templates(child)]


@pytest.mark.parametrize("word", ["the program's server ended", "for a server with modules"])
@pytest.mark.parametrize("imports", ["", "import math\n"])
def test_a_program_that_writes_what_servers_say_is_run_once(word: str, imports: str) -> None:
    """As the name of its exception, or as a frame of its own."""
    named = f"{imports}def f():\n    raise type({word!r}, (Exception,), {{}})()"
    framed = f"{imports}{REACH}def f():\n    reach('posix').write(5, b'V' + ({len(word)}).to_bytes(4, 'big') + {word.encode()!r})"
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run([Job(f"{imports}def f():\n    return 1", "", False)])) == ["1"]
        before = templates(sandbox.workers[0].link.process.pid)  # type: ignore[attr-defined]
        raised, written = sandbox.run([Job(named, "", True), Job(f"{framed}\n    reach('posix')._exit(0)", "", False)])
        assert (raised.status, raised.detail, written.status) == ("error", word, "crash")
        assert raised.program_key is not None and (sandbox.counts["alone"], sandbox.counts["workers_lost"]) == (0, 0)
        assert templates(sandbox.workers[0].link.process.pid) == before  # type: ignore[attr-defined]


def test_what_a_program_says_of_its_error_is_one_line_without_control_characters() -> None:
    said = verdict_on([ProgramRun(b"E", 0.0, 0.0, 0, "", "ValueError: \x1b[31mred\n\x07 \\u202e\x7f" + "\x00" * 400)])
    assert said.detail.startswith(r"ValueError: \x1b[31mred \x07 \u202e\x7f\x00") and len(said.detail) == 300


@pytest.mark.parametrize("limits", [RunLimits(), RunLimits(wall_seconds=60), RunLimits(witnesses=0), RunLimits(witnesses=4)])
def test_a_worker_is_overdue_after_all_runs_of_one_task(limits: RunLimits) -> None:
    """A task may take its whole wall time in every server, and again where the last one asks for modules."""
    longest = 2 * (limits.witnesses + 2) * limits.wall_seconds
    for silent, overdue in ((longest + 5, False), (longest + 30, True)):
        now = time.monotonic()
        worker = Worker(None, now, ready=True, flying=deque([Record(0, b"", True)]), heard=now - silent)  # type: ignore[arg-type]
        assert worker.overdue(limits) is overdue


def test_a_program_that_ends_two_workers_is_quarantined() -> None:
    sandbox = LocalSandbox(1)
    real, poison = sandbox.start, b"return 'poison'"
    sandbox.start = lambda number: FaultyLink(real(number), lambda data: poison in data)  # type: ignore[assignment, return-value]
    jobs = [*ADD[:30], Job("def f():\n    return 'poison'", "", False), *ADD[30:60]]
    with contextlib.closing(sandbox):
        verdicts = list(sandbox.run(jobs))
    assert [verdict.text for verdict in verdicts[:30] + verdicts[31:]] == SUMS[:60]
    assert verdicts[30].status == "crash" and sandbox.counts["quarantined"] == 1


class TruncatedLink:
    """Passes on a real link, but its stream ends in the middle of an answer, after `left` bytes."""

    def __init__(self, link: object, left: int):
        self.link, self.left = link, left

    def __getattr__(self, name: str) -> object:
        return getattr(self.link, name)

    def receive(self) -> bytes | None:
        data: bytes | None = self.link.receive()  # type: ignore[attr-defined]
        if not data:
            return data
        kept, self.left = data[: self.left], max(0, self.left - len(data))
        if not self.left:
            self.link.process.kill()  # type: ignore[attr-defined]
        return kept or None


@pytest.mark.parametrize("after", [3, 40, 4000, 5001])
def test_a_reply_cut_short_costs_no_verdict(after: int) -> None:
    sandbox = LocalSandbox(1)
    real = sandbox.start
    # the first worker's stream ends early; 5000 is in the midst of answers, less is within the attestation
    sandbox.start = lambda number: TruncatedLink(real(number), after) if number == 1 else real(number)  # type: ignore[assignment, return-value]
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD[:100])) == SUMS[:100]
        assert sandbox.counts["workers_lost"] == 1


class SpoiledLink(TruncatedLink):
    """Passes on a real link, but turns one byte of every answer after the attestation into another."""

    def receive(self) -> bytes | None:
        data: bytes | None = self.link.receive()  # type: ignore[attr-defined]
        self.left -= 1
        return bytes([*data[:-1], data[-1] ^ 1]) if data and self.left < 0 else data


class MisnumberedLink(TruncatedLink):
    """Passes on a real link, but the first answer after the attestation bears another job's number."""

    seen = b""

    def receive(self) -> bytes | None:
        data: bytes | None = self.link.receive()  # type: ignore[attr-defined]
        whole = len(self.seen) >= 4 and len(self.seen) == 4 + int.from_bytes(self.seen[:4], "big")
        self.seen += data or b""
        return data[:7] + bytes([data[7] ^ 1]) + data[8:] if data and whole else data


def test_an_answer_to_another_question_costs_no_verdict() -> None:
    sandbox = LocalSandbox(1)
    real = sandbox.start
    sandbox.start = lambda number: MisnumberedLink(real(number), 0) if number == 1 else real(number)  # type: ignore[assignment, return-value]
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD[:100])) == SUMS[:100]
        assert sandbox.counts["workers_lost"] == 1


def test_nonsense_on_the_stream_costs_no_verdict() -> None:
    sandbox = LocalSandbox(1)
    real = sandbox.start
    sandbox.start = lambda number: SpoiledLink(real(number), 3) if number < 3 else real(number)  # type: ignore[assignment, return-value]
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD[:100])) == SUMS[:100]
        assert sandbox.counts["workers_lost"] >= 1


def test_another_runner_is_refused_before_any_program_ran() -> None:
    sandbox = LocalSandbox(1)
    sandbox.runner = "0" * 64
    with contextlib.closing(sandbox), pytest.raises(SandboxUnavailable, match="restart the process") as raised:
        list(sandbox.run(ADD[:3]))
    assert "\n" not in str(raised.value) and not sandbox.workers


def with_edited_runner(name: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalSandbox:
    """A sandbox of a copy of the runner that differs in one place."""
    runner = shutil.copytree(RUNNER.parent, tmp_path / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    text = (runner / name).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (runner / name).write_text(text.replace(old, new), encoding="utf-8")
    for folder in (runner, *tmp_path.parents[:2], tmp_path):
        folder.chmod(0o755)
    monkeypatch.setattr(local, "RUNNER", runner / "supervisor.py")
    monkeypatch.setattr(sandbox_link, "SANDBOX_FOLDER", tmp_path)
    return LocalSandbox(1)


@pytest.mark.parametrize("other", ["'0'", "program + '\\n0'"])
def test_a_key_server_that_answers_another_key_is_found_out(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same key for every text, or the key of another text: the values are right, and no verdict with such a key comes out."""
    sandbox = with_edited_runner("key_server.py", "compile(program,", f"compile({other},", tmp_path, monkeypatch)
    found: list[Verdict] = []
    with contextlib.closing(sandbox), pytest.raises(SandboxUnavailable):
        found.extend(sandbox.run([Job(job.program, job.input, True) for job in ADD]))
    assert found == []


def test_the_canaries_are_tasks_with_the_keys_that_the_runner_makes() -> None:
    texts = [job.program for job, _ in sandbox_link.CANARIES]
    command = [sys.executable, "-c", "import ast, key, sys; print([key.program_key(ast.parse(t)) for t in sys.argv[1:]])", *texts]
    keys = literal_eval(subprocess.run(command, cwd=RUNNER.parent, capture_output=True, text=True, check=True).stdout)
    assert keys == [key for _, (_, key) in sandbox_link.CANARIES] and all(job.validate for job, _ in sandbox_link.CANARIES)


def test_a_job_larger_than_its_pipe_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # as on a host where one user's pipes have used up fs.pipe-user-pages-soft: the kernel then gives a page or two
    sandbox = with_edited_runner("servers.py", "F_SETPIPE_SZ, 1 << 20", "F_SETPIPE_SZ, 4096", tmp_path, monkeypatch)
    large = Job(f"# {'x' * 15_000}\ndef f(s):\n    return len(s)", repr("y" * 30_000), True)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run([ADD[0], large, ADD[1]])) == ["1", "30000", "2"]
        assert sandbox.counts["workers_lost"] == 0


def test_lines_are_counted_where_asked() -> None:
    program = "def f(x):\n    t = 0\n    for i in range(x):\n        t += [j for j in 'ab'].count('a')\n    return t"
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        traced, again, validated, plain, failed, forged = sandbox.run(
            [
                Job(program, "3", False, trace=True),
                Job(program, "3", False, trace=True),
                Job(program, "3", True, trace=True),
                Job(program, "3", True),
                Job("def f():\n    return 1 / 0", "", False, trace=True),
                Job("def f():\n    return '1\\n2:3,'", "", False, trace=True),
            ]
        )
    assert traced.text == plain.text == "3"
    assert dict(traced.lines)[3] == 4 and dict(traced.lines)[5] == 1
    assert traced.lines == again.lines == validated.lines and plain.lines == failed.lines == ()
    assert (failed.status, forged.text, forged.lines) == ("error", "'1\\n2:3,'", ((1, 1), (2, 1)))


GIVEN = [
    "1, -2, True, None, 0.5, -0.0, nan, -inf, 1e+16",
    "'ab', 'it\\'s', '\\ud800', 'ü', b'\\x00\\xff', ''",
    "[1, [2, (3,), ()]], (1, 'a'), [], 123456789012345678901234567890",
    "{'b': 1, 'a': [2]}, {3, 1, 2}, frozenset({1}), set(), {}",
    "complex(-0.0, 2.0), complex(1.5, -0.0)",
    "{nan, nan}, {nan: 1, nan: [nan]}, {(nan, 1), (nan, 1)}",
    "'set', '{', [{'x': (1, {2})}]",
]


def test_nans_of_an_input_are_as_many_members_in_the_program() -> None:
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        counted = sandbox.run(
            [Job("def f(s, d, x):\n    return len(s), len(d), x[0] is x[1]", "{nan, nan}, {nan: 1, nan: 2}, [nan, nan]", True)]
        )
        assert texts(counted) == ["(2, 2, False)"]


@pytest.mark.parametrize("validate", [False, True])
def test_arguments_arrive_as_they_were_written(validate: bool) -> None:
    sandbox = LocalSandbox(1)
    with contextlib.closing(sandbox):
        verdicts = list(sandbox.run([Job("def f(*given):\n    return given", text, validate) for text in GIVEN]))
    for text, verdict in zip(GIVEN, verdicts, strict=True):
        assert (verdict.status, verdict.value) == ("valid", canonical(parse_arguments(text))), text


def test_workers_keep_to_a_core_each_where_all_cores_get_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    taken: list[int | None] = []
    for _ in range(2 * len(cores)):
        taken.append(sandbox_link.core_for(2 * len(cores), taken))
    assert sorted(taken) == sorted(2 * cores)
    assert sandbox_link.core_for(len(cores) + 1, []) == (None if len(cores) > 1 else cores[0])
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert sandbox_link.core_for(len(cores), []) is None


def test_no_worker_at_all_is_no_verdict() -> None:
    class Dead:
        def filenos(self) -> tuple[int, int]:
            return 0, 1

        def send(self, data: bytes | bytearray) -> int:
            raise BrokenPipeError

        def receive(self) -> bytes | None:
            return None

        def said(self) -> str:
            return "nothing"

        def close(self) -> None:
            pass

    read, write = os.pipe()
    Dead.filenos = lambda self: (read, write)  # type: ignore[method-assign]
    with pytest.raises(SandboxUnavailable):
        list(Pool(lambda number: Dead(), 2, RunLimits(), 1).run(ADD))
    os.close(read)
    os.close(write)


def test_a_program_near_the_limit_is_run_again_alone() -> None:
    sandbox = LocalSandbox(2, RunLimits(cpu_seconds=0.5, wall_seconds=5))
    busy = Job("def f():\n    while True: pass", "", False)
    with contextlib.closing(sandbox):
        verdicts = list(sandbox.run([busy, *ADD[:20]]))
    assert verdicts[0].status == "timeout" and texts(verdicts[1:]) == SUMS[:20]


def test_workers_are_recycled() -> None:
    sandbox = LocalSandbox(1, recycle_after=100)
    with contextlib.closing(sandbox):
        assert texts(sandbox.run(ADD)) == SUMS
        assert sandbox.counts["workers_started"] >= 3


def test_closing_a_stream_early_leaves_a_clean_pool() -> None:
    sandbox = LocalSandbox(2)
    with contextlib.closing(sandbox):
        stream = sandbox.run(ADD)
        assert next(stream).text == "1"
        stream.close()  # type: ignore[attr-defined]
        assert texts(sandbox.run(ADD[:50])) == SUMS[:50]
