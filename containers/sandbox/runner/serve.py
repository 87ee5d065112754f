"""The loop of a template server and the first steps of a program's process. Standard library only.

It reads 8-byte orders (uid, mode) on its control socket and forks a process for each; the child, not the template, reads the job.
"""

import posix
import struct
import sys
from _functools import partial as held  # see program.py
from _signal import SIGCHLD  # `signal` brings `enum` and `collections`: two hundred pages more to fork

from native import Number, Text, function, get_errno, system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CONTROL, JOB, RESULT = 3, 4, 5
ELSEWHERE = 93  # the status of a program that came to a module which only a full server holds
ORDER = struct.Struct("!iI")  # uid, mode
PID = struct.Struct("!I")  # the answer to an order
BEGUN = b"S"  # the first byte of a program's stream: it has a core and is about to read its job
CLONE_PARENT = 0x8000


def make_child(
    drop: "Callable[[int], None]",
    run: "Callable[[int, int], None]",
    missing: tuple[str, ...] = (),
    job: int = JOB,
    result: int = RESULT,
) -> "Callable[[bytes, int], None]":
    """What a child does with an order, once the control socket is closed; its job comes after it has dropped its rights."""
    unpack, close = ORDER.unpack, held(posix.close)

    def child(order: bytes, control: int) -> None:
        uid, mode = unpack(order)
        close(control)
        if mode:
            text = look_around(drop, uid, missing)
            posix.write(RESULT, BEGUN + b"K\0V" + len(text).to_bytes(4, "big") + text)
            posix._exit(0)
        drop(uid)
        run(job, result)

    return child


def serve(child: "Callable[[bytes, int], None]", number: int, control: int = CONTROL) -> None:
    """Forks by the bare system call of that number: one thread, no locks to renew, and hooks would touch many pages.

    `CLONE_PARENT`: the program's parent is the supervisor, which waits for it; this process goes back to its orders at once.
    """
    receive, send, packed = held(posix.read), held(posix.write), PID.pack
    clone, flags, size = system_call(), CLONE_PARENT | SIGCHLD, ORDER.size
    while True:
        order = receive(control, size)
        if not order:
            posix._exit(0)
        pid = clone(number, flags, 0)
        if pid == 0:
            try:
                child(order, control)
            finally:
                posix._exit(91)
        if pid < 0:
            posix._exit(92)
        send(control, packed(pid))  # the program cannot ask for its own


def _wait_for(pid: int) -> None:
    try:  # noqa: SIM105  # contextlib would be pages more to fork
        posix.waitpid(pid, 0)
    except OSError:  # it is waited for elsewhere
        pass


def look_around(drop: "Callable[[int], None]", uid: int, missing: tuple[str, ...]) -> bytes:
    """The attestation of a process, a literal: what it can see and do from inside the walls, which it raises by `drop`."""
    descriptor = posix.open("/proc/self/status", posix.O_RDONLY)
    drop(uid)
    lines = dict(line.split(":\t", 1) for line in posix.read(descriptor, 1 << 16).decode().splitlines() if ":\t" in line)
    found = {name: lines.get(name, "?").split("\t")[0] for name in ("Uid", "Seccomp", "NoNewPrivs", "CapEff", "CapBnd")}
    opened = function("open", Number, Text, Number)
    tried = {
        "fork": function("fork", Number),
        "open": lambda: opened(b"/", 0),
        "socket": lambda: function("socket", Number)(1, 1, 0),
        "kill": lambda: function("kill", Number)(1, 0),
        "setuid": lambda: function("setresuid", Number)(0, 0, 0),
    }
    for name, action in tried.items():
        answer = action()
        if answer == 0 and name == "fork":
            posix._exit(0)
        if answer > 0 and name == "fork":  # a wall is missing: as an orphan, the child would end in the first program's place
            _wait_for(answer)
        found[name] = f"refused ({get_errno()})" if answer == -1 else "allowed"
    return repr({"child": found, "missing": list(missing), "python": sys.version.split()[0]}).encode()
