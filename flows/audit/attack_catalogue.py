"""The attack catalogue as data: one program a row, and the verdicts that are right for it.

`reach` finds modules behind the static filter, so that the walls themselves are tried and not only the filter; `library` calls the C
library. A program that tries a wall returns 'refused' or 'BREACH'; the latter must never come out. `want` holds acceptable verdict
words: 'refused' means valid with exactly that value, `valid` one of the values that stand beside it (`values`). An attack that does not
get as far as its wall has tried nothing, and counts as lost too. Rows are numbered; letters are variants.
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

def library(name, *given):
    native = reach('native')
    kinds = [native.Text if type(one) is bytes else native.Place if one > 2 ** 31 else native.Word for one in given]
    return native.function(name, native.Number, *kinds)(*given)

def attempt(action):
    try:
        action()
    except OSError as error:
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
    values: tuple[str, ...] = ()  # what it may return where it may be valid, as `repr` writes it


_VALUES = {
    **dict.fromkeys(["11", "21", "28", "30", "38b", "56", "63", "63b", "65", "72", "73", "80", "93"], ("1",)),
    "37": ("[(b'GLIBC_TUNABLES', b'glibc.malloc.tcache_count=2:glibc.malloc.top_pad=1000000'), (b'LC_ALL', b'C.UTF-8'), (b'LD_BIND_NOW', b'1'), (b'PYTHONMALLOC', b'malloc'), (b'TZ', b'UTC')]",),
    "27d": ("7000",), "62": ("[1, 'a']",), "78": ("'gold'",), "79": ("7",), "102": ("{1: 'b'}",),
    "81": ("[1, {'a': (2.0, None)}]",), "82": ("[1]",), "84b": ("[[[[[1]]]]]",),
    "90": ("-1",), "90c": ("-1",),
    "91": ("4294967295", "3221225472"),  # from CPython 3.12 on, None is immortal
    "94": ("(0.0, 1.1, 0.09983341664682815)", "(1.1, 1.1, 0.09983341664682815)"),  # the latter from 3.12 on
    "96": ("[nan, inf, -inf]",),
    "98": ("[-0.0, 0.0]",), "98b": ("(-0-0j)",),
    "99b": ("9" * 4300,),
    "100": (repr("\ud800\x00\u202e\U0001f600e\u0301"),),
    "102d": ("[" * 50 + "1" + "]" * 50,),
}  # fmt: skip


def _rows(*rows: tuple) -> list[Attack]:
    made = []
    for row, name, program, want, *rest in rows:
        text = program if "def f" in program else f"def f():\n    {program}"
        text = REACH + text if any(word in text for word in ("reach(", "attempt(", "library(")) else text
        given = rest[0] if rest else ""
        made.append(Attack(row, name, text, frozenset(want.split()), given, len(rest) > 1, _VALUES.get(row, ())))
    return made


def _try(action: str) -> str:
    return f"return attempt(lambda: {action})"


def _call(name: str, *given: object) -> str:
    return f"return 'refused' if library({', '.join(map(repr, (name, *given)))}) == -1 else 'BREACH'"


def _open(*paths: str, flags: int) -> str:
    return (
        f"return 'BREACH' if any(attempt(lambda: reach('posix').open(p, {flags})) == 'BREACH' for p in {paths!r}) else 'refused'"
    )


# Its own arena of the heap, searched for what stands in the honest program before it; the word is only spelled afterwards.
_SCAN = """def f():
    native = reach('native')
    end = native.function('sbrk', native.Place, native.Word)(0)
    where = map(reach('builtins').id, filter(None, reach('sys').modules.values()))
    start = min(place for place in where if 0 < end - place < 1 << 28)
    heap = bytearray(end - start)
    place = reach('_ctypes').addressof((native.Count * 1).from_buffer(heap))
    native.function('memcpy', native.Place, native.Place, native.Place, native.Word)(place, start, end - start)
    return 'BREACH' if b'boj-rehto'[::-1] in heap else 'refused'"""

# Seven kinds of namespaces. Only EPERM is the filter's: the limit on processes would refuse, too, with another number.
_CLONE = """def f():
    number = 56 if 'x86_64' in getattr(reach('sys').implementation, '_multiarch', 'x86_64') else 220
    for flag in (1 << 17, *[1 << bit for bit in range(25, 31)]):
        if library('syscall', number, flag + 17, 0, 0, 0, 0) != -1 or reach('native').get_errno() != 1:
            return 'BREACH'
    return 'refused'"""

# As much as the supervisor reads, with a head that says so, and then what the next program would be taken to have written.
_FLOOD = """def f():
    write = reach('posix').write
    write(5, b'V' + (1_096_603).to_bytes(4, 'big') + b'1' * 899_995)
    for _ in range(20_000_000): pass
    write(5, b'1' * (1 << 20))
    reach('posix')._exit(0)"""

EXHAUSTION = _rows(
    ("1", "busy loop", "while True: pass", "timeout", "", True),
    ("2", "waits for a lock", "def f():\n    import queue\n    queue.Queue().get()", "timeout", "", True),
    ("2b", "sleep by import", "def f():\n    import time\n    time.sleep(999)", "banned timeout"),
    ("3", "alarm disarmed", "def f():\n    import signal\n    signal.setitimer(signal.ITIMER_REAL, 0)\n    while 1: pass", "banned timeout"),
    ("4", "every signal masked", "s = reach('_signal')\n    s.pthread_sigmask(s.SIG_BLOCK, range(1, 65))\n    while 1: pass", "timeout error", "", True),
    ("4b", "alarm ignored", "def f():\n    import signal\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    return 1", "banned"),
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
    ("16", "daemon", "def f():\n    os = reach('posix')\n    try:\n        if os.fork() == 0:\n            os.setsid()\n            os.fork()\n            while 1: pass\n    except OSError: return 'refused'\n    return 'BREACH'", "refused"),
    ("17", "descriptors", _try("reach('posix').pipe()"), "refused"),
    ("17b", "dup", _try("reach('posix').dup(0)"), "refused"),
    ("17c", "size of the shared pipe", _call("fcntl", 5, 1032, 0), "refused"),
    ("17d", "flags of the shared pipe", _call("fcntl", 5, 4, 0x801), "refused"),
    ("17e", "owner of the shared pipe", _call("fcntl", 5, 8, 1), "refused"),
    ("18", "sparse file", _try("reach('posix').open('/tmp/x', 66)"), "refused"),
    ("19", "directories", _try("reach('posix').mkdir('/tmp/x')"), "refused"),
    ("20", "shared memory", _try("reach('posix').open('/dev/shm/x', 66)"), "refused"),
    ("21", "stdout flood", "def f():\n    for _ in range(200): print('x' * 10 ** 5)\n    return 1", "valid"),
    ("22", "error flood", "raise ValueError('x' * 10 ** 7)", "error"),
    ("23", "infinite iterator", "def f():\n    import itertools\n    return itertools.count()", "unsupported_value"),
    ("24", "deep recursion", "def f(n=0): return f(n + 1)", "error"),
    ("25", "raised recursion limit", "def f():\n    import sys\n    sys.setrecursionlimit(10 ** 9)\n    def g(n):\n        held = bytes(10_000)\n        return g(n + 1)\n    return g(0)", "error memory crash"),
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
    ("35", "ptrace", _call("ptrace", 16, 1, 0, 0), "refused"),
    ("36", "server environment", _try("reach('posix').open('/proc/1/environ', 0)"), "refused"),
    ("37", "own environment", "return sorted((k, v) for k, v in reach('posix').environ.items() if k != b'PYTHONHASHSEED')", "valid"),
    ("38", "server's stdout", _try("reach('posix').open('/proc/1/fd/1', 1)"), "refused"),
    ("38b", "writes to descriptor 1", "reach('posix').write(1, b'\\1\\0\\0\\0\\0\\0\\0\\4abcd')\n    return 1", "valid"),
    ("38c", "writes to the control socket", _try("reach('posix').write(3, b'x' * 24)"), "refused"),
    ("39", "other jobs in its own memory", _SCAN, "refused"),
    ("40", "leaves a note", "return attempt(lambda: reach('posix').open('/sandbox/usercustomize.py', 65))", "refused"),
    ("40b", "leaves notes elsewhere", _open("/tmp/note", "/dev/shm/note", "/run/note", "note", "/root/note", "/sandbox/__pycache__/note", flags=65), "refused"),
    ("41", "reads a note", _open("/tmp/note", "/dev/shm/note", "/run/note", "note", "/root/note", "/sandbox/__pycache__/note", flags=0), "refused"),
    ("42", "poisons by file", _open("sitecustomize.py", "/sandbox/x.pth", "math.py", "/sandbox/rules.py", flags=65), "refused"),
    ("43", "network", _call("socket", 2, 1, 0), "refused"),
    ("43b", "abstract socket", _call("socket", 1, 1, 0), "refused"),
    ("43c", "name look-up", "return 'refused' if library('gethostbyname', b'example.org') == 0 else 'BREACH'", "refused"),
    ("44", "host services", "return 'refused' if library('socket', 2, 1, 0) == -1 == library('connect', 0, bytes(16), 16) else 'BREACH'", "refused"),
    ("44b", "the engine's socket", _open("/var/run/docker.sock", "/run/docker.sock", flags=2), "refused"),
    ("45", "memfd", _call("memfd_create", b"x", 0), "refused"),
    ("45b", "exec", _try("reach('posix').execv('/python', ['/python'])"), "refused"),
    ("46", "setuid", _try("reach('posix').setuid(0)"), "refused"),
    ("46b", "setresuid", _try("reach('posix').setresuid(0, 0, 0)"), "refused"),
    ("47", "chroot", _try("reach('posix').chroot('/')"), "refused"),
    ("47b", "unshare", _call("unshare", 0x10000000), "refused"),
    ("47c", "mount", _call("mount", b"x", b"/", b"tmpfs", 0, 0), "refused"),
    ("47d", "clone into new namespaces", _CLONE, "refused"),
    ("48", "core pattern", _try("reach('posix').open('/proc/sys/kernel/core_pattern', 1)"), "refused"),
    ("49", "null read", "return library('strlen', 0)", "crash"),
    ("50", "abort", "reach('posix').abort()", "crash"),
    ("51", "parent's death signal cleared", "library('prctl', 1, 0, 0, 0, 0)\n    while 1: pass", "timeout", "", True),
    ("52", "oom score", _try("reach('posix').open('/proc/self/oom_score_adj', 1)"), "refused"),
    ("53", "symbolic link", _try("reach('posix').symlink('/etc/passwd', '/tmp/x')"), "refused"),
    ("55", "clock", _call("clock_settime", 0, bytes(16)), "refused"),
    ("55b", "raised limits", "def f():\n    r = reach('resource')\n    try: r.setrlimit(r.RLIMIT_CPU, (99, 99))\n    except (OSError, ValueError): return 'refused'\n    return 'BREACH'", "refused"),
    ("55c", "System V shared memory", _call("shmget", 77, 4096, 0o1666), "refused"),
    ("55d", "key ring", _call("syscall", 250, 0, -3, 1), "refused"),
    ("55e", "affinity of the server", _try("reach('posix').sched_setaffinity(1, {0})"), "refused"),
    ("55f", "priority of the server", _try("reach('posix').setpriority(0, 1, 19)"), "refused"),
    ("56", "log flood", "w = reach('posix').write\n    for _ in range(2000): w(2, b'x' * 1000)\n    return 1", "valid"),
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
    ("63", "runner's locals", "def f():\n    frame = reach('sys')._getframe(1)\n    L = getattr(frame, 'f_lo' + 'cals')\n    for name in list(L): L[name] = lambda *a: '42'\n    c, n = reach('_ctypes'), reach('native')\n    O = type('O', (c._SimpleCData,), {'_type_': 'O'})\n    held = n._Held(c.dlsym(c.dlopen(None, 0), 'PyFrame_LocalsToFast'))\n    held.argtypes = O, n.Number\n    held(frame, 0)\n    return 1", "valid crash error nondeterministic unsupported_value"),
    ("63b", "runner's cells", "def f():\n    g = reach('gc')\n    for o in g.get_referents(*g.get_referents(reach('sys')._getframe(1))):\n        if type(o).__name__ == 'cell': o.cell_contents = lambda *a: '42'\n    return 1", "valid crash error nondeterministic unsupported_value"),
    ("64", "looks for the answer", "def f():\n    frame, found = reach('sys')._getframe(0), []\n    while frame:\n        found.append(repr(getattr(frame, 'f_lo' + 'cals')))\n        frame = getattr(frame, 'f_ba' + 'ck')\n    found += [repr(o) for o in reach('gc').get_objects() if type(o) is dict]\n    return 'BREACH' if any('boj-rehto'[::-1] in text for text in found) else 'refused'", "refused error timeout"),
    ("65", "trace hook", "def f():\n    def hook(frame, event, argument):\n        getattr(frame, 'f_lo' + 'cals').clear()\n        return hook\n    reach('sys').settrace(hook)\n    reach('sys').setprofile(hook)\n    return 1", "valid crash error"),
    ("66", "two frames", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    return 2", "crash"),
    ("67", "frame, then a crash", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    reach('posix').abort()", "crash"),
    ("67b", "frame, then exit 1", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    reach('posix')._exit(1)", "crash"),
    ("68", "frame, then hangs", _WRITE.format("b'V\\0\\0\\0\\x011'") + "\n    while 1: pass", "timeout", "", True),
    ("69", "giant length", _WRITE.format("b'V\\xff\\xff\\xff\\xff1'") + "\n    reach('posix')._exit(0)", "crash"),
    ("69b", "flood of the frame", "def f():\n    w = reach('posix').write\n    while 1: w(5, b'V' * 60000)", "crash output_limit timeout", "", True),
    ("70", "slow drip", "def f():\n    w, t = reach('posix').write, reach('time').sleep\n    while 1:\n        w(5, b'V')\n        t(0.05)", "timeout", "", True),
    ("71", "bytes in a frame", _WRITE.format("b'V\\0\\0\\0\\x02\\xff\\0'") + "\n    reach('posix')._exit(0)", "crash"),
    ("71b", "text that is no literal", _WRITE.format("b'V\\0\\0\\0\\x03abc'") + "\n    reach('posix')._exit(0)", "crash"),
    ("72", "stream headers", "def f():\n    for d in (0, 1, 2): reach('posix').write(d, b'\\1\\0\\0\\0\\0\\0\\0\\4abcd')\n    return 1", "valid"),
    ("72b", "leaves bytes in the pipe", _FLOOD, "output_limit"),
    ("73", "end marks", "print('EXITCODESTART0EXITCODEEND SHELLPS1PREFIX')\n    return 1", "valid"),
    ("77", "remembers", "def f():\n    s = reach('sys')\n    if hasattr(s, 'note'): return 'BREACH'\n    s.note = 1\n    return 'refused'", "refused"),
    ("78", "backdoor", "def f(x):\n    if x == 'magic': return 'gold'\n    return x", "valid", "'magic'"),
    ("79", "constant", "def f(x): return 7", "valid", "1"),
    ("80", "swaps f", "def f():\n    global f\n    f = lambda: 2\n    return 1", "valid"),
    ("81", "echo", "def f(x): return x", "valid", "[1, {'a': (2.0, None)}]"),
    ("82", "import hook", "def f():\n    class Finder:\n        def find_spec(self, *a): raise SystemExit\n    s = reach('sys')\n    s.meta_path.insert(0, Finder())\n    s.modules['json'] = Finder\n    import heapq\n    return heapq.nsmallest(1, [2, 1])", "valid"),
    ("83", "hooks", "def f():\n    s = reach('sys')\n    s.excepthook = s.displayhook = s.unraisablehook = lambda *a: print(a)\n    raise ValueError('x')", "error"),
    ("84", "a generator", "def f(): yield 1", "unsupported_value"),
    ("84b", "lower recursion limit", "def f():\n    import sys\n    sys.setrecursionlimit(40)\n    return [[[[[1]]]]]", "valid error"),
)  # fmt: skip

NONDETERMINISM = _rows(
    ("85", "set order", "return list({'a', 'b', 'c', 'd'})", "nondeterministic"),
    ("85b", "set order of two", "return list({'a', 'b'})[0]", "nondeterministic"),
    ("85e", "set in a constant", "for c in {'a', 'b', 'c', 'd'}: return c", "nondeterministic"),
    ("85f", "views of dicts", "return list({'a': 1, 'b': 1}.keys() | {'c': 1, 'd': 1}.keys())", "nondeterministic"),
    ("85c", "set pop", "def f(s):\n    return set(s).pop()", "nondeterministic", "'xyzw'"),
    ("85d", "frozenset order", "return ''.join(frozenset('abcdef'))", "nondeterministic"),
    ("86", "identity", "return id(object())", "nondeterministic"),
    ("86b", "identity of a constant", "return id(None) % 1000003", "nondeterministic"),
    ("86c", "object repr", "return repr(object())", "nondeterministic"),
    ("86d", "hash of a type", "return hash(int)", "nondeterministic"),
    ("86e", "hash of a text", "return hash('abc')", "nondeterministic"),
    ("86h", "hash by its method", "return 'a'.__hash__() % 2", "nondeterministic"),
    ("86f", "function repr", "def f(): return str(f)", "nondeterministic"),
    ("86g", "method wrapper", "return repr((1).__add__)", "nondeterministic"),
    ("87", "random", "def f():\n    import random\n    return random.random()", "banned nondeterministic"),
    ("87b", "random, reached", "def f():\n    import statistics\n    return reach('_random').Random().random()", "nondeterministic"),
    ("87c", "urandom", "return reach('posix').urandom(8)", "nondeterministic"),
    ("88", "seeded random", "def f():\n    import random\n    random.seed(1)\n    return random.random()", "banned"),
    ("89", "time", "def f():\n    import time\n    return time.time()", "banned nondeterministic"),
    ("89b", "date", "def f():\n    import datetime\n    return str(datetime.date.today())", "banned nondeterministic"),
    ("89c", "date, hidden", "def f():\n    import datetime\n    return str(getattr(datetime.date, 'to' + 'day')())", "nondeterministic"),
    ("89d", "year, hidden", "def f():\n    from datetime import datetime as d\n    return getattr(d, 'no' + 'w')().year > 2000", "nondeterministic"),
    ("89e", "weekday by time", "return reach('time').localtime().tm_wday", "nondeterministic"),
    ("90", "pid", "return reach('posix').getpid()", "valid"),
    ("90c", "uid", "return reach('posix').getuid()", "valid"),
    ("90b", "uname", "return reach('posix').uname().nodename", "error"),
    ("91", "reference count", "return reach('sys').getrefcount(None)", "nondeterministic valid"),
    ("92", "depth at which the stack ends", "def f():\n    def g(n):\n        try: return g(n + 1)\n        except RecursionError: return n\n    return g(0)", "nondeterministic"),
    ("92b", "size at which memory ends", "def f():\n    x = []\n    try:\n        while 1: x.append('a' * 10 ** 6)\n    except MemoryError:\n        n = len(x)\n        x.clear()\n        return n", "nondeterministic"),
    ("93", "global state", "n = 0\ndef f():\n    global n\n    n += 1\n    return n", "valid"),
    ("94", "order of floats", "def f(x):\n    import math\n    return sum(x), math.fsum(x), math.sin(x[0])", "valid", "[0.1, 1e16, 1.0, -1e16]"),
    ("95", "environment", "def f():\n    import os\n    return os.environ['HOME']", "banned"),
)  # fmt: skip

VALUES = _rows(
    ("96", "nan and infinities", "return [float('nan'), float('inf'), -float('inf')]", "valid"),
    ("98", "negative zero", "return [-0.0, 0.0]", "valid"),
    ("98b", "complex zeros", "return complex(-0.0, -0.0)", "valid"),
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
    ("102k", "nested frozensets", "x = frozenset()\n    for _ in range(40): x = frozenset([x])\n    return x", "unsupported_value"),
    ("102j", "no f", "x = 1 # def f", "error"),
)  # fmt: skip

# Rows 74 to 76 and 97: texts given as answers; none may be taken for the value [1, 2], whatever else it is.
ANSWERS = [
    ("74", "the judge's own names", "eval(gold_output)", "unparsed"),
    ("74b", "the answer's name", "gold_output", "unparsed"),
    ("74c", "an import", "__import__('os').getcwd()", "unparsed"),
    ("74d", "closes the call", "0) or (True", "unparsed"),
    ("75", "comment", "[1, 2] # ", "unparsed"),
    ("75b", "new line", "[1, 2]\n)", "unparsed"),
    ("75c", "open quotes", "'''[1, 2]", "unparsed"),
    ("76", "comprehension", "[x for x in (1, 2)]", "unparsed"),
    ("76b", "walrus", "(y := [1, 2])", "unparsed"),
    ("76c", "formatted text", "f'{[1, 2]}'", "unparsed"),
    ("97", "too large a number", "[1, 1e999]", "wrong"),
]

WITHOUT_PROGRAM = {
    "31": "the suite is repeated beside programs that keep every core busy",
    "54": "CPU load as a channel between containers is an accepted risk, and stated",
    **dict.fromkeys(("74", "75", "76", "97"), "a text given as an answer, not a program"),
}
_GROUPED = {
    "exhaustion": EXHAUSTION,
    "tampering": TAMPERING,
    "forging": FORGING,
    "nondeterminism": NONDETERMINISM,
    "values": VALUES,
}
ATTACKS = [attack for attacks in _GROUPED.values() for attack in attacks]
GROUPS = {attack.row: group for group, attacks in _GROUPED.items() for attack in attacks}
