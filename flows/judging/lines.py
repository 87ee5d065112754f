"""The lines that `populora verify` and `populora grade` read: tasks and answers, or their errors, by line number."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_readable  # poll: select refuses descriptors over 1,023
from typing import Any, BinaryIO

from flows.judging.line_ids import IdReader, line_id
from stages.core.judging.judge import AnswerItem, TaskItem
from stages.core.values.canonical import LiteralError, canonical, parse_value

MAX_LINE = 1 << 20
_KINDS = ("deduction", "abduction", "induction")


class BadLine(ValueError):
    """A line that cannot be judged; the message names its number."""


@dataclass(frozen=True)
class Line:
    """A line of the input: its item, or its error."""

    id: Any
    item: Any
    error: str = ""


def lines(stdin: BinaryIO, read: Callable[[dict[str, Any]], Any]) -> Iterator[Line | None]:
    """Yield every line of the input in order, holding at most one; None while there is nothing to read."""
    for number, data, identity in enumerate_lines(stdin):
        if data is None:
            yield None
        elif data.strip():
            yield _line(number, data, identity, read)


def _line(number: int, data: bytes, identity: str | int | None, read: Callable[[dict[str, Any]], Any]) -> Line:
    """Return the line's item or its error; `identity` is given if `data` is only the start of the line."""
    try:
        if len(data) > MAX_LINE:
            raise BadLine(f"longer than {MAX_LINE} bytes")
        row = _parse(data)
        if "id" not in row:
            raise BadLine("field id is missing")
        if isinstance(row["id"], list | dict):
            raise BadLine("field id is neither a string nor a number")
        return Line(row["id"], read(row))
    except BadLine as error:
        return Line(line_id(data) if identity is None else identity, None, f"line {number}: {error}")


def _parse(data: bytes) -> dict[str, Any]:
    try:
        row = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 at byte {error.start + 1}") from error
    except RecursionError as error:
        raise BadLine("nested too deeply") from error
    except ValueError as error:
        raise BadLine(f"not JSON: {str(error)[:100]}") from error
    if not isinstance(row, dict):
        raise BadLine("not a JSON object")
    return row


def enumerate_lines(stdin: BinaryIO) -> Iterator[tuple[int, bytes | None, str | int | None]]:
    """Yield (number, line, None); for a line over the limit its start, one byte more than the limit, and its id.

    Yields (number, None, None) if nothing has arrived for 20 ms.
    """
    try:
        descriptor = stdin.fileno()
    except (OSError, AttributeError, ValueError):
        for number, line in enumerate(stdin, 1):
            yield number, line[: MAX_LINE + 1], line_id(line) if len(line) > MAX_LINE else None
        return
    number, held = 1, _Held()
    while True:
        while not wait_readable([descriptor], 0.02):
            yield number, None, None
        data = os.read(descriptor, 1 << 16)
        if not data:
            break
        first, *others = data.split(b"\n")
        held.add(first)
        for part in others:
            yield number, held.start(), held.identity()
            number, held = number + 1, _Held()
            held.add(part)
    if held.data:
        yield number, held.start(), held.identity()


class _Held:
    """The buffered part of a line being read: all of it up to the limit, then its start and its possible id."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ids: IdReader | None = None

    def add(self, data: bytes) -> None:
        """Add the next bytes of the line."""
        if self.ids is not None:
            self.ids.feed(data)
        else:
            self.data += data
        if self.ids is None and len(self.data) > MAX_LINE:
            self.ids = IdReader()
            self.ids.feed(bytes(self.data))
            del self.data[MAX_LINE + 1 :]

    def start(self) -> bytes:
        return bytes(self.data)

    def identity(self) -> str | int | None:
        return None if self.ids is None else self.ids.identity


def checked(stdin: BinaryIO, read: Callable[[dict[str, Any]], Any]) -> Iterator[Line | None]:
    """Copy the input to a temporary file and check all of it first (`strict`). Raises BadLine with the first error."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the lines)
    try:
        for number, data, identity in enumerate_lines(stdin):
            if data is not None and data.strip():
                line = _line(number, data, identity, read)
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
        raise BadLine(f"field {name} is not a string")
    return value


def task(row: dict[str, Any]) -> TaskItem:
    """Parse a line of `populora verify`. Raises BadLine."""
    return TaskItem(_text(row, "program"), (_text(row, "input"),))


def answer(row: dict[str, Any]) -> AnswerItem:
    """Parse a line of `populora grade`. Raises BadLine."""
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
            raise BadLine("field examples contains an item that is not a pair of strings")
    return tuple(pair[0] for pair in examples), tuple(_value(pair[1], "examples") for pair in examples)


def _value(text: str, name: str) -> str:
    try:
        return canonical(parse_value(text))
    except LiteralError as error:
        raise BadLine(f"field {name} is not a literal: {error}") from error
