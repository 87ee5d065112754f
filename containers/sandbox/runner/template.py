"""A template server: holds preloaded modules and no job, forks one process a program. Standard library only.

Started by exec for each hash seed, so two templates share neither hash seed nor address layout.
A `full` template holds the modules that programs may import; a lean one, for programs without imports, forks in half the time.
"""

import _warnings
import codecs
import gc
import marshal
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_CODECS_TEXT = "latin-1 ascii utf-8-sig utf-16 utf-32 utf-16-le utf-16-be utf-32-le utf-32-be cp1252"
# What runs in a program's process, loaded last and alone: what every child touches lies on a few pages. It needs the others.
_HOT = ("encode", "scan", "drop", "program", "serve")
_WHEN_USED = ("_strptime", "atexit", "copyreg", "traceback")  # imported by functions of modules on the list
_OF_WINDOWS = ("mbcs", "oem")
_NEEDED = ("_ast", "_functools", "opcode", "resource", "struct", "native", "rules")
_TURNS = 24
_NONES: list[None] = []
_WARM = (
    ("def f(x):\n    total = 0\n    for i in range(x):\n        total += i * 2\n    return total", "(3,)"),
    ("def f(s, d):\n    'd'\n    return {c: s.count(c) for c in s}, [v for v in d], s.upper()", "('ab', {'k': (2.5, None)},)"),
    ("class A:\n    def __init__(self, x):\n        self.x = x\ndef f(x):\n    return [A(x).x]", "(True,)"),
    ("def f(x):\n    def g(y): return y + 1\n    while x > 0: x -= 1\n    return sorted([g(x)], key=lambda z: -z)", "(2,)"),
    ("def f(x):\n    raise ValueError(x)", "('a',)"),
)


def main() -> None:
    index, memory_mb, cpu_ceiling = (int(text) for text in sys.argv[1:4])
    sys.path[:] = [__file__.rpartition("/")[0], *sys.path]
    posix.register_at_fork = lambda **hooks: None  # `random` would seed itself anew in every child, at a hundred pages a time
    __import__("clock").install(index)
    memory = __import__("memory")
    _warnings.filters.insert(0, ("ignore", None, Warning, None, 0))
    if sys.argv[4] == "full":
        load_all()
    for name in _CODECS_TEXT.split():
        codecs.lookup(name)
    for name in _NEEDED:
        __import__(name)
    for text, arguments in _WARM:
        compile(text, "program", "exec", 0x400, True)
        eval(arguments)
    memory.settle()
    memory.join_areas()
    memory.move_text()
    _, _, drop, program, server = (__import__(name) for name in _HOT)
    walls = __import__("walls")
    limits = walls.Walls(memory_mb + 3 * index, cpu_ceiling)
    salt = 0x10000 * (1 + index * 0x9E37) + int.from_bytes(posix.urandom(3), "big") * 16
    run = program.make_runner(salt)
    warm_up(program, drop, server)
    sys.setrecursionlimit(1000 + 7 * index)  # what shows where the stack or the memory ends is not the same in two servers
    _NONES.extend([None] * 4_096 * index)  # nor is its count of references (from 3.12 on it has none)
    sys.path.clear()
    sys.meta_path[:] = [] if sys.argv[4] == "full" else [Elsewhere]
    memory.settle()
    limits.template()
    server.serve(server.make_child(limits.drop, run, tuple(limits.missing)), limits.clone)


class Elsewhere:
    """What a lean server finds for every module that it does not hold (an unusual codec, say): the job is for a full one."""

    @staticmethod
    def find_spec(*sought: object) -> None:
        """Ends the program's process."""
        posix._exit(sys.modules["serve"].ELSEWHERE)


class Left(BaseException):
    """A program of the warm-up is done."""


def load_all() -> None:
    """Everything that a program may come to: the modules on the list, those that they import when first used, every codec."""
    for name in (*__import__("rules").PRELOAD, *_WHEN_USED):
        __import__(name)
    del sys.modules["rules"]
    sys.modules["clock"].install_in_datetime()
    del sys.modules["hashlib"].algorithms_available  # those of OpenSSL, which differ from machine to machine and are not here
    for file in posix.listdir(sys.modules["encodings"].__path__[0]):
        name, _, kind = file.partition(".")
        if kind == "py" and name not in _OF_WINDOWS:
            __import__("encodings." + name)


def warm_up(program: "ModuleType", drop: "ModuleType", server: "ModuleType") -> None:
    """Runs what every child will run until the interpreter has specialised it, so that no child pays for that in copied pages.

    All is as in a child but for the rights, which stay, and the end, which is an exception; results go to the null device.
    """

    def leave(code: int) -> None:
        raise Left

    source, target = posix.pipe()
    child = server.make_child(drop.make_idle_drop(), program.make_runner(0, leave), job=source, result=1)
    for turn in range(_TURNS * len(_WARM)):
        text, arguments = (part.encode() for part in _WARM[turn % len(_WARM)])
        if turn & 2:
            arguments = marshal.dumps(eval(arguments), 2)
        job = bytes([turn & 6]) + len(text).to_bytes(4, "big") + text + arguments
        posix.write(target, len(job).to_bytes(4, "big") + job)
        try:
            child(server.ORDER.pack(-1, 0), posix.dup(source))
        except Left:
            gc.disable()
        if turn % 8 == 7:
            gc.collect()
    posix.close(source)
    posix.close(target)
    sys.modules["rules"].check(compile("import math\ndef f(x):\n    return math.pi", "program", "exec", 0x400, True))


if __name__ == "__main__":
    main()
