"""The loop of a template server and the first steps of a program's process. Standard library only.

It reads 8-byte orders (uid, mode) on its control socket and forks one process for each; the child, not the template, reads the job.
"""

import ctypes
import os
import struct
import sys
from _collections_abc import Callable
from _signal import SIGCHLD  # `signal` brings `enum` and `collections`: two hundred pages more to fork

from walls import Walls

CONTROL, JOB, RESULT = 3, 4, 5
ORDER = struct.Struct("!II")  # uid, mode
CLONE_PARENT = 0x8000


def serve(limits: Walls, run: Callable[[int, int], None]) -> None:
    """Forks by the bare system call: this process has one thread, no locks to renew, and hooks would touch many pages.

    `CLONE_PARENT`: the program's parent is the supervisor, which waits for it; this process goes back to its orders at once.
    """
    receive, unpack, clone, number, flags = os.read, ORDER.unpack, ctypes.PyDLL(None).syscall, limits.clone, CLONE_PARENT | SIGCHLD
    while True:
        order = receive(CONTROL, ORDER.size)
        if not order:
            os._exit(0)
        child = clone(number, flags, 0)
        if child == 0:
            try:
                uid, mode = unpack(order)
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
