"""The true trace of a program's run, recorded in the sandbox, and how far a written trace agrees with it.

Two runs make a trace. A trusted program (`stages.core.judging.recorder`) turns the text of the program into one that records its
assignments; that one is as untrusted as the program and is run like it, in two servers whose values must be equal. What comes
back is parsed as literals. A program whose run cannot be recorded, or whose recorded run returns another value than the task's,
has no trace. A sandbox that does not answer raises.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from stages.core.judging import recorder
from stages.core.sandbox.protocol import Job, Sandbox, Status
from stages.core.values.canonical import LiteralError, TooLarge, canonical, parse_value
from stages.core.values.literals import MAX_TEXT

RECORDING = inspect.getsource(recorder)
MOST_LINES, LONGEST_LINE = 64, 300
"""Lines of a trace that are kept, and characters of a line; a longer one is kept empty, so that nothing agrees with it."""
MOST_STEPS = 1 << 31
"""No run within the limits assigns as often; a program may have written any number, and a table holds 64 bits of one."""


@dataclass(frozen=True)
class RecordedRun:
    """A program, the arguments of its run, and the canonical value that the run returned when the task was judged."""

    program: str
    input: str
    value: str


@dataclass(frozen=True)
class Trace:
    """What a run assigned: how many times, and the first of these as `name=value` lines, in order."""

    steps: int
    lines: tuple[str, ...]


NO_TRACE = Trace(0, ())
"""Of a run that cannot be recorded."""


def true_traces(sandbox: Sandbox, runs: Sequence[RecordedRun]) -> list[Trace]:
    """Return the trace of each run, in order. Raise SandboxUnavailable."""
    programs = list(dict.fromkeys(run.program for run in runs))
    asked = [Job(RECORDING, f"{program!r}, {MOST_LINES}, {LONGEST_LINE}", False) for program in programs]
    texts = {}
    for program, verdict in zip(programs, sandbox.run(asked), strict=True):
        texts[program] = _text(verdict.value) if verdict.status is Status.VALID and verdict.value is not None else ""
    recorded = [run for run in dict.fromkeys(runs) if texts[run.program]]
    jobs = [Job(texts[run.program], run.input, True) for run in recorded]
    values = {run: verdict.value for run, verdict in zip(recorded, sandbox.run(jobs), strict=True)}
    return [_trace(run, values.get(run)) for run in runs]


def _text(value: str) -> str:
    """Return the text of the recording program; empty if it is none. In a canonical text a character may take ten."""
    try:
        found = parse_value(value, limit=12 * MAX_TEXT)
    except (LiteralError, TooLarge):
        return ""
    return found if isinstance(found, str) else ""


def _trace(run: RecordedRun, value: str | None) -> Trace:
    """Return the trace in what a recording program returned; what a model's program may have made of it is checked."""
    try:
        found = parse_value(value or "")
        if not isinstance(found, tuple) or len(found) != 3 or canonical(found[0]) != run.value:
            return NO_TRACE
    except (LiteralError, TooLarge):
        return NO_TRACE
    _, steps, log = found
    pairs = isinstance(log, list) and all(isinstance(pair, tuple) and list(map(type, pair)) == [str, str] for pair in log)
    if type(steps) is not int or not 0 <= steps < MOST_STEPS or not pairs or len(log) != min(steps, MOST_LINES):
        return NO_TRACE
    return Trace(steps, tuple(_line(name, text) for name, text in log))


def _line(name: str, text: str) -> str:
    """Return a line of a trace; empty if the program's `repr` returned what no table can store, such as half a surrogate pair."""
    line = f"{name}={text}" if text else ""
    return line if line.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in line) else ""


def agreeing(trace: Sequence[str], written: Sequence[str]) -> int:
    """Return how many lines of a written trace agree with the true one, from the first line on, up to the first that does not.

    Lines agree if they have the same name and values that are equal as answers are compared.
    """
    count = 0
    for true, line in zip(trace, written, strict=False):
        if not true or not _agree(true, line):
            break
        count += 1
    return count


def _agree(true: str, line: str) -> bool:
    (name, _, value), (own, _, text) = true.partition("="), line.strip().partition("=")
    if own != name:
        return False
    try:
        return canonical(parse_value(text)) == canonical(parse_value(value))
    except (LiteralError, TooLarge):
        return False
