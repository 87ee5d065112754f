"""What happens in the process of one program: read the job, judge the text, run, encode, leave. Standard library only.

The stream to the supervisor is append-only: a byte, then the trusted head (that the text passed, written before any of the
program ran), then one frame. Model code can add bytes, which makes the stream malformed and the verdict `crash`; it cannot
take any back. The process is short: nearly all it costs is the pages it touches, so little is imported and little is called.
"""

import builtins
import gc
import marshal
import posix
import struct
import sys
from _functools import partial as held  # naming an object writes its count into its page; a partial of it lies here instead

import encode
import rules
from scan import scan
from serve import BEGUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_REMOVED = ("eval", "exec", "compile", "open", "input", "globals", "locals", "vars", "breakpoint", "help", "exit", "quit")
_CONSTANTS = {
    "nan": float("nan"),
    "inf": float("inf"),
    "float": float,
    "complex": complex,
    "set": set,
    "frozenset": frozenset,
    "__builtins__": {},
}
_STATIC = (object.__hash__, type(None).__hash__, type.__hash__)
_ONLY_AST = 0x400
_compile = held(compile)
# u32 size of the rest, u8 flags (1 a trace is wanted, 2 the arguments are marshalled, else text, 4 the program has passed in
# another server, 8 the arguments hold a set), u32 size of the program; the program and the arguments follow
_JOB_HEAD = struct.Struct("!IBI")
_FRAME_HEAD = struct.Struct("!cI")


def make_builtins(salt: int) -> dict[str, object]:
    """The program's builtins: no code from text, no files, imports from the list, and identities that differ between servers.

    The interpreter is not always position independent, so addresses of static objects are equal in all servers: `salt` moves
    what `id` and `hash` show of addresses.
    """
    real_id, real_hash, real_import = id, hash, builtins.__import__
    modules, allowed, static = sys.modules, rules.ALLOWED, _STATIC

    def salted_id(obj: object, /) -> int:
        return real_id(obj) + salt

    def salted_hash(obj: object, /) -> int:
        value = real_hash(obj)
        return value ^ salt if type(obj).__hash__ in static else value

    def guarded_import(name: str, globals=None, locals=None, fromlist=(), level: int = 0):
        if (
            type(fromlist) is list
        ):  # a function written in C asks (`datetime.strftime` for `time`); a statement gives a tuple or None
            return real_import(name, globals, locals, fromlist, level)
        if level == 0 and name in modules and name.partition(".")[0] in allowed:
            return real_import(name, globals, locals, fromlist, level)
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    table = {name: value for name, value in vars(builtins).items() if name not in _REMOVED}
    salted_id.__name__ = salted_id.__qualname__ = "id"
    salted_hash.__name__ = salted_hash.__qualname__ = "hash"
    return table | {"id": salted_id, "hash": salted_hash, "__import__": guarded_import}


def make_runner(salt: int, leave: "Callable[[int], None]" = posix._exit) -> "Callable[[int, int], None]":
    """A closure that runs the job from one descriptor into another and never returns. Captures what it needs beforehand.

    A template warms the code up with a `leave` that raises.
    """
    encoder, refused = encode.make_encoder(), encode.Refused
    read, write, begun = held(posix.read), held(posix.write), BEGUN
    table, set_recursion, collect = make_builtins(salt), sys.setrecursionlimit, held(gc.enable)
    kind_of, name_of, arguments_of = type, type.__dict__["__name__"].__get__, BaseException.args.__get__
    memory_error, base_error, text_type, length, compiled, run_code = MemoryError, BaseException, str, len, compile, held(exec)
    load, head_of, frame_head = held(marshal.loads), _JOB_HEAD.unpack_from, _FRAME_HEAD.pack
    decoded, encoded, leave = held(bytes.decode), held(str.encode), held(leave)

    def frame(target: int, tag: bytes, text: str) -> None:
        data = text.encode("ascii", "backslashreplace")
        data = frame_head(tag, length(data)) + data
        while data:
            data = data[write(target, data) :]

    def describe(error: BaseException) -> str:
        values = arguments_of(error)
        first = values[0] if values and kind_of(values[0]) is text_type else ""
        return name_of(kind_of(error)) + (": " + first[:200] if first else "")

    def judge(target: int, program: str, passed: bool) -> object:
        try:
            code, head = prepare(program, passed)
        except rules.Banned as error:
            frame(target, b"B", text_type(error))
            leave(0)
        except Exception as error:  # SyntaxError mostly; nothing of the program has run yet
            frame(target, b"U", describe(error) + f" (line {getattr(error, 'lineno', None) or 1})")
            leave(0)
        write(target, head)  # a pipe takes so few bytes whole
        return code

    def run(source: int, target: int) -> None:
        write(target, begun)
        data = read(source, 8_192)  # a larger buffer would be a mapping of its own, made and dropped
        while length(data) < 9 or length(data) < 4 + head_of(data)[0]:
            data += read(source, 1 << 20)
        _, flags, size = head_of(data)
        program, given = decoded(data[9 : 9 + size]), data[9 + size :]
        code = judge(target, program, flags & 4 != 0)
        scope = {"__name__": "program", "__builtins__": table}
        recursion = "recursion" in program
        collect()
        try:
            # both forms are written by the host from its own tree
            arguments = load(given) if flags & 2 else eval(compiled(given.decode(), "input", "eval"), _CONSTANTS)
            counts = count_lines() if flags & 1 else None
            run_code(code, scope)
            value = scope["f"](*arguments) if "f" in scope else missing()
            if recursion:
                set_recursion(1000)
            text = encoder(value) if counts is None else encoder(value) + "\n" + counts()
            data = frame_head(b"V", length(text)) + encoded(text)
            while (sent := write(target, data)) < length(data):
                data = data[sent:]
        except refused as error:
            frame(target, error.tag, error.reason)
        except memory_error:
            frame(target, b"M", "MemoryError")
        except base_error as error:
            set_recursion(1000)
            frame(target, b"E", describe(error))
        leave(0)

    def missing() -> None:
        raise NameError("name 'f' is not defined")

    return run


def count_lines() -> "Callable[[], str]":
    """Counts from now on how often each line of the program runs; the function that stops it and writes `line:times,`."""
    times: dict[int, int] = {}

    def line(frame, event: str, argument: object):
        if event == "line":
            number = frame.f_lineno
            times[number] = times.get(number, 0) + 1
        return line

    def call(frame, event: str, argument: object):
        return line if frame.f_code.co_filename == "program" else None

    def stop() -> str:
        sys.settrace(None)
        return "".join([f"{number}:{count}," for number, count in times.items()])

    sys.settrace(call)
    return stop


def prepare(program: str, passed: bool) -> tuple[object, bytes]:
    """Compiles the program after judging its text, once; also the head: `K`, whether sets or hashes may show."""
    code = _compile(program, "program", "exec", 0, True)
    if passed:
        return code, b"K\0"
    flagged, sensitive = scan(code)
    if flagged or "import" in program or "__" in program:  # elsewhere no rule can match, and no tree need be made and walked
        rules.check(compile(program, "program", "exec", _ONLY_AST, True))
    return code, b"K" + bytes((sensitive,))
