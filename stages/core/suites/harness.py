"""The program that runs a solution inside the sandbox, and the encoding of its inputs and outputs.

The sandbox runs programs that define `f` and judges their text by rules made for tasks (few modules, no `exec`, no streams).
A benchmark's solution may be any Python, so it goes in as *data*, an argument of a fixed program of ours, and is compiled in
there, with all builtins and whatever modules the process holds. This does not weaken the sandbox: the rules filter the quality of
tasks and are not a wall, and the walls (no network, files, processes, own uid, limits) surround the process.

In: the solution, what to call, and the tests' inputs, compressed. Never an expected output: what the calls returned comes out
as text and is compared on the host, so a solution can lie about its own values only. Each value is one line, a letter and a
literal: `v` a plain value; `s` a value equal to this one but of another type (Counter, namedtuple, Decimal …); `o` the name of
a type that equals no plain value; `e` the exception that ended the run there; `d` the digest of a very long value's text,
and of every long one where all texts together would be more than the sandbox lets out (of a list with more than ten
thousand members it is the digest of a text that equal values have in common, such as `1` and `1.0`; where the host knows the
expected value, it is the digest of the text there as well).
"""

import base64
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.core.sandbox.protocol import Job, Status, Verdict
from stages.core.suites.problems import BadSuite
from stages.core.values.canonical import LiteralError, parse_value

MAX_RETURNED, MAX_LINES = 1 << 24, 1 << 16
MAX_SOLUTION = 50_000
MAX_INPUT = 32_000_000  # characters of a job's arguments: a longer test is the suite's or the sandbox's fault, never the answer's

# The text avoids the names that the sandbox's rules look for; it is ours, so this hides nothing from anybody.
_COMMON = '''
import base64, collections, decimal, fractions, hashlib, io, zlib

REAL = getattr(collections, "__buil" + "tins__")
SYS = REAL["__im" + "port__"]("sys")
RUN, OPEN = REAL["ex" + "ec"], REAL["op" + "en"]


def scope_of(code, name, prelude):
    scope = {"__name__": name, "__buil" + "tins__": REAL}
    RUN(prelude, scope)
    RUN(REAL["comp" + "ile"](code, "solution", "ex" + "ec", 0, True), scope)
    return scope


ATOMS = frozenset([type(None), bool, int, float, complex, str, bytes])
ROWS = frozenset([list, tuple, set, frozenset])


def exact(value, depth):
    """Whether there are exact builtin types only, so that nothing needs to be copied."""
    kind = type(value)
    if kind in ATOMS:
        return True
    if depth > 48:
        return False
    if kind in ROWS:
        return ATOMS.issuperset(map(type, value)) or all(exact(x, depth + 1) for x in value)
    return kind is dict and all(exact(x, depth + 1) for pair in value.items() for x in pair)


def plain(value, depth):
    """(tag, value) with exact builtin types only; ValueError where nothing plain is equal to it."""
    if exact(value, depth):
        return "v", value
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return "v", value
    if depth > 48:
        raise ValueError("nested too deep")
    tag = "v"
    for base in (list, tuple, set, frozenset, dict):
        if isinstance(value, base):
            pairs = [plain(x, depth + 1) for x in base.__iter__(value)]
            if base is dict:
                values = [plain(dict.__getitem__(value, x), depth + 1) for x in dict.__iter__(value)]
                return ("v" if kind is dict else "s"), dict(zip([x for _, x in pairs], [x for _, x in values]))
            return ("v" if kind is base else "s"), base([x for _, x in pairs])
    for base in (int, float, complex, str, bytes):
        if isinstance(value, base):
            return "s", base(value)
    if kind in (fractions.Fraction, decimal.Decimal) and float(value) == value:
        return "s", float(value)
    if kind is bytearray:
        return "s", bytes(value)
    if kind in (type({}.keys()), type({}.items())):
        return "s", set(plain(tuple(value), depth + 1)[1])
    raise ValueError(kind.__name__)


def spelled(value, depth):
    """A text that is the same exactly where values are equal, whatever their types; ValueError where nothing plain is equal."""
    kind = type(value)
    if kind is int or kind is bool or kind is float and value % 1 == 0:
        return hex(int(value))
    if kind in ATOMS and value != value:
        raise ValueError("nan equals nothing")
    if kind is complex:
        return spelled(value.real, 0) + ("+" + spelled(value.imag, 0) + "j" if value.imag else "")
    if kind in ATOMS:
        return ascii(value)
    if depth > 48:
        raise ValueError("nested too deep")
    if kind is list:
        return "[" + ",".join([spelled(x, depth + 1) for x in value]) + "]"
    if kind is tuple:
        return "(" + ",".join([spelled(x, depth + 1) for x in value]) + ")"
    if kind is set or kind is frozenset:
        return "{" + ",".join(sorted([spelled(x, depth + 1) for x in value])) + "}"
    if kind is dict:
        return "{:" + ",".join(sorted([spelled(x, depth + 1) + ":" + spelled(y, depth + 1) for x, y in value.items()])) + "}"
    return spelled(plain(value, depth)[1], depth)


def digest(value):
    """Of a list or tuple whose text might be a gigabyte: some members at a time."""
    whole = hashlib.sha256(type(value).__name__.encode())
    for start in range(0, len(value), 1000):
        members = value[start : start + 1000]
        texts = map(hex, members) if set(map(type, members)) == {int} else [spelled(x, 1) for x in members]
        whole.update(("\\n".join(texts) + "\\n").encode())
    return "d'" + whole.hexdigest() + "'"


def line_of(value, hashed):
    try:
        if hashed and type(value) in (list, tuple) and len(value) > 10000:
            return digest(value)
        tag, found = plain(value, 0)
        line = tag + ascii(found)
        return line if len(line) < 100000 else short(line)
    except BaseException as error:
        return "o" + ascii(type(value).__name__)


def short(line):
    return "d'" + hashlib.sha256(line.encode()).hexdigest() + "'"


def packed(lines, room):
    text = base64.b64encode(zlib.compress("\\n".join(lines).encode("ascii"), 6)).decode()
    if len(text) <= room:
        return text
    lines = [x if len(x) < 2000 else short(x) for x in lines]
    return base64.b64encode(zlib.compress("\\n".join(lines).encode("ascii"), 9)).decode()


def failure(error):
    return "e" + ascii(type(error).__name__ + ": " + " ".join(str(error).split())[:200])
'''

_FUNCTION = (
    _COMMON
    + Path(__file__).with_name("target_code.py").read_text()
    + """

def shaped(value, shape):
    if shape == "listed":
        return list(value) if isinstance(value, tuple) else value
    if shape == "set":
        return set(value)
    if shape == "is_some":
        return value is not None
    if shape == "some":
        return value if type(value) is bool else value is not None
    return value


def f(source, prelude, entry, shape, extracted, data):
    groups = RUN_LITERAL(zlib.decompress(base64.b64decode(data)).decode())
    answers = []
    for arguments in groups:
        lines = []
        answers.append(lines)
        try:
            owner, _, method = entry.rpartition(".")
            scope = scope_of(target_code(source, method) if extracted else source, "solution", prelude)
            called = getattr(scope[owner](), method) if owner and "class " + owner in source else scope[method]
            for given in arguments:
                lines.append(line_of(shaped(called(*given), shape), shape != "listed"))
        except BaseException as error:
            lines.append(failure(error))
            if len(lines) == 1:
                break
    return [packed(lines, 60000 // len(answers)) for lines in answers]


RUN_LITERAL = lambda text: REAL["ev" + "al"](text, {"nan": float("nan"), "inf": float("inf")})
"""
)

_STDIN = (
    _COMMON
    + """

def f(source, prelude, data):
    given = zlib.decompress(base64.b64decode(data))
    shown = io.BytesIO()
    SYS.stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8", newline=None)
    SYS.stdout = io.TextIOWrapper(shown, encoding="utf-8", errors="backslashreplace", write_through=True)
    system = REAL["__im" + "port__"]("os")
    streams = {0: SYS.stdin, 1: SYS.stdout, "/dev/stdin": SYS.stdin, "/dev/stdout": SYS.stdout}
    REAL["op" + "en"] = lambda file, *rest, **named: streams[file] if file in streams else OPEN(file, *rest, **named)
    system.read = lambda descriptor, size: SYS.stdin.buffer.read(size)
    system.write = lambda descriptor, text: SYS.stdout.buffer.write(text)

    def leave(code=None):
        raise SystemExit(code)

    REAL["exit"] = REAL["quit"] = leave
    lines = []
    try:
        scope_of(source, "__main__", prelude)
    except SystemExit:
        pass
    except BaseException as error:
        lines.append(failure(error))
    SYS.stdout.flush()
    text = "v" + ascii("\\n".join([x.strip() for x in shown.getvalue().decode("utf-8", "backslashreplace").strip().split("\\n")]))
    return packed([text, *lines], 60000)
"""
)

# in LiveCodeBench's order: later names replace earlier ones, so that `pow` and `open` are the builtins
_STARRED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator "
    "io sys json builtins typing"
)
PRELUDE = (
    "".join(f"from {name} import *\n" for name in _STARRED.split())
    + f"import {', '.join(name for name in _STARRED.split() if name != 'builtins')}\n"
    + "sys.setrecursionlimit(50000)\n"
)
"""What LiveCodeBench's runner puts before a solution: star imports of the usual modules. It has numpy, too, where installed."""


@dataclass(frozen=True)
class ReturnedValue:
    """One value that came back: its letter (see above) and its literal text."""

    tag: str
    text: str

    def value(self) -> object:
        """Return the value, of exact builtin types. Raise LiteralError."""
        return parse_value(self.text, limit=MAX_RETURNED)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: the sandbox's status, a line of detail, and the returned values, one list per group."""

    status: str
    detail: str
    groups: tuple[tuple[ReturnedValue, ...], ...]


def function_job(
    source: str, prelude: str, entry: str, shape: str, groups: Sequence[Sequence[str]], extracted: bool = False
) -> Job:
    """Return a job that calls `entry` (or `Class.method`) for every argument list; each group starts from a fresh module.

    `groups` hold argument lists as wire text (`arguments_wire`), one tuple each. `shape` is the returned part of a value: the
    value (``), its members as a set (`set`), a tuple as a list (`listed`), or whether there is one (`is_some`; `some` passes
    booleans through). `extracted` runs only what `target_code` takes from the source. A source that does not name `class Class`
    is called as a module. Raise BadSuite for tests too long.
    """
    text = "[" + ", ".join("[" + ", ".join(group) + "]" for group in groups) + "]"
    return _job(_FUNCTION, source, prelude, entry, shape, extracted, _packed(text.encode("ascii")))


def version() -> str:
    """Return the version of the programs that run solutions. Results of different versions are not comparable."""
    return hashlib.sha256((_FUNCTION + _STDIN).encode()).hexdigest()[:12]


def text_digest(literal: str) -> ReturnedValue:
    """Return what replaces a plain value whose literal text is long."""
    return ReturnedValue("d", f"'{hashlib.sha256(b'v' + literal.encode()).hexdigest()}'")


def stdin_job(source: str, prelude: str, given: str) -> Job:
    """Return a job that runs the solution as a program with this standard input and returns its standard output.

    Raise BadSuite for tests too long. Whatever status the program exits with, its output counts.
    """
    return _job(_STDIN, source, prelude, _packed(given.encode("utf-8", "surrogatepass")))


def read(verdict: Verdict, asked: int = 1) -> Outcome:
    """Read the outcome from a verdict on one of these jobs, which has as many groups as were `asked` for, or fewer.

    More groups and invalid lines (the solution tampered) make it a crash.
    """
    if verdict.status is not Status.VALID:
        return Outcome(verdict.status, verdict.detail, ())
    assert verdict.value is not None
    try:
        packed = parse_value(verdict.value)
        texts = packed if isinstance(packed, list) else [packed]
        if len(texts) > asked:  # before any is unpacked: a few hundred bytes become thousands of lines
            raise ValueError(f"{len(texts)} groups where {asked} were asked for")
        return Outcome(Status.VALID, "", tuple(tuple(_lines(text)) for text in texts))
    except (LiteralError, ValueError, zlib.error) as error:
        return Outcome(Status.CRASH, f"the result is no result of ours: {error}", ())


def _lines(text: object) -> list[ReturnedValue]:
    if not isinstance(text, str):
        raise ValueError(f"a {type(text).__name__} where text was expected")
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(text, validate=True), MAX_RETURNED)
    if inflate.unconsumed_tail or not inflate.eof:
        raise ValueError(f"more than {MAX_RETURNED} bytes")
    if data.count(b"\n") >= MAX_LINES:
        raise ValueError(f"more than {MAX_LINES} lines")
    return [_returned(line) for line in data.decode("ascii").split("\n")] if data else []


def _returned(line: str) -> ReturnedValue:
    if line[:1] not in ("v", "s", "o", "e", "d"):
        raise ValueError(f"a line that starts with {line[:1]!r}")
    return ReturnedValue(line[0], line[1:])


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _job(program: str, *arguments: str | bool) -> Job:
    text = ", ".join(map(ascii, arguments))
    if len(text) > MAX_INPUT:
        raise BadSuite(f"a program and its compressed tests have {len(text):,} characters, over {MAX_INPUT:,}")
    return Job(program, text, False)
