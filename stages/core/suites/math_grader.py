"""The grader of mathematical answers: math-verify in processes of its own that are killed when they take too long.

A dead or hanging grader is a status of that one answer (`timeout`, `crash`), never a hang and never a wrong verdict on another:
each question waits for its own reply, and the process that failed is replaced. Equal questions are asked once.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.core.suites.math_answers import MAX_ANSWER, normal

ROOT = Path(__file__).resolve().parents[3]
WORKER = "stages.core.suites.math_worker"


class GraderUnavailable(RuntimeError):
    """The grader does not start: the world's fault, never a verdict."""


@dataclass(frozen=True)
class Question:
    """Is the answer one of the gold answers? None: the completion gave no answer."""

    gold: tuple[str, ...]
    answer: str | None


@dataclass(frozen=True)
class Reply:
    """`status`: correct, wrong, format (no answer), too_long, timeout or crash."""

    status: str
    detail: str = ""


class MathGrader:
    """Grades in `workers` processes of the interpreter `python`, which has math-verify (empty: this one); to be closed."""

    def __init__(self, workers: int = 2, seconds: float = 10.0, starting: float = 120.0, python: str = "") -> None:
        self.size, self.seconds, self.starting, self.python = workers, seconds, starting, python or sys.executable
        self.workers: list[_Worker] = []
        self.known: dict[Question, Reply] = {}

    def grade(self, questions: Sequence[Question]) -> list[Reply]:
        """A reply a question, in order. Raises GraderUnavailable."""
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

    def _settled(self, question: Question) -> bool:
        """Whether the text alone decides: nothing given, far too much, or the gold answer in other spacing."""
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

    def _ask(self, questions: list[Question]) -> Iterator[tuple[Question, Reply]]:
        """Every worker has one question at a time."""
        waiting = list(reversed(questions))
        while waiting or any(worker.question for worker in self.workers):
            made = [_Worker(self.python) for _ in range(min(self.size, len(waiting)) - len(self.workers))]
            self.workers += made
            for worker in made:  # they load side by side
                worker.wait(self.starting)
            for worker in self.workers:
                if not worker.question and waiting:
                    worker.ask(waiting.pop(), self.seconds)
            for worker in _ready(self.workers):
                question, reply = worker.take()
                if reply.status in ("timeout", "crash"):
                    worker.end()
                    self.workers.remove(worker)
                yield question, reply


class _Worker:
    """One process and the question that it has."""

    def __init__(self, python: str) -> None:
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [python, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=ROOT,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        self.question: Question | None = None
        self.deadline, self.buffer = 0.0, b""

    def wait(self, starting: float) -> None:
        """Until it has loaded its libraries. Raises GraderUnavailable."""
        first = self._line(time.monotonic() + starting)
        if not first or json.loads(first) != {"ready": True}:
            self.end()
            raise GraderUnavailable("the grader of mathematical answers does not start: is the package math-verify installed?")

    def ask(self, question: Question, seconds: float) -> None:
        """Sends a question."""
        self.question, self.deadline = question, time.monotonic() + seconds
        data = json.dumps({"gold": question.gold, "answer": question.answer}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # it has died; `take` says so
            self.input.write(data)
            self.input.flush()

    def take(self) -> tuple[Question, Reply]:
        """The question and what came of it."""
        assert self.question is not None
        question, line = self.question, self._line(self.deadline)
        self.question = None
        if line is None:
            late = time.monotonic() >= self.deadline
            return question, Reply("timeout", "the comparison took too long") if late else Reply("crash", "the grader ended")
        found: dict[str, Any] = json.loads(line)
        return question, Reply("correct" if found["correct"] else "wrong", found["error"])

    def _line(self, deadline: float) -> bytes | None:
        """The next line; None at the deadline or when the process has ended."""
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.output], [], [], left)[0]:
                return None
            data = os.read(self.output.fileno(), 1 << 16)
            if not data:
                return None
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def end(self) -> None:
        """Kills the process."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        self.output.close()
        self.process.wait()


def _ready(workers: Sequence[_Worker]) -> list[_Worker]:
    """The workers that have answered, or whose time is over."""
    asked = [worker for worker in workers if worker.question]
    if not asked:
        return []
    left = max(0.0, min(worker.deadline for worker in asked) - time.monotonic())
    readable = select.select([worker.output for worker in asked], [], [], left)[0]
    now = time.monotonic()
    return [worker for worker in asked if worker.output in readable or now >= worker.deadline]
