"""A template server: holds preloaded modules and no job, forks one process a program. Standard library only.

Started by exec for each hash seed, so two templates share neither hash seed nor address layout. It reads 8-byte orders (uid,
mode) on its control socket; the child, not the template, reads the job, and the supervisor waits for the child.
A `full` template holds the modules that programs may import; a lean one, for programs without imports, forks in half the time.
"""

import _signal  # `signal` brings `enum` and `collections`: two hundred pages more to fork
import codecs
import ctypes
import gc
import os
import struct
import sys
import warnings

CONTROL, JOB, RESULT = 3, 4, 5
_CODECS_TEXT = "latin-1 ascii utf-8-sig utf-16 utf-32 utf-16-le utf-16-be utf-32-le utf-32-be cp1252"
_TURNS = 40
_NONES: list[None] = []
_WARM = (
    ("def f(x):\n    total = 0\n    for i in range(x):\n        total += i * 2\n    return total", "(3,)"),
    ("def f(s, d):\n    'd'\n    return {c: s.count(c) for c in s}, [v for v in d], s.upper()", "('ab', {'k': (2.5, None)},)"),
    ("class A:\n    def __init__(self, x):\n        self.x = x\ndef f(x):\n    return [A(x).x]", "(True,)"),
    ("def f(x):\n    def g(y): return y + 1\n    while x > 0: x -= 1\n    return sorted([g(x)], key=lambda z: -z)", "(2,)"),
    ("def f(x):\n    raise ValueError(x)", "('a',)"),
)
ORDER = struct.Struct("!II")  # uid, mode
CLONE_PARENT = 0x8000


def main() -> None:
    index, memory_mb, cpu_ceiling = (int(text) for text in sys.argv[1:4])
    sys.path[:] = [os.path.dirname(os.path.abspath(__file__)), *sys.path]
    os.register_at_fork = lambda **hooks: None  # `random` would seed itself anew in every child, at a hundred pages a time
    clock = __import__("clock")
    clock.install(index)
    memory, program, rules, walls = (__import__(name) for name in ("memory", "program", "rules", "walls"))
    warnings.simplefilter("ignore")
    if sys.argv[4] == "full":
        for name in rules.PRELOAD:
            __import__(name)
    for name in _CODECS_TEXT.split():
        codecs.lookup(name)
    limits = walls.Walls(memory_mb + 3 * index, cpu_ceiling)
    warm_up(program, rules)
    sys.setrecursionlimit(1000 + 7 * index)  # what shows where the stack or the memory ends is not the same in two servers
    _NONES.extend([None] * 4_096 * index)  # nor is its count of references (from 3.12 on it has none)
    salt = 0x10000 * (1 + index * 0x9E37) + int.from_bytes(os.urandom(3), "big") * 16
    run = program.make_runner(salt)
    sys.path.clear()
    sys.meta_path.clear()
    memory.settle()
    limits.template()
    serve(limits, run)


class Left(BaseException):
    """A program of the warm-up is done."""


def warm_up(program, rules) -> None:
    """Runs what every child will run until the interpreter has specialised it, so that no child pays for that in copied pages."""

    def leave(code: int) -> None:
        raise Left

    run = program.make_runner(0, lambda descriptor, data: len(data), leave)
    source, target = os.pipe()
    for turn in range(_TURNS * len(_WARM)):
        text, arguments = (part.encode() for part in _WARM[turn % len(_WARM)])
        job = bytes([turn % 2]) + len(text).to_bytes(4, "big") + text + arguments
        os.write(target, len(job).to_bytes(4, "big") + job)
        try:
            run(source, -1)
        except Left:
            gc.disable()
    os.close(source)
    os.close(target)
    rules.check(compile("import math\ndef f(x):\n    return math.pi", "program", "exec", 0x400, True))


def serve(limits, run) -> None:
    """Forks by the bare system call: this process has one thread, no locks to renew, and hooks would touch many pages.

    `CLONE_PARENT`: the program's parent is the supervisor, which waits for it; this process goes back to its orders at once.
    """
    receive, unpack, clone, nothing = os.read, ORDER.unpack, ctypes.PyDLL(None).syscall, ctypes.c_long(0)
    number, flags = ctypes.c_long(limits.clone), ctypes.c_long(CLONE_PARENT | _signal.SIGCHLD)
    while True:
        order = receive(CONTROL, ORDER.size)
        if not order:
            os._exit(0)
        uid, mode = unpack(order)
        child = clone(number, flags, nothing)
        if child == 0:
            try:
                os.close(CONTROL)
                descriptor = os.open("/proc/self/status", os.O_RDONLY) if mode else -1
                limits.child(uid)
                if mode:
                    probe(descriptor, limits.missing)
                run(JOB, RESULT)
            finally:
                os._exit(91)
        if child < 0:
            os._exit(92)


def probe(descriptor: int, missing: list[str]) -> None:
    """The attestation of a child: what it can see and do from inside the walls."""
    lines = dict(line.split(":\t", 1) for line in os.read(descriptor, 1 << 16).decode().splitlines() if ":\t" in line)
    found = {name: lines.get(name, "?").split("\t")[0] for name in ("Uid", "Seccomp", "NoNewPrivs", "CapEff", "CapBnd")}
    libc = ctypes.CDLL(None, use_errno=True)
    tried = {
        "fork": libc.fork,
        "open": lambda: libc.open(b"/", 0),
        "socket": lambda: libc.socket(1, 1, 0),
        "kill": lambda: libc.kill(1, 0),
        "setuid": lambda: libc.setresuid(0, 0, 0),
    }
    for name, action in tried.items():
        answer = action()
        if answer == 0 and name == "fork":
            os._exit(0)
        found[name] = f"refused ({ctypes.get_errno()})" if answer == -1 else "allowed"
    text = repr({"child": found, "missing": missing, "python": sys.version.split()[0]}).encode()
    os.write(RESULT, os.getpid().to_bytes(4, "big") + b"K\0\0V" + len(text).to_bytes(4, "big") + text)
    os._exit(0)


if __name__ == "__main__":
    main()
