"""The grader of mathematical answers: math-verify in separate processes, behind walls, stopped when they take too long.

A dead or hanging grader is a status of that one answer (`timeout`, `crash`), never a hang and never a wrong verdict on another:
each question waits for its own reply, and the process that failed is replaced. Equal questions are asked once. What counts is the
processor time of a question, so a busy machine makes no `timeout`; one that gives a process none for very long is unavailable.
So is one that kills the process twice at one question, as a system does that has less free memory than its walls allow it
(math_walls): behind them a process sends no signal, so SIGKILL is no verdict about the answer.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_readable  # poll: select refuses descriptors over 1,023
from pathlib import Path

from stages.core.child_process import ChildProcess
from stages.core.suites.math_answers import MAX_ANSWER, normal
from stages.core.unavailable import Unavailable

ROOT = Path(__file__).resolve().parents[3]
WORKER = "stages.core.suites.math_worker"
HOME_PYTHON = "POPULORA_PYTHON"
"""Tells a worker which interpreter has the project's own packages, including math-verify."""

PATIENCE = 60  # seconds of waiting for a second of processor time
MAX_RELOADS = 8
_NO_VERDICT = ("stuck", "killed")
_LIBRARIES = frozenset(["antlr4", "latex2sympy2_extended", "math_verify", "mpmath", "sympy"])
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_warned: list[str] = []


class GraderUnavailable(Unavailable):
    """The grader does not start, gets no processor time, or is killed: the world's fault, never a verdict."""


@dataclass(frozen=True)
class MathAnswer:
    """Is the answer one of the gold answers? None: the completion gave no answer."""

    gold: tuple[str, ...]
    answer: str | None


@dataclass(frozen=True)
class Reply:
    """`status`: correct, wrong, format (no answer), too_long, timeout or crash."""

    status: str
    detail: str = ""


class MathGrader:
    """Grades in `workers` processes of the interpreter `python`, which has math-verify (empty: this one); to be closed.

    A question has so many `seconds` of processor time.
    """

    def __init__(self, workers: int = 2, seconds: float = 10.0, starting: float = 120.0, python: str = "") -> None:
        self.size, self.seconds, self.starting, self.python = workers, seconds, starting, python or sys.executable
        self.workers: list[_Worker] = []
        self.known: dict[MathAnswer, Reply] = {}
        self.modules: list[str] = []  # what the libraries tried to load once behind the walls
        self.missing: tuple[str, ...] = ()  # walls that this machine does not have

    def grade(self, questions: Sequence[MathAnswer]) -> list[Reply]:
        """Return one reply per question, in order. Raise GraderUnavailable."""
        open_ones = list(dict.fromkeys(question for question in questions if question not in self.known))
        asked = [question for question in open_ones if not self._settled(question)]
        for question, reply in self._ask(asked):
            self.known[question] = reply
        return [self.known[question] for question in questions]

    def close(self) -> None:
        """Ends the processes."""
        for worker in self.workers:
            worker.end()
        self.workers.clear()

    def _settled(self, question: MathAnswer) -> bool:
        """Return whether the text alone decides: no answer, a far too long one, or the gold answer with other spacing."""
        reply = None
        if question.answer is None or not question.answer.strip():
            reply = Reply("format", "no answer")
        elif len(question.answer) > MAX_ANSWER:
            reply = Reply("too_long", f"an answer of {len(question.answer)} characters, over {MAX_ANSWER}")
        elif normal(question.answer) in {normal(gold) for gold in question.gold}:
            reply = Reply("correct")
        if reply is not None:
            self.known[question] = reply
        return reply is not None

    def _ask(self, questions: list[MathAnswer]) -> Iterator[tuple[MathAnswer, Reply]]:
        """Every worker has one question at a time."""
        waiting, asked = list(reversed(questions)), Counter[tuple[MathAnswer, str]]()
        while waiting or any(worker.question for worker in self.workers):
            self._start(min(self.size, len(waiting)) - len(self.workers))
            for worker in self.workers:
                if not worker.question and waiting:
                    worker.ask(waiting.pop(), self.seconds)
            for worker in _ready(self.workers):
                question, reply, needs = worker.take()
                asked[question, reply.status] += 1
                if reply.status not in ("correct", "wrong") or needs:
                    worker.end()
                    self.workers.remove(worker)
                if needs and asked[question, reply.status] < MAX_RELOADS:
                    self.modules += [name for name in dict.fromkeys(needs) if name not in self.modules]
                    waiting.append(question)
                elif reply.status in _NO_VERDICT and asked[question, reply.status] < 2:
                    waiting.append(question)
                elif reply.status in _NO_VERDICT:
                    raise GraderUnavailable(f"the grader of mathematical answers {reply.detail}")
                else:
                    yield question, reply

    def _start(self, count: int) -> None:
        """Start processes, which load concurrently. Raise GraderUnavailable."""
        made = [_Worker(self.python, self.modules) for _ in range(count)]
        self.workers += made
        for worker in made:
            self.missing = worker.wait(self.starting)
        if self.missing and not _warned:
            _warned.append("said")
            lacking = ", ".join(name.replace("_", " ") for name in self.missing)
            print(f"\033[31mThe grader of mathematical answers has weaker walls here: no {lacking}.\033[0m", file=sys.stderr)


class _Worker:
    """One process and the question that it has."""

    def __init__(self, python: str, modules: Sequence[str]) -> None:
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        loadable = [name for name in modules if _MODULE.fullmatch(name) and name.partition(".")[0] in _LIBRARIES]
        self.child = ChildProcess([python, "-m", WORKER, *loadable], environment, ROOT, errors=subprocess.DEVNULL)
        self.process = self.child.process
        self.question: MathAnswer | None = None
        self.modules = set(modules)
        self.deadline = self.patience = 0.0

    def wait(self, starting: float) -> tuple[str, ...]:
        """Wait until the process has loaded its libraries. Return its missing walls. Raise GraderUnavailable."""
        first = self.child.answer(time.monotonic() + starting)
        if first is None:
            self.end()
            raise GraderUnavailable("the grader of mathematical answers does not start: is the package math-verify installed?")
        return tuple(first["missing"])

    def ask(self, question: MathAnswer, seconds: float) -> None:
        """Sends a question."""
        self.question, self.patience = question, PATIENCE * seconds
        self.deadline = time.monotonic() + self.patience
        with contextlib.suppress(BrokenPipeError):  # it has died; `take` reports it
            self.child.send({"gold": question.gold, "answer": question.answer, "seconds": seconds})

    def take(self) -> tuple[MathAnswer, Reply, list[str]]:
        """Return the question, its reply, and the missing modules that may have changed the reply."""
        assert self.question is not None
        question, found = self.question, self.child.answer(self.deadline)
        self.question = None
        if found is None:
            return question, self._ended(), []
        needs = [name for name in found["needs"] if name not in self.modules]
        return question, Reply("correct" if found["correct"] else "wrong", found["error"]), needs

    def _ended(self) -> Reply:
        """Return why there is no reply.

        Two reasons are no verdict. `stuck`: the process is alive and has used little of its processor time. `killed`: by SIGKILL.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0 if time.monotonic() < self.deadline else 0.0)
        if self.process.returncode is None:
            return Reply("stuck", f"got no answer in {self.patience:.0f} s")
        if self.process.returncode == -signal.SIGKILL:
            return Reply("killed", "was killed twice at one answer: free memory on this machine, or use fewer workers")
        late = self.process.returncode == -signal.SIGPROF
        return Reply("timeout", "the comparison took too long") if late else Reply("crash", "the grader ended")

    def end(self) -> None:
        """Kills the process."""
        self.child.end()


def _ready(workers: Sequence[_Worker]) -> list[_Worker]:
    """The workers that have answered, or whose time is over."""
    asked = [worker for worker in workers if worker.question]
    if not asked:
        return []
    left = max(0.0, min(worker.deadline for worker in asked) - time.monotonic())
    readable = wait_readable([worker.child.descriptor for worker in asked], left)
    now = time.monotonic()
    return [worker for worker in asked if worker.child.descriptor in readable or now >= worker.deadline]
