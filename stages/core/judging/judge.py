"""The judge: grades tasks and answers from the sandbox's verdicts alone. The run's stages and the commands share it.

Design: answers are parsed as literals on the host, sent to the sandbox as data and compared as canonical typed text. Expected
values never enter the sandbox. A task or an answer runs on one input after another until an input decides against it, or until
its runs have used their processor time: an endless loop costs one time limit, not one for each input.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.core.judging.job_stream import NOTHING, Known, judged
from stages.core.sandbox.protocol import Job, Sandbox, Status, Verdict
from stages.core.values.canonical import (
    LiteralError,
    TooLarge,
    arguments_literal,
    canonical,
    parse_arguments,
    parse_value,
    to_literal,
)

ANSWER_LIMITS = 5.0
"""Processor time of all slow runs of a task or an answer, in limits of one run: 10 s by default. Slow: 0.8 of a limit or more."""
_SLOW = "the runs so far have used all processor time of an answer"


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


def judge_tasks(sandbox: Sandbox, items: Iterable[TaskItem | None], known: Known = NOTHING) -> Iterator[TaskVerdict]:
    """Yield one verdict per task, in order. Valid: all inputs valid, its own gold answers graded correct. None in items: idle.

    Runs whose verdicts are known are not made again. Raise SandboxUnavailable, or ItemFailed if our own code fails at an item.
    """
    return judged(sandbox, items, _next_task_job, _task_verdict, known)


def judge_answers(sandbox: Sandbox, items: Iterable[AnswerItem | None], known: Known = NOTHING) -> Iterator[Judgement]:
    """Yield one judgement per answer, in order. None in items: nothing to read at the moment. Raise as `judge_tasks` does."""
    return judged(sandbox, items, _next_answer_job, _judgement, known)


def answer_item(task: Mapping[str, Any], answer: str | None) -> AnswerItem:
    """Return an answer to a task that has values, a row of TASKS or SEEDS."""
    return AnswerItem(task["kind"], task["program"], tuple(task["inputs"]), tuple(task["values"]), answer)


def input_text(text: str) -> str:
    """Return an argument list in our own notation. Raise LiteralError if it is invalid."""
    return arguments_literal(parse_arguments(text))


def _next_task_job(item: TaskItem, verdicts: list[Verdict]) -> Job | None:
    if len(verdicts) == len(item.inputs) or _used_up(verdicts) or (verdicts and verdicts[-1].status is not Status.VALID):
        return None
    return Job(item.program, item.inputs[len(verdicts)], True)


def _task_verdict(item: TaskItem, verdicts: list[Verdict]) -> TaskVerdict:
    key = next((verdict.program_key for verdict in verdicts if verdict.program_key), None)
    if not verdicts:
        return TaskVerdict(Status.UNPARSED, (), (), "no inputs", None)
    for number, verdict in enumerate(verdicts, 1):
        problem = _problem(verdict)
        if problem:
            where = f"input {number}: " if len(item.inputs) > 1 else ""
            return TaskVerdict(problem[0], (), (), where + problem[1], key)
    if len(verdicts) < len(item.inputs):
        return TaskVerdict(Status.TIMEOUT, (), (), f"input {len(verdicts) + 1}: {_SLOW}", key)
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


def _used_up(verdicts: Sequence[Verdict]) -> bool:
    return sum(verdict.limits_used for verdict in verdicts) > ANSWER_LIMITS


def _next_answer_job(item: AnswerItem, verdicts: list[Verdict]) -> Job | None:
    if item.answer is None or item.kind == "deduction":
        return None
    if item.kind == "abduction":
        return None if verdicts else _abduction_job(item.program, item.answer)
    if item.kind == "induction":
        return _next_induction_job(item, item.answer, verdicts)
    raise ValueError(f"unknown kind {item.kind!r}")


def _abduction_job(program: str, answer: str) -> Job | None:
    try:
        return Job(program, arguments_literal(parse_arguments(answer)), False)
    except (LiteralError, TooLarge):
        return None


def _next_induction_job(item: AnswerItem, answer: str, verdicts: list[Verdict]) -> Job | None:
    last = len(verdicts) - 1
    if verdicts and (verdicts[last].status is not Status.VALID or verdicts[last].value != item.values[last]):
        return None
    if len(verdicts) == len(item.inputs) or _used_up(verdicts):
        return None
    return Job(answer, item.inputs[len(verdicts)], False)


def _judgement(item: AnswerItem, verdicts: list[Verdict]) -> Judgement:
    if item.answer is None:
        return Judgement("format", False, "no answer")
    if item.kind == "deduction":
        return compare_literal(item.answer, item.values[0])
    if not verdicts:
        return _unread(item)
    num_runs = len(item.inputs) if item.kind == "induction" else 1
    for number, verdict in enumerate(verdicts, 1):
        where, value = f"input {number}: " if num_runs > 1 else "", item.values[number - 1]
        if verdict.status is not Status.VALID:
            return Judgement(verdict.status, False, where + verdict.detail)
        if verdict.value != value:
            return Judgement("wrong", False, where + "another value")
    if len(verdicts) < num_runs:
        return Judgement(Status.TIMEOUT, False, f"input {len(verdicts) + 1}: {_SLOW}")
    return Judgement("correct", True, "")


def _unread(item: AnswerItem) -> Judgement:
    """Return the judgement of an answer that could not be turned into a run."""
    try:
        assert item.answer is not None
        arguments_literal(parse_arguments(item.answer))
    except (LiteralError, TooLarge) as error:
        return Judgement(Status.UNPARSED, False, str(error))
    raise ValueError(f"{item.kind} item without inputs")
