"""`populora verify` and `populora grade`: the judge on its own, JSON lines in and out, in order and in constant memory.

The same functions as the run's verify and grade stages. A line that cannot be read gets an error naming its number and the rest
is judged; with `strict` all lines are read before any program runs and the first bad one ends the command.
"""

import json
import os
import select
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

from stages.core.judge import AnswerItem, TaskItem, judge_answers, judge_tasks
from stages.core.sandbox import Sandbox
from stages.core.values import LiteralError, canonical, parse_value

MAX_LINE = 1 << 20
_KINDS = ("deduction", "abduction", "induction")


class BadLine(ValueError):
    """A line that cannot be judged; the text names its number."""


@dataclass(frozen=True)
class Line:
    """A line of the input: its item, or what is wrong with it."""

    id: Any
    item: Any
    error: str = ""


def verify(sandbox: Sandbox, stdin: BinaryIO, stdout: TextIO, strict: bool = False, progress: TextIO | None = None) -> int:
    """Judges tasks line by line; the exit code. Raises SandboxUnavailable."""

    def report(line: Line, verdict: Any) -> dict[str, Any]:
        if line.error:
            return {"id": line.id, "status": "unparsed", "output": None, "detail": line.error}
        output = verdict.outputs[0] if verdict.outputs else None
        return {"id": line.id, "status": str(verdict.status), "output": output, "detail": verdict.detail}

    return _command(stdin, stdout, _task, lambda items: judge_tasks(sandbox, items), report, strict, progress)


def grade(sandbox: Sandbox, stdin: BinaryIO, stdout: TextIO, strict: bool = False, progress: TextIO | None = None) -> int:
    """Judges answers line by line; the exit code. Raises SandboxUnavailable."""

    def report(line: Line, judged: Any) -> dict[str, Any]:
        if line.error:
            return {"id": line.id, "status": "unparsed", "detail": line.error}
        status = "unparsed" if judged.status == "format" else str(judged.status)
        return {"id": line.id, "status": status, "detail": judged.detail}

    return _command(stdin, stdout, _answer, lambda items: judge_answers(sandbox, items), report, strict, progress)


def _command(
    stdin: BinaryIO,
    stdout: TextIO,
    read: Callable[[dict[str, Any]], Any],
    judge: Callable[[Iterable[Any]], Iterator[Any]],
    report: Callable[[Line, Any], dict[str, Any]],
    strict: bool,
    progress: TextIO | None,
) -> int:
    """Good lines go through the judge, bad ones past it; `order` holds what has been read and not yet written."""
    try:
        source = _checked(stdin, read) if strict else _lines(stdin, read)
    except BadLine as error:
        print(str(error), file=sys.stderr)
        return 2
    order: deque[Line] = deque()
    bar = _Progress(progress or sys.stderr)

    def items() -> Iterator[Any]:
        bad = 0
        for line in source:
            if line is not None:
                order.append(line)
            bad = bad + 1 if line is not None and line.error else 0
            if line is None or not line.error:
                yield None if line is None else line.item
            elif bad % 256 == 0:
                yield _NOTHING[read]  # a long stretch of bad lines must not be held in memory
                order.append(Line(None, None, "\0"))

    def write(line: Line, verdict: Any) -> None:
        if line.error != "\0":
            stdout.write(json.dumps(report(line, verdict), ensure_ascii=True) + "\n")
            bar.step(report(line, verdict)["status"])

    def write_bad() -> None:
        while order and order[0].error and order[0].error != "\0":
            write(order.popleft(), None)

    for verdict in judge(items()):
        write_bad()
        write(order.popleft(), verdict)
        write_bad()
        if not order or len(order) % 64 == 0:
            stdout.flush()
    write_bad()
    assert not order, f"{len(order)} lines without a verdict"
    stdout.flush()
    bar.end()
    return 0


# --- reading


def _lines(stdin: BinaryIO, read: Callable[[dict[str, Any]], Any]) -> Iterator[Line | None]:
    """Every line of the input in order, never holding more than one; None while there is nothing to read."""
    for number, data in enumerate_lines(stdin):
        if data is None:
            yield None
        elif data.strip():
            yield _line(number, data, read)


def _line(number: int, data: bytes, read: Callable[[dict[str, Any]], Any]) -> Line:
    identity = None
    try:
        if len(data) > MAX_LINE:
            raise BadLine(f"longer than {MAX_LINE} bytes")
        row = _parse(data)
        identity = row.get("id") if isinstance(row.get("id"), str | int) else None
        if "id" not in row:
            raise BadLine("field id is missing")
        return Line(row["id"], read(row))
    except BadLine as error:
        return Line(identity, None, f"line {number}: {error}")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        row = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 at byte {error.start + 1}") from error
    except RecursionError as error:
        raise BadLine("nested too deep") from error
    except ValueError as error:
        raise BadLine(f"not JSON: {str(error)[:100]}") from error
    if not isinstance(row, dict):
        raise BadLine("not a JSON object")
    return row


def enumerate_lines(stdin: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """(number, line), lines over the limit cut to one byte more than it; (number, None) when nothing has come for 20 ms."""
    try:
        descriptor = stdin.fileno()
    except (OSError, AttributeError, ValueError):
        for number, line in enumerate(stdin, 1):
            yield number, line[: MAX_LINE + 1]
        return
    number, rest, skipping = 1, bytearray(), False
    while True:
        while not select.select([descriptor], [], [], 0.02)[0]:
            yield number, None
        data = os.read(descriptor, 1 << 16)
        if not data:
            break
        first, *others = data.split(b"\n")
        if not skipping:
            rest += first
        for part in others:
            yield number, bytes(rest[: MAX_LINE + 1])
            number, rest, skipping = number + 1, bytearray(part), False
        if len(rest) > MAX_LINE:
            skipping = True
            del rest[MAX_LINE + 1 :]
    if rest:
        yield number, bytes(rest[: MAX_LINE + 1])


def _checked(stdin: BinaryIO, read: Callable[[dict[str, Any]], Any]) -> Iterator[Line | None]:
    """With `strict`: the input through a temporary file, checked as a whole first. Raises BadLine with the first error."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the lines)
    for number, data in enumerate_lines(stdin):
        if data is not None and data.strip():
            line = _line(number, data, read)
            if line.error:
                raise BadLine(line.error)
            copy.write(data + b"\n")
    copy.seek(0)
    return _lines(copy, read)


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if name not in row or value is None:
        raise BadLine(f"field {name} is missing")
    if not isinstance(value, str):
        raise BadLine(f"field {name} is not a text")
    return value


def _task(row: dict[str, Any]) -> TaskItem:
    return TaskItem(_text(row, "program"), (_text(row, "input"),))


def _answer(row: dict[str, Any]) -> AnswerItem:
    kind = _text(row, "kind")
    if kind not in _KINDS:
        raise BadLine(f"field kind is {kind[:40]!r}, not one of {', '.join(_KINDS)}")
    if "answer" not in row:
        raise BadLine("field answer is missing")
    answer = None if row["answer"] is None else _text(row, "answer")
    if kind == "induction":
        inputs, values = _examples(row)
        return AnswerItem(kind, "", inputs, values, answer)
    program = _text(row, "program") if kind == "abduction" else ""
    return AnswerItem(kind, program, (), (_value(_text(row, "output"), "output"),), answer)


def _examples(row: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    examples = row.get("examples")
    if not isinstance(examples, list) or not examples:
        raise BadLine("field examples is missing or empty")
    for pair in examples:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise BadLine("field examples holds something that is not a pair of texts")
    return tuple(pair[0] for pair in examples), tuple(_value(pair[1], "examples") for pair in examples)


def _value(text: str, name: str) -> str:
    try:
        return canonical(parse_value(text))
    except LiteralError as error:
        raise BadLine(f"field {name} is not a literal: {error}") from error


_NOTHING: dict[Callable[[dict[str, Any]], Any], Any] = {
    _task: TaskItem("", ()),
    _answer: AnswerItem("deduction", "", (), (), None),
}


class _Progress:
    """A line on a terminal that says how many were judged, and how."""

    def __init__(self, stream: TextIO | None):
        self.stream = stream if stream is not None and stream.isatty() else None
        self.counts: dict[str, int] = {}

    def step(self, status: str) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        if self.stream and sum(self.counts.values()) % 100 == 0:
            self._show("\r")

    def end(self) -> None:
        if self.stream:
            self._show("\r")
            self.stream.write("\n")

    def _show(self, start: str) -> None:
        assert self.stream is not None
        common = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        parts = ", ".join(f"{count} {status}" for status, count in common)
        self.stream.write(f"{start}{sum(self.counts.values())} judged: {parts}\033[K")
        self.stream.flush()
