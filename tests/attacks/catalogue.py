"""The attack catalogue as data: one program a row, and the verdicts that are right for it.

`reach` finds modules behind the static filter, so that the walls themselves are tried and not only the filter. A program that
tries a wall returns 'refused' or 'BREACH'; the latter must never come out. `want` holds acceptable verdict words; 'refused' means
valid with exactly that value. Rows are numbered as in the catalogue of attacks; letters are variants.
"""

from dataclasses import dataclass

REACH = """
def reach(name):
    table = getattr(reach, '__glo' + 'bals__')['__buil' + 'tins__']
    for cell in getattr(table['__imp' + 'ort__'], '__clo' + 'sure__'):
        held = cell.cell_contents
        if type(held) is dict and name in held:
            return held[name]
    raise LookupError(name)

def attempt(action):
    try:
        action()
    except (OSError, LookupError, AttributeError) as error:
        return 'refused'
    return 'BREACH'
"""


@dataclass(frozen=True)
class Attack:
    """A program with the verdicts that it may get."""

    row: str
    name: str
    program: str
    want: frozenset[str]
    input: str = ""
    slow: bool = False


def _rows(*rows: tuple) -> list[Attack]:
    made = []
    for row, name, program, want, *rest in rows:
        text = program if "def f" in program else f"def f():\n    {program}"
        text = REACH + text if "reach(" in text or "attempt(" in text else text
        made.append(Attack(row, name, text, frozenset(want.split()), rest[0] if rest else "", len(rest) > 1))
    return made


def _try(action: str) -> str:
    return f"return attempt(lambda: {action})"


EXHAUSTION = _rows(
    ("1", "busy loop", "while True: pass", "timeout", "", True),
    ("2", "waits for a lock", "def f():\n    import queue\n    queue.Queue().get()", "timeout", "", True),
    ("2b", "sleep by import", "def f():\n    import time\n    time.sleep(999)", "banned timeout"),
    ("3", "alarm disarmed", "def f():\n    import signal\n    signal.setitimer(signal.ITIMER_REAL, 0)\n    while 1: pass", "banned timeout"),
    ("5", "ignores SIGXCPU", "s = reach('_signal')\n    s.signal(24, s.SIG_IGN)\n    while 1: pass", "timeout error", "", True),
    ("6", "big power", "return 9 ** 9 ** 9", "timeout memory", "", True),
    ("7", "big int to text", "return str(1 << 10 ** 8)", "error"),
    ("8", "regex backtracking", "def f():\n    import re\n    return re.match('(a+)+$', 'a' * 60 + 'b')", "timeout", "", True),
    ("9", "memory, slow", "x = []\n    while 1: x.append('a' * 10 ** 6)", "memory"),
    ("10", "memory, caught and again", "def f():\n    x = []\n    while 1:\n        try: x.append('a' * 10 ** 6)\n        except MemoryError: pass", "timeout memory", "", True),
    ("11", "memory, caught, then an answer", "def f():\n    try: x = 'a' * 10 ** 9\n    except MemoryError: return 1", "valid"),
    ("12", "zip bomb", "def f():\n    import zlib\n    d = zlib.compress(b'0' * 3 * 10 ** 7)\n    return len([zlib.decompress(d) for _ in range(20)])", "memory timeout"),
    ("13", "entity bomb", "def f():\n    import xml.etree.ElementTree as e\n    return e.fromstring('<a/>').tag", "banned"),
    ("14", "fork bomb", "def f():\n    os = reach('posix')\n    while 1:\n        try: os.fork()\n        except OSError: return 'refused'", "refused"),
    ("14b", "threads", "def f():\n    t = reach('_thread')\n    try: t.start_new_thread(print, ())\n    except (OSError, RuntimeError): return 'refused'\n    return 'BREACH'", "refused"),
    ("15", "multiprocessing", "def f():\n    import multiprocessing\n    return multiprocessing.Pool(8)", "banned error"),
    ("17", "descriptors", _try("reach('posix').pipe()"), "refused"),
    ("17b", "dup", _try("reach('posix').dup(0)"), "refused"),
    ("18", "sparse file", _try("reach('posix').open('/tmp/x', 66)"), "refused"),
    ("19", "directories", _try("reach('posix').mkdir('/tmp/x')"), "refused"),
    ("20", "shared memory", _try("reach('posix').open('/dev/shm/x', 66)"), "refused"),
    ("21", "stdout flood", "def f():\n    for _ in range(200): print('x' * 10 ** 5)\n    return 1", "valid"),
    ("22", "error flood", "raise ValueError('x' * 10 ** 7)", "error"),
    ("23", "infinite iterator", "def f():\n    import itertools\n    return itertools.count()", "unsupported_value"),
    ("24", "deep recursion", "def f(n=0): return f(n + 1)", "error"),
    ("25", "raised recursion limit", "def f():\n    import sys\n    sys.setrecursionlimit(10 ** 9)\n    def g(n): return g(n + 1)\n    return g(0)", "error memory crash timeout"),
    ("26", "deep value", "x = []\n    for _ in range(10 ** 5): x = [x]\n    return x", "unsupported_value crash"),
    ("27", "source bomb", "#" + "a" * 20_000 + "\ndef f(): return 1", "unparsed"),
    ("27b", "parentheses", "return " + "(" * 5000 + "1" + ")" * 5000, "unparsed"),
    ("27c", "minus signs", "return " + "-" * 15000 + "1", "unparsed crash"),
    ("27d", "terms", "return " + "+".join(["1"] * 7000), "valid unparsed crash error"),
    ("28", "nested functions", "".join("    " * i + f"def f{i}():\n" for i in range(60)) + "    " * 60 + "pass\ndef f(): return 1", "unparsed valid"),
    ("29", "missing module", "def f():\n    import numpy\n    return 1", "error banned"),
    ("30", "slow finalizer", "class A:\n    def __del__(self):\n        while 1: pass\ndef f():\n    global a\n    a = A()\n    return 1", "valid"),
)  # fmt: skip

TAMPERING = _rows(
    ("32", "kill the server", _try("reach('posix').kill(1, 9)"), "refused"),
    ("32b", "kill the parent", _try("reach('posix').kill(reach('posix').getppid(), 9)"), "refused"),
    ("33", "stop the group", _try("reach('posix').killpg(0, 19)"), "refused"),
    ("34", "server memory", _try("reach('posix').open('/proc/1/mem', 2)"), "refused"),
    ("34b", "own memory", _try("reach('posix').open('/proc/self/mem', 2)"), "refused"),
    ("35", "ptrace", "return 'refused' if reach('ctypes').CDLL(None).ptrace(16, 1, 0, 0) == -1 else 'BREACH'", "refused error"),
    ("36", "server environment", _try("reach('posix').open('/proc/1/environ', 0)"), "refused"),
    ("37", "own environment", "return sorted(reach('os').environ)", "valid"),
    ("38", "server's stdout", _try("reach('posix').open('/proc/1/fd/1', 1)"), "refused"),
    ("38b", "writes to descriptor 1", "reach('posix').write(1, b'\\1\\0\\0\\0\\0\\0\\0\\4abcd')\n    return 1", "valid error"),
    ("38c", "writes to the control socket", _try("reach('posix').write(3, b'x' * 24)"), "refused"),
    ("40", "leaves a note", "return attempt(lambda: reach('posix').open('/sandbox/usercustomize.py', 65))", "refused"),
    ("43", "network", _try("reach('_socket').socket()"), "refused"),
    ("45", "memfd", "return 'refused' if reach('ctypes').CDLL(None).memfd_create(b'x', 0) == -1 else 'BREACH'", "refused error"),
    ("45b", "exec", _try("reach('posix').execv('/python', ['/python'])"), "refused"),
    ("46", "setuid", _try("reach('posix').setuid(0)"), "refused"),
    ("46b", "setresuid", _try("reach('posix').setresuid(0, 0, 0)"), "refused"),
    ("47", "chroot", _try("reach('posix').chroot('/')"), "refused"),
    ("47b", "unshare", "return 'refused' if reach('ctypes').CDLL(None).unshare(0x10000000) == -1 else 'BREACH'", "refused error"),
    ("47c", "mount", "return 'refused' if reach('ctypes').CDLL(None).mount(b'x', b'/', b'tmpfs', 0, 0) == -1 else 'BREACH'", "refused error"),
    ("48", "core pattern", _try("reach('posix').open('/proc/sys/kernel/core_pattern', 1)"), "refused"),
    ("49", "null read", "return reach('ctypes').string_at(0)", "crash error"),
    ("50", "abort", "reach('posix').abort()", "crash"),
    ("52", "oom score", _try("reach('posix').open('/proc/self/oom_score_adj', 1)"), "refused"),
    ("55", "clock", "return 'refused' if reach('ctypes').CDLL(None).clock_settime(0, bytes(16)) == -1 else 'BREACH'", "refused error"),
    ("55b", "raised limits", "def f():\n    r = reach('resource')\n    try: r.setrlimit(r.RLIMIT_CPU, (99, 99))\n    except (OSError, ValueError): return 'refused'\n    return 'BREACH'", "refused"),
    ("55c", "System V shared memory", "return 'refused' if reach('ctypes').CDLL(None).shmget(77, 4096, 0o1666) == -1 else 'BREACH'", "refused error"),
    ("55d", "key ring", "return 'refused' if reach('ctypes').CDLL(None).syscall(250, 0, -3, 1) == -1 else 'BREACH'", "refused error"),
    ("55e", "affinity of the server", _try("reach('posix').sched_setaffinity(1, {0})"), "refused"),
    ("55f", "priority of the server", _try("reach('posix').setpriority(0, 1, 19)"), "refused"),
)  # fmt: skip

_WRITE = "reach('posix').write(5, {})"
FORGING = _rows(
    ("57", "early exit", "reach('posix')._exit(0)\n    return 1", "crash"),
    ("57b", "exit while importing", "raise SystemExit\ndef f(): return 1", "error"),
    ("58", "exit inside f", "def f():\n    import sys\n    sys.exit(0)", "error"),
    ("58b", "SystemExit", "raise SystemExit(0)", "error"),
    ("59", "always equal", "class A:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __hash__(s): return 1\ndef f(): return A()", "unsupported_value"),
    ("60", "lying repr", "class A:\n    def __repr__(s): return '42'\ndef f(): return A()", "unsupported_value"),
    ("60b", "subclass of int", "class A(int):\n    pass\ndef f(): return [A(3)]", "unsupported_value"),
    ("61", "class spoof", "class A:\n    __class__ = property(lambda s: int)\ndef f(): return A()", "unsupported_value"),
    ("62", "patched builtins", "b = reach('builtins')\n    b.len = b.type = b.repr = b.ascii = lambda *a: 7\n    return [1, 'a']", "valid crash error"),
    ("66", "two frames", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    return 2", "crash"),
    ("67", "frame, then a crash", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    reach('posix').abort()", "crash"),
    ("67b", "frame, then exit 1", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    reach('posix')._exit(1)", "crash"),
    ("68", "frame, then hangs", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    while 1: pass", "timeout", "", True),
    ("69", "giant length", _WRITE.format("b'V\\xff\\xff\\xff\\xff1'") + "\n    reach('posix')._exit(0)", "crash"),
    ("69b", "flood of the frame", "def f():\n    w = reach('posix').write\n    while 1: w(5, b'V' * 60000)", "crash output_limit timeout", "", True),
    ("71", "bytes in a frame", _WRITE.format("b'V\\0\\0\\0\\x02\\xff\\0'") + "\n    reach('posix')._exit(0)", "crash"),
    ("71b", "text that is no literal", _WRITE.format("b'V\\0\\0\\0\\x03abc'") + "\n    reach('posix')._exit(0)", "crash"),
    ("80", "swaps f", "def f():\n    global f\n    f = lambda: 2\n    return 1", "valid"),
    ("81", "echo", "def f(x): return x", "valid", "[1, {'a': (2.0, None)}]"),
    ("83", "hooks", "def f():\n    s = reach('sys')\n    s.excepthook = s.displayhook = s.unraisablehook = lambda *a: print(a)\n    raise ValueError('x')", "error"),
    ("84", "a generator", "def f(): yield 1", "unsupported_value"),
    ("84b", "lower recursion limit", "def f():\n    import sys\n    sys.setrecursionlimit(40)\n    return [[[[[1]]]]]", "valid error"),
)  # fmt: skip

NONDETERMINISM = _rows(
    ("85", "set order", "return list({'a', 'b', 'c', 'd'})", "nondeterministic"),
    ("85b", "set order of two", "return list({'a', 'b'})[0]", "nondeterministic"),
    ("85c", "set pop", "def f(s):\n    return set(s).pop()", "nondeterministic", "'xyzw'"),
    ("85d", "frozenset order", "return ''.join(frozenset('abcdef'))", "nondeterministic"),
    ("86", "identity", "return id(object())", "nondeterministic"),
    ("86b", "identity of a constant", "return id(None) % 1000003", "nondeterministic"),
    ("86c", "object repr", "return repr(object())", "nondeterministic"),
    ("86d", "hash of a type", "return hash(int)", "nondeterministic"),
    ("86e", "hash of a text", "return hash('abc')", "nondeterministic"),
    ("86f", "function repr", "def f(): return str(f)", "nondeterministic"),
    ("86g", "method wrapper", "return repr((1).__add__)", "nondeterministic"),
    ("87", "random", "def f():\n    import random\n    return random.random()", "banned nondeterministic"),
    ("87b", "random, reached", "return reach('_random').Random().random()", "nondeterministic error"),
    ("87c", "urandom", "return reach('posix').urandom(8)", "nondeterministic error"),
    ("89", "time", "def f():\n    import time\n    return time.time()", "banned nondeterministic"),
    ("89b", "date", "def f():\n    import datetime\n    return str(datetime.date.today())", "banned nondeterministic"),
    ("89c", "date, hidden", "def f():\n    import datetime\n    return str(getattr(datetime.date, 'to' + 'day')())", "nondeterministic"),
    ("89d", "year, hidden", "def f():\n    from datetime import datetime as d\n    return getattr(d, 'no' + 'w')().year > 2000", "nondeterministic"),
    ("89e", "weekday by time", "return reach('time').localtime().tm_wday", "nondeterministic"),
    ("90", "pid", "return reach('posix').getpid()", "nondeterministic"),
    ("90b", "uname", "return reach('posix').uname().nodename", "error"),
    ("91", "reference count", "return reach('sys').getrefcount(None)", "nondeterministic valid"),
    ("93", "global state", "n = 0\ndef f():\n    global n\n    n += 1\n    return n", "valid"),
    ("95", "environment", "def f():\n    import os\n    return os.environ['HOME']", "banned"),
)  # fmt: skip

VALUES = _rows(
    ("96", "nan and infinities", "return [float('nan'), float('inf'), -float('inf')]", "valid"),
    ("98", "negative zero", "return [-0.0, 0.0]", "valid"),
    ("98b", "complex zeros", "return complex(-0.0, -0.0)", "valid unsupported_value"),
    ("99", "4301 digits", "return 10 ** 4300", "unsupported_value"),
    ("99b", "4300 digits", "return 10 ** 4300 - 1", "valid"),
    ("100", "surrogate, NUL, bidi", "return '\\ud800\\x00\\u202e\\U0001f600e\\u0301'", "valid"),
    ("101", "cycle", "x = []\n    x.append(x)\n    return x", "unsupported_value"),
    ("101b", "shared nodes", "x = [1]\n    for _ in range(30): x = [x, x]\n    return x", "output_limit unsupported_value"),
    ("102", "equal keys", "return {1: 'a', True: 'b'}", "valid"),
    ("102b", "a million entries", "return list(range(10 ** 6))", "output_limit unsupported_value"),
    ("102c", "long text", "return 'a' * 10 ** 6", "output_limit"),
    ("102d", "depth 50", "x = 1\n    for _ in range(50): x = [x]\n    return x", "valid"),
    ("102e", "depth 51", "x = 1\n    for _ in range(51): x = [x]\n    return x", "unsupported_value"),
    ("102f", "counter", "def f():\n    from collections import Counter\n    return Counter('aab')", "unsupported_value"),
    ("102g", "named tuple", "def f():\n    from collections import namedtuple\n    return namedtuple('P', 'x')(1)", "unsupported_value"),
    ("102h", "range", "return range(3)", "unsupported_value"),
    ("102i", "bytearray", "return bytearray(b'a')", "unsupported_value"),
    ("102j", "no f", "x = 1 # def f", "error"),
)  # fmt: skip

ATTACKS = EXHAUSTION + TAMPERING + FORGING + NONDETERMINISM + VALUES
