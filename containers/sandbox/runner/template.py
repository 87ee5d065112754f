"""A template server: holds preloaded modules and no job, forks one process a program. Standard library only.

Started by exec for each hash seed, so two templates share neither hash seed nor address layout. It reads 8-byte orders (uid,
mode) on its control socket; the child, not the template, reads the job. Answers with the child's exit status and usage.
A `full` template holds the modules that programs may import; a lean one, for programs without imports, forks in half the time.
"""

import codecs
import ctypes
import gc
import os
import struct
import sys
import warnings

CONTROL, JOB, RESULT = 3, 4, 5
_CODECS_TEXT = "latin-1 latin1 iso-8859-1 ascii utf-8-sig utf-16 utf-32 utf-16-le utf-16-be cp1252 rot13 rot_13 hex base64"
ORDER, REPORT = struct.Struct("!II"), struct.Struct("!IiQQ")  # uid, mode; pid, wait status, cpu in µs, max RSS in KiB


def main() -> None:
    index, memory_mb, cpu_ceiling = (int(text) for text in sys.argv[1:4])
    sys.path[:] = [os.path.dirname(os.path.abspath(__file__)), *sys.path]
    os.register_at_fork = lambda **hooks: None  # `random` would seed itself anew in every child, at a hundred pages a time
    clock = __import__("clock")
    clock.install(index)
    program, rules, walls = (__import__(name) for name in ("program", "rules", "walls"))
    warnings.simplefilter("ignore")
    if sys.argv[4] == "full":
        for name in rules.PRELOAD:
            __import__(name)
    for name in _CODECS_TEXT.split():
        codecs.lookup(name)
    limits = walls.Walls(memory_mb, cpu_ceiling)
    warm_up(program, rules)
    salt = 0x10000 * (1 + index * 0x9E37) + int.from_bytes(os.urandom(3), "big") * 16
    run = program.make_runner(salt)
    sys.path.clear()
    sys.meta_path.clear()
    gc.collect()
    gc.disable()
    gc.freeze()
    limits.template()
    serve(limits, run)


def warm_up(program, rules) -> None:
    """Touches what every child would touch first, so that caches are filled once and not in every child."""
    text = "import math\nclass A:\n    x = 1\ndef f(x):\n    '''d'''\n    return [y for y in {x: 1}], {x}, lambda z: z\n"
    program.prepare(text, True, lambda data: None)
    program.prepare(text[12:], False, lambda data: None)
    rules.check(compile(text, "program", "exec", 0x400, True))
    program.encode.make_encoder()([1, "a", (2.5, None), {"k": {True}}])


def serve(limits, run) -> None:
    """Forks without Python's own hooks: this process has one thread, no locks to renew, and the hooks touch many pages."""
    receive, send, wait, pack = os.read, os.write, os.wait4, REPORT.pack
    fork = ctypes.PyDLL(None).fork
    while True:
        order = receive(CONTROL, ORDER.size)
        if not order:
            os._exit(0)
        uid, mode = ORDER.unpack(order)
        child = fork()
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
        _, status, usage = wait(child, 0)
        send(CONTROL, pack(child, status, int((usage.ru_utime + usage.ru_stime) * 1e6), usage.ru_maxrss))


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
