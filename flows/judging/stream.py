"""`populora verify` and `populora grade`: the standalone judge, JSON lines in and out, in order and in constant memory.

Uses the same functions as the run's verify and grade stages. An unreadable line gets an error with its number and the rest is
judged. With `strict`, all lines are read before any program runs and the first invalid one ends the command.
"""

import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TextIO

from flows.judging.lines import BadLine, Line, answer, checked, lines, task
from stages.core.judging.judge import AnswerItem, TaskItem, judge_answers, judge_tasks
from stages.core.row_errors import ItemFailed
from stages.core.sandbox.protocol import Sandbox


class OutputNotWritten(RuntimeError):
    """The verdicts cannot be written, usually because the disk is full."""

    exit_code = 1


class NotJudged(RuntimeError):
    """Our own code failed at a line, which the message names. This is a bug in this program, never a verdict."""

    exit_code = 1


def verify(sandbox: Sandbox, stdin: BinaryIO, stdout: TextIO, strict: bool = False, progress: TextIO | None = None) -> int:
    """Judge tasks line by line and return the exit code. Raises SandboxUnavailable."""

    def report(line: Line, verdict: Any) -> dict[str, Any]:
        if line.error:
            return {"id": line.id, "status": "unparsed", "output": None, "detail": line.error}
        output = verdict.outputs[0] if verdict.outputs else None
        return {"id": line.id, "status": str(verdict.status), "output": output, "detail": verdict.detail}

    return _command(stdin, stdout, task, lambda items: judge_tasks(sandbox, items), report, strict, progress)


def grade(sandbox: Sandbox, stdin: BinaryIO, stdout: TextIO, strict: bool = False, progress: TextIO | None = None) -> int:
    """Judge answers line by line and return the exit code. Raises SandboxUnavailable."""

    def report(line: Line, judged: Any) -> dict[str, Any]:
        if line.error:
            return {"id": line.id, "status": "unparsed", "detail": line.error}
        status = "unparsed" if judged.status == "format" else str(judged.status)
        return {"id": line.id, "status": status, "detail": judged.detail}

    return _command(stdin, stdout, answer, lambda items: judge_answers(sandbox, items), report, strict, progress)


def _command(
    stdin: BinaryIO,
    stdout: TextIO,
    read: Callable[[dict[str, Any]], Any],
    judge: Callable[[Iterable[Any]], Iterator[Any]],
    report: Callable[[Line, Any], dict[str, Any]],
    strict: bool,
    progress: TextIO | None,
) -> int:
    """Read, judge and write until the input ends, and return the exit code."""
    try:
        source = checked(stdin, read) if strict else lines(stdin, read)
    except BadLine as error:
        print(str(error), file=sys.stderr)
        return 2
    except OSError as error:
        raise OutputNotWritten(f"the lines cannot be stored for --strict: {error}") from error
    try:
        _stream(source, stdout, read, judge, report, _Progress(progress or sys.stderr))
    except BrokenPipeError:
        raise
    except OSError as error:
        with contextlib.suppress(OSError, AttributeError, ValueError):  # buffered output cannot be written either
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        raise OutputNotWritten(f"the verdicts cannot be written: {error}") from error
    return 0


def _stream(
    source: Iterator[Line | None],
    stdout: TextIO,
    read: Callable[[dict[str, Any]], Any],
    judge: Callable[[Iterable[Any]], Iterator[Any]],
    report: Callable[[Line, Any], dict[str, Any]],
    bar: "_Progress",
) -> None:
    """Judge valid lines and pass invalid ones through; `order` holds lines that are read and not yet written."""
    order: deque[Line] = deque()

    def items() -> Iterator[Any]:
        bad = 0
        for line in source:
            if line is None:
                write_bad()  # nothing more to read at the moment: do not delay these
                stdout.flush()
            else:
                order.append(line)
            bad = bad + 1 if line is not None and line.error else 0
            if line is None or not line.error:
                yield None if line is None else line.item
            elif bad % 256 == 0:
                order.append(Line(None, None, "\0"))
                yield _NOTHING[read]  # a long sequence of invalid lines must not be held in memory

    def write(line: Line, verdict: Any) -> None:
        if line.error != "\0":
            row = report(line, verdict)
            stdout.write(json.dumps(row, ensure_ascii=True) + "\n")
            bar.step(row["status"])

    def write_bad() -> None:
        while order and order[0].error and order[0].error != "\0":
            write(order.popleft(), None)

    written = 0
    try:
        for verdict in judge(items()):
            write_bad()
            write(order.popleft(), verdict)
            written += 1
            write_bad()
            if not order or len(order) % 64 == 0:
                stdout.flush()
    except ItemFailed as failed:
        write_bad()
        stdout.flush()
        line = [line for line in order if not line.error or line.error == "\0"][failed.first - written]
        raise NotJudged(f"failed at the line with id {line.id!r} or shortly after it: {failed.error!r}") from failed.error
    write_bad()
    assert not order, f"{len(order)} lines without a verdict"
    stdout.flush()
    bar.end()


_NOTHING: dict[Callable[[dict[str, Any]], Any], Any] = {
    task: TaskItem("", ()),
    answer: AnswerItem("deduction", "", (), (), None),
}


class _Progress:
    """A line on a terminal that shows how many items were judged, by verdict."""

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
