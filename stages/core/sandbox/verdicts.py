"""Turn a supervisor's report about the runs of a job into a verdict. Pure; every byte is checked.

The bounded parser reads each value on the host, so a value that the sandbox reports as valid is checked again here.
"""

import marshal
import re
import struct
from typing import NamedTuple

from stages.core.sandbox.protocol import Job, Status, Verdict
from stages.core.values.canonical import (
    LiteralError,
    OverLimit,
    TooLarge,
    arguments_literal,
    arguments_wire,
    canonical,
    is_settled,
    literal,
    parse_arguments,
    parse_value,
)
from stages.core.values.literals import MAX_TEXT

MAX_SOURCE = 16_384
_RUN = struct.Struct("!cIIIBI")
_STATUSES = {
    b"U": Status.UNPARSED,
    b"B": Status.BANNED,
    b"E": Status.ERROR,
    b"T": Status.TIMEOUT,
    b"M": Status.MEMORY,
    b"O": Status.OUTPUT_LIMIT,
    b"X": Status.UNSUPPORTED_VALUE,
    b"C": Status.CRASH,
}
_LINES = re.compile(r"(?:[0-9]{1,5}:[0-9]{1,15},)*+")
_UNUSUAL_CODEC = re.compile(r"code\((?!\)|['\"](?:utf-?8|ascii|latin-?1)['\"][,)])", re.IGNORECASE)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{5,}")
_WIRE_LIMIT = 12 * 65_536  # ASCII escapes are up to ten characters each
SERVER_ENDED = "the program's server ended"
NEAR = 0.8
"""A run that used this share of its processor time is made again alone."""


class MalformedReply(ValueError):
    """The supervisor's reply is invalid: the container cannot be trusted."""


class ProgramRun(NamedTuple):
    """One run of a program in one server: verdict letter, CPU and wall seconds, peak KiB, key, text, counts of a trace."""

    letter: bytes
    cpu: float
    wall: float
    rss_kib: int
    key: str
    text: str
    lines: str = ""


def parse_runs(body: bytes) -> tuple[int, list[ProgramRun]]:
    """Return (job number, runs) of one reply. Raise MalformedReply if it is invalid."""
    try:
        number, count = struct.unpack_from("!IB", body)
        position, runs = 5, []
        for _ in range(count):
            letter, cpu, wall, rss, key_size, text_size = _RUN.unpack_from(body, position)
            position += _RUN.size
            key = body[position : position + key_size].decode("ascii")
            text = body[position + key_size : position + key_size + text_size].decode("ascii")
            position += key_size + text_size
            text, _, lines = text.partition("\n") if letter == b"V" else (text, "", "")  # a value's text is one line
            runs.append(ProgramRun(letter, cpu / 1e6, wall / 1e6, rss, key, text, lines))
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedReply(str(error)) from error
    if position != len(body) or any(run.letter != b"V" and run.letter not in _STATUSES for run in runs):
        raise MalformedReply("an answer of another length or kind")
    return number, runs


def payload(job: Job, input_text: int = MAX_TEXT) -> bytes | Verdict:
    """Return the job as the program's process reads it, or a verdict if no run is needed (input over `input_text` characters)."""
    try:
        program = job.program.encode()
    except UnicodeEncodeError:
        return Verdict(Status.UNPARSED, None, "the program holds a lone surrogate", None)
    size = len(program)
    if size > MAX_SOURCE:
        return Verdict(Status.UNPARSED, None, f"the program has {size} bytes, over {MAX_SOURCE}", None)
    try:
        arguments = parse_arguments(job.input, input_text)
        if input_text == MAX_TEXT and len(job.input) > MAX_TEXT // 2:
            arguments_literal(arguments)  # raises TooLarge; for shorter texts the `repr` cannot be too long
    except (LiteralError, TooLarge) as error:
        return Verdict(Status.UNPARSED, None, f"input: {error}", None)
    marshalled = "{" not in job.input and "set" not in job.input  # a set would be written in this process's order
    data = marshal.dumps(arguments, 2) if marshalled else arguments_wire(arguments).encode("ascii")  # type: ignore[arg-type]
    flags = job.trace | marshalled << 1 | (not marshalled and _holds_an_order(arguments)) << 3
    return bytes([flags]) + size.to_bytes(4, "big") + program + data


def _holds_an_order(value: object) -> bool:
    """Return whether a parsed value is or holds a set, of which a program may show an order without naming any."""
    if isinstance(value, set | frozenset):
        return True
    if isinstance(value, dict):
        return any(map(_holds_an_order, value)) or any(map(_holds_an_order, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_an_order, value))


def needs_modules(program: str) -> bool:
    """Return whether it needs a server with modules: for imports, unusual codecs, or what the compiler needs `unicodedata` for.

    A program that reaches a module unexpectedly runs again in such a server, which costs one run.
    """
    return "import" in program or "\\N" in program or not program.isascii() or _UNUSUAL_CODEC.search(program) is not None


def verdict(runs: list[ProgramRun]) -> Verdict:
    """Return the verdict on runs that all count (limits already judged): the first run without a value, or equal values."""
    key = runs[0].key or None
    first = runs[0]
    if first.letter != b"V":
        return Verdict(_STATUSES[first.letter], None, _line(first.text), key)
    for run in runs[1:]:
        if run.letter in (b"T", b"M", b"C"):
            return Verdict(_STATUSES[run.letter], None, _line(run.text), key)
        if run.letter != b"V":
            return Verdict(Status.NONDETERMINISTIC, None, f"a value in one server, in another {_line(run.text)}", key)
    try:
        value, text = _texts(list(dict.fromkeys([run.text for run in runs])))
    except TooLarge as error:
        return Verdict(Status.OUTPUT_LIMIT, None, str(error), key)
    except OverLimit as error:  # a set in a frozenset counts as two levels here and as one in the sandbox
        return Verdict(Status.UNSUPPORTED_VALUE, None, f"the value cannot be compared: {error}", key)
    except LiteralError as error:  # the program's process wrote its own frame
        return Verdict(Status.CRASH, None, f"the result is no value: {error}", key)
    if value is None:
        return Verdict(Status.NONDETERMINISTIC, None, "the servers with different hash seeds give different values", key)
    if _ADDRESS.search(text):
        return Verdict(Status.NONDETERMINISTIC, None, "the value shows a memory address", key)
    if not runs[0].lines:
        return Verdict(Status.VALID, value, "", key, text)
    if not _LINES.fullmatch(runs[0].lines):
        return Verdict(Status.CRASH, None, "the result is no value: what follows it is no trace", key)
    pairs = (pair.split(":") for pair in runs[0].lines.split(",") if pair)
    return Verdict(Status.VALID, value, "", key, text, tuple(sorted((int(line), int(count)) for line, count in pairs)))


def _texts(results: list[str]) -> tuple[str | None, str]:
    """Return canonical text (None if the results differ in value) and literal. Raise TooLarge, LiteralError."""
    if len(results) == 1 and is_settled(results[0]):
        return results[0], results[0]
    values = [parse_value(result, limit=_WIRE_LIMIT) for result in results]
    text = literal(values[0])
    canonicals = {canonical(value) for value in values}
    value = canonicals.pop()
    if canonicals:
        return None, text
    if any(literal(other) != text for other in values[1:]):
        text = literal(parse_value(value, limit=_WIRE_LIMIT))  # an irreproducible dict order is not shown
    return value, text


def _line(text: str) -> str:
    """Shorten to one line for messages, control characters written out: what the program wrote may contain any of ASCII."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in " ".join(text[:3_000].split()))[:300]


def over(runs: list[ProgramRun], cpu_limit: float, wall_limit: float) -> list[ProgramRun]:
    """Return the runs, with those over a limit turned into time-outs."""
    slow = "CPU time is over the limit", "wall time is over the limit"
    return [
        ProgramRun(b"T", run.cpu, run.wall, run.rss_kib, run.key, slow[run.cpu <= cpu_limit])
        if run.letter != b"T" and (run.cpu > cpu_limit or run.wall > wall_limit + 5)
        else run
        for run in runs
    ]


def near_limit(runs: list[ProgramRun], cpu_limit: float, wall_limit: float) -> bool:
    """Return whether load may have decided: CPU within 20 % of the limit, or wall time near its limit for a computing program."""
    return any(
        NEAR * cpu_limit <= run.cpu < 1.2 * cpu_limit
        or (run.wall >= 0.8 * wall_limit and 0.3 * cpu_limit < run.cpu < 1.2 * cpu_limit)
        for run in runs
    )
