"""The lines that `populora verify` and `populora grade` read: tasks and answers, or what is wrong with them, by number."""

import json
import os
import select
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from stages.core.judging.judge import AnswerItem, TaskItem
from stages.core.values.canonical import LiteralError, canonical, parse_value

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


def lines(stdin: BinaryIO, read: Callable[[dict[str, Any]], Any]) -> Iterator[Line | None]:
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


def checked(stdin: BinaryIO, read: Callable[[dict[str, Any]], Any]) -> Iterator[Line | None]:
    """With `strict`: the input through a temporary file, checked as a whole first. Raises BadLine with the first error."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the lines)
    try:
        for number, data in enumerate_lines(stdin):
            if data is not None and data.strip():
                line = _line(number, data, read)
                if line.error:
                    raise BadLine(line.error)
                copy.write(data + b"\n")
        copy.seek(0)
    except (BadLine, OSError):
        copy.close()
        raise
    return _kept(copy, read)


def _kept(copy: BinaryIO, read: Callable[[dict[str, Any]], Any]) -> Iterator[Line | None]:
    with copy:
        yield from lines(copy, read)


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if name not in row or value is None:
        raise BadLine(f"field {name} is missing")
    if not isinstance(value, str):
        raise BadLine(f"field {name} is not a text")
    return value


def task(row: dict[str, Any]) -> TaskItem:
    """A line of `populora verify`. Raises BadLine."""
    return TaskItem(_text(row, "program"), (_text(row, "input"),))


def answer(row: dict[str, Any]) -> AnswerItem:
    """A line of `populora grade`. Raises BadLine."""
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
