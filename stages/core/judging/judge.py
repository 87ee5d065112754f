"""The judge: grades tasks and answers from the sandbox's verdicts alone. The run's stages and the commands share it.

Design: answers are parsed as literals on the host, sent to the sandbox as data and compared as canonical typed text. Expected
values never enter the sandbox. Equal runs within one call are made once. Memory is constant: results stream in input order.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from stages.core.row_errors import ItemFailed
from stages.core.sandbox.protocol import IDLE, TICK, Job, Sandbox, SandboxUnavailable, Status, Verdict
from stages.core.values.canonical import (
    LiteralError,
    TooLarge,
    arguments_literal,
    canonical,
    parse_arguments,
    parse_value,
    to_literal,
)

Item = TypeVar("Item")
Result = TypeVar("Result")
_REMEMBERED = 20_000
_TRIVIAL = Job("def f():\n    return 0", "", False)  # keeps the stream moving if many items in a row need no run


@dataclass(frozen=True)
class TaskItem:
    """A proposal: a program and its inputs (one, or several for induction), each comma-separated literals."""

    program: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class TaskVerdict:
    """A verified proposal: outputs as literal text and as canonical values, one per input; empty unless valid."""

    status: Status
    outputs: tuple[str, ...]
    values: tuple[str, ...]
    detail: str
    program_key: str | None


@dataclass(frozen=True)
class AnswerItem:
    """An answer to a task. `inputs` and `values` (canonical outputs) are the task's; only abduction needs `program`."""

    kind: str
    program: str
    inputs: tuple[str, ...]
    values: tuple[str, ...]
    answer: str | None


@dataclass(frozen=True)
class Judgement:
    """`status`: correct, wrong, format (no answer), or the sandbox status that kept the answer from being right."""

    status: str
    correct: bool
    detail: str


def judge_tasks(sandbox: Sandbox, items: Iterable[TaskItem | None]) -> Iterator[TaskVerdict]:
    """Yield one verdict per task, in order. Valid: all inputs valid, its own gold answers graded correct. None in items: idle.

    Raise SandboxUnavailable, or ItemFailed if our own code fails at an item.
    """
    return _judge(sandbox, items, _task_jobs, _task_verdict)


def judge_answers(sandbox: Sandbox, items: Iterable[AnswerItem | None]) -> Iterator[Judgement]:
    """Yield one judgement per answer, in order. None in items: nothing to read at the moment. Raise as `judge_tasks` does."""
    return _judge(sandbox, items, _answer_jobs, _judgement)


def input_text(text: str) -> str:
    """Return an argument list in our own notation. Raise LiteralError if it is invalid."""
    return arguments_literal(parse_arguments(text))


def _judge(
    sandbox: Sandbox,
    items: Iterable[Item | None],
    plan: Callable[[Item], list[Job]],
    finish: Callable[[Item, list[Verdict]], Result],
) -> Iterator[Result]:
    """Stream items through the sandbox. `waiting` is bounded by the sandbox's window and the trivial jobs."""
    known: dict[Job, Verdict | None] = {}
    sent: deque[Job] = deque()
    waiting: deque[tuple[Item, list[Job], list[Verdict | None]]] = deque()
    source, place = _Source(items), _Place()

    def jobs() -> Iterator[Job]:
        quiet = 0
        for item in source:
            if item is None:
                yield IDLE
                continue
            with place.of(place.taken):
                needed = plan(item)
            place.taken += 1
            fresh = [job for job in dict.fromkeys(needed) if job not in known]
            known.update((job, None) for job in fresh)
            # take known verdicts now, so that dropping them from the cache later is harmless
            waiting.append((item, needed, [known[job] for job in needed]))
            quiet = 0 if fresh else quiet + 1
            for job in fresh or ([_TRIVIAL] if quiet % 256 == 255 else []):
                sent.append(job)
                yield job

    def finished(everything: bool) -> Iterator[Result]:
        while waiting:
            item, needed, found = waiting[0]
            verdicts = [old if old is not None else known.get(job) for job, old in zip(needed, found, strict=True)]
            if any(verdict is None for verdict in verdicts):
                assert not everything, "the sandbox ended without a verdict for every job"
                return
            waiting.popleft()
            with place.of(place.done):
                result = finish(item, [verdict for verdict in verdicts if verdict is not None])
            place.done += 1
            yield result

    for verdict in _named(sandbox.run(jobs()), source, place):
        if verdict is not TICK:
            known[sent.popleft()] = verdict
        yield from finished(False)
        _forget(known, waiting)
    yield from finished(True)


class _Source(Iterator[Item | None]):
    """The items and what ended them: an error of their producer is attributed to the producer."""

    def __init__(self, items: Iterable[Item | None]) -> None:
        self.items = iter(items)
        self.error: Exception | None = None

    def __next__(self) -> Item | None:
        try:
            return next(self.items)
        except Exception as error:
            self.error = error
            raise


class _Place:
    """Counter of the items taken and done; names the item at which our code fails."""

    def __init__(self) -> None:
        self.taken = self.done = 0

    @contextmanager
    def of(self, item: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise ItemFailed(item, item, error) from error


def _named(verdicts: Iterator[Verdict], source: _Source[Any], place: _Place) -> Iterator[Verdict]:
    """Yield the verdicts; an error while inputs are sent and values received belongs to one of the items in flight."""
    try:
        yield from verdicts
    except (SandboxUnavailable, ItemFailed):
        raise
    except Exception as error:
        if error is source.error:
            raise
        raise ItemFailed(place.done, place.taken, error) from error


def _forget(known: dict[Job, Verdict | None], waiting: deque[Any]) -> None:
    """Drop the oldest verdicts over the limit; verdicts that a waiting item still needs are younger than any waiting item."""
    if len(known) > _REMEMBERED + 100 and not waiting:
        for job in [job for job, verdict in known.items() if verdict is not None][:-_REMEMBERED]:
            del known[job]
    elif len(known) > 4 * _REMEMBERED:
        needed = {job for _, jobs, _ in waiting for job in jobs}
        for job in [job for job, verdict in known.items() if verdict is not None and job not in needed][:-_REMEMBERED]:
            del known[job]


def _task_jobs(item: TaskItem) -> list[Job]:
    return [Job(item.program, text, True) for text in item.inputs]


def _task_verdict(item: TaskItem, verdicts: list[Verdict]) -> TaskVerdict:
    key = next((verdict.program_key for verdict in verdicts if verdict.program_key), None)
    if not verdicts:
        return TaskVerdict(Status.UNPARSED, (), (), "no inputs", None)
    for number, verdict in enumerate(verdicts, 1):
        problem = _problem(verdict)
        if problem:
            where = f"input {number}: " if len(verdicts) > 1 else ""
            return TaskVerdict(problem[0], (), (), where + problem[1], key)
    values = tuple(verdict.value for verdict in verdicts if verdict.value is not None)
    outputs = tuple(verdict.text or to_literal(value) for verdict, value in zip(verdicts, values, strict=True))
    return TaskVerdict(Status.VALID, outputs, values, "", key)


def _problem(verdict: Verdict) -> tuple[Status, str] | None:
    """Return why a run does not make a task. The gold answer (the output's literal text) is graded like any answer."""
    if verdict.status is not Status.VALID:
        return verdict.status, verdict.detail
    assert verdict.value is not None
    try:
        gold = verdict.text or to_literal(verdict.value)
    except TooLarge as error:
        return Status.OUTPUT_LIMIT, str(error)
    judged = compare_literal(gold, verdict.value)
    return None if judged.correct else (Status.UNSUPPORTED_VALUE, f"its own output is not an answer: {judged.detail}")


def compare_literal(answer: str, value: str) -> Judgement:
    """Judge a deduction: whether the answer, read as one literal, is the canonical value."""
    try:
        given = canonical(parse_value(answer))
    except LiteralError as error:
        return Judgement(Status.UNPARSED, False, str(error))
    return Judgement("correct", True, "") if given == value else Judgement("wrong", False, "another value")


def _answer_jobs(item: AnswerItem) -> list[Job]:
    if item.answer is None or item.kind == "deduction":
        return []
    if item.kind == "abduction":
        try:
            return [Job(item.program, arguments_literal(parse_arguments(item.answer)), False)]
        except (LiteralError, TooLarge):
            return []
    if item.kind == "induction":
        return [Job(item.answer, text, False) for text in item.inputs]
    raise ValueError(f"unknown kind {item.kind!r}")


def _judgement(item: AnswerItem, verdicts: list[Verdict]) -> Judgement:
    if item.answer is None:
        return Judgement("format", False, "no answer")
    if item.kind == "deduction":
        return compare_literal(item.answer, item.values[0])
    if not verdicts:
        return _unread(item)
    for number, (verdict, value) in enumerate(zip(verdicts, item.values, strict=True), 1):
        where = f"input {number}: " if len(verdicts) > 1 else ""
        if verdict.status is not Status.VALID:
            return Judgement(verdict.status, False, where + verdict.detail)
        if verdict.value != value:
            return Judgement("wrong", False, where + "another value")
    return Judgement("correct", True, "")


def _unread(item: AnswerItem) -> Judgement:
    """Return the judgement of an answer that could not be turned into a run."""
    try:
        assert item.answer is not None
        arguments_literal(parse_arguments(item.answer))
    except (LiteralError, TooLarge) as error:
        return Judgement(Status.UNPARSED, False, str(error))
    raise ValueError(f"{item.kind} item without inputs")
