"""The supervisor's side of one template server: orders, deadlines, and the reading of a program's stream.

The pipes to and from programs are made once a template and are used by one program at a time. The result pipe counts as ended
when the program's process is gone (it can leave no other behind) and nothing is left in the pipe. After anything odd the
template is replaced, pipes and all. Standard library only.
"""

import ast
import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from serve import CONTROL, ELSEWHERE, JOB, ORDER, PID, RESULT
from walls import PROGRAM_UIDS

MAX_STREAM = 1 << 20
# Texts of a run with the letter C alone, which no program's frame can have: elsewhere a text is whatever the program wrote
SERVER_ENDED = b"the program's server ended"  # the host has such a job run again
WANTS_MODULES = b"for a server with modules"  # the supervisor has such a job, from a lean server, run in one
OWN_MEMORY = 0.5  # of the limit: the kernel also kills a program, and counts it, where the machine has no memory left
SLACK = 1.2  # a first run may use this much of the CPU limit; the host has runs near the limit repeated alone
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "LD_BIND_NOW": "1",
    # Python's own allocator gives every size pages of its own; the C library's puts what is made together side by side, the more
    # so the shorter its lists of free blocks: a sixth fewer pages to copy. With a longer step a program need not grow the heap
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=2:glibc.malloc.top_pad=1000000",
}
_SEEDS = (0, 1, 4_242, 777, 31_337, 99)
CHILDREN = (signal.SIGCHLD,)  # blocked in the supervisor and waited for
SERVERS: set[int] = set()  # pids of templates and key servers, not waited for yet
Ended = tuple[int, resource.struct_rusage]
Run = tuple[bytes, int, int, int, bytes, bool, bool]  # verdict, cpu µs, wall µs, RSS KiB, text, passed, sets or hashes may show


class Template:
    """One template process with its control socket and its two pipes."""

    def __init__(self, index: int, full: bool, config: dict):
        self.config, self.dead, self.full = config, False, full
        self.program = 0  # the pid of the program that runs, once the template has sent it
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        job_read, self.job = os.pipe()
        self.result, result_write = os.pipe()
        for descriptor in (self.job, self.result):
            _enlarge(descriptor)
        os.set_blocking(self.result, False)
        os.set_blocking(self.job, False)
        self.control = ours
        arguments = [str(index), str(config["memory_mb"]), str(cpu_ceiling(config)), "full" if full else "lean"]
        descriptors = {CONTROL: theirs.fileno(), JOB: job_read, RESULT: result_write}
        self.pid = spawn("template.py", arguments, _ENVIRONMENT | {"PYTHONHASHSEED": str(_SEEDS[index])}, descriptors, config)
        theirs.close()
        os.close(job_read)
        os.close(result_write)

    def gone(self) -> bool:
        """Whether it cannot take another job."""
        return self.dead or self.pid not in SERVERS

    def probe(self, uid: int) -> dict:
        """What a child of this template attests."""
        verdict, _, _, _, text, *_ = self.run(b"", uid, False, lambda: None, mode=1)
        return ast.literal_eval(text.decode()) if verdict == b"V" else {"failed": text.decode()}

    def run(self, payload: bytes, uid: int, alone: bool, flush: Callable[[], None], mode: int = 0) -> Run:
        """One program in one process, to its verdict."""
        start, before, self.program = time.monotonic(), _oom_kills(), 0
        stream = bytearray()
        self.starved = 0.0  # seconds for which the program wanted a core and had none: load must not decide
        try:
            rest = b"" if mode else self._hand(len(payload).to_bytes(4, "big") + payload)
            self.control.send(ORDER.pack(uid, mode))
            while rest:
                if not select.select([], [self.job], [], self.config["wall_seconds"])[1]:
                    raise OSError("the program does not read its job")
                rest = self._hand(rest)
            (status, usage), killed = self._wait(start, alone, stream, flush)
        except OSError:
            with contextlib.suppress(OSError):
                self._end_program()  # first: only the open socket tells its pid
            self.kill()
            sweep(self.config["uid"])
            return b"C", 0, _micro(start), 0, SERVER_ENDED, False, False
        if not killed and len(stream) > MAX_STREAM:
            killed = b"O"  # it ended by itself, but what it left in the pipe would be taken for the next program's
        own_memory = _oom_kills() > before and usage.ru_maxrss >= OWN_MEMORY * min(
            self.config["memory_mb"] << 10, _container_kib()
        )
        if status == signal.SIGKILL and not killed and not own_memory:
            killed = b"?"  # somebody outside, or the kernel of a machine that has no memory left
        cpu, rss = int((usage.ru_utime + usage.ru_stime) * 1e6), usage.ru_maxrss
        verdict, text, passed, sensitive = _read_stream(bytes(stream), status, killed)
        if not self.full and len(stream) == 3 and os.waitstatus_to_exitcode(status) == ELSEWHERE and not killed:
            text = WANTS_MODULES
        elif verdict == b"C" or killed or status:  # one that wrote a whole result and left has read the whole job
            self.kill()
            sweep(self.config["uid"])
        return verdict, min(cpu, 0xFFFFFFFF), _micro(start + self.starved), rss, text, passed, sensitive

    def _hand(self, data: bytes) -> bytes:
        """Writes to the program's job; what is left once the pipe is full."""
        try:
            while data:
                data = data[os.write(self.job, data) :]
        except BlockingIOError:
            pass
        return data

    def _wait(self, start: float, alone: bool, stream: bytearray, flush: Callable[[], None]) -> tuple[Ended, bytes]:
        """Waits for the program's end and keeps the limits; also says why the program was killed, or nothing."""
        if (ended := self._ended(0.01, stream)) is not None:
            return ended, b""
        flush()
        killed, begun = b"", start
        cpu_limit = self.config["cpu_seconds"] * (1.02 if alone else SLACK)
        while (ended := self._ended(0.025 if time.monotonic() - start > 0.1 else 0.01, stream)) is None:
            self._drain(stream)
            if not stream:  # the template has had no core yet to fork it; the host's patience ends that
                begun = time.monotonic()
                continue
            self.starved = max(self.starved, begun - start + _starved(self._running()))
            wall = time.monotonic() - start - self.starved
            if not killed and len(stream) > MAX_STREAM:
                killed = b"O"
            elif not killed and (wall > self.config["wall_seconds"] or (wall > cpu_limit and _cpu(self._running()) > cpu_limit)):
                killed = b"T"
            if killed:
                self._end_program()
                if wall > self.config["wall_seconds"] + 5:
                    raise OSError("the program could not be ended")
        return ended, killed

    def _ended(self, seconds: float, stream: bytearray) -> Ended | None:
        """The program's status and usage if it ends in time; `stream` then holds all it wrote. OSError: the template ended."""
        if signal.sigtimedwait(CHILDREN, seconds) is None:
            return None
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return None
            if pid in SERVERS:
                SERVERS.discard(pid)
                if pid == self.pid:
                    raise OSError("the template ended")
                continue
            self._drain(stream)
            if pid == self._running():
                return status, usage

    def _running(self) -> int:
        """The pid of the program that runs. OSError without one: the template has ended, or has had no core for long."""
        if not self.program:
            if not select.select([self.control], [], [], 5)[0]:
                raise OSError("no pid")
            answer = self.control.recv(PID.size)
            if len(answer) < PID.size:
                raise OSError("the template ended")
            self.program = PID.unpack(answer)[0]
        return self.program

    def _end_program(self) -> None:
        """Kills the program that runs; without its pid, the template goes."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended; the report is on its way
            os.kill(self._running(), signal.SIGKILL)

    def _drain(self, stream: bytearray) -> None:
        while True:
            try:
                data = os.read(self.result, 1 << 16)
            except BlockingIOError:
                return
            if len(stream) <= MAX_STREAM:
                stream += data
            if len(data) < 1 << 16 or len(stream) > MAX_STREAM:
                return

    def kill(self) -> None:
        """Ends the template; `sweep` then ends what it may have left."""
        if self.dead:
            return
        self.dead = True
        self.control.close()
        os.close(self.job)
        os.close(self.result)
        end_server(self.pid)
        reap()


def cpu_ceiling(config: dict) -> int:
    """Whole CPU seconds after which the kernel ends a process."""
    return int(config["cpu_seconds"] * SLACK) + 1


def spawn(script: str, arguments: list[str], environment: dict, descriptors: dict[int, int], config: dict) -> int:
    """Exec of a new interpreter: another address layout, nothing inherited but these descriptors. Its pid."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), script)
    flags = ["-s", "-S", "-P", "-B"] if sys.version_info >= (3, 11) else ["-s", "-S", "-B"]
    null = os.open("/dev/null", os.O_RDWR)
    high = {target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 40) for target, source in descriptors.items()}
    actions = [(os.POSIX_SPAWN_DUP2, null, stream) for stream in ((0, 1) if config.get("debug") else (0, 1, 2))]
    actions += [(os.POSIX_SPAWN_DUP2, source, target) for target, source in high.items()]
    command = [sys.executable, *flags, path, *arguments]
    pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsigmask=())
    for descriptor in (null, *high.values()):
        os.close(descriptor)
    SERVERS.add(pid)
    return pid


def end_server(pid: int) -> None:
    """Kills a template or key server, if it has not ended, and waits for it."""
    if pid in SERVERS:
        SERVERS.discard(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def sweep(first: int) -> None:
    """Kills every process that runs under a program's uid of this supervisor; there is at most one."""
    for _ in range(2):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if first <= os.stat("/proc/" + name).st_uid < first + PROGRAM_UIDS:
                        os.kill(int(name), signal.SIGKILL)
                        os.waitpid(int(name), 0)
    reap()


def reap() -> None:
    """Takes every child that has ended: templates, programs of ended templates, and orphans, which come to process 1."""
    for _ in range(100):
        try:
            pid = os.waitpid(-1, os.WNOHANG)[0]
            if pid == 0:
                return
            SERVERS.discard(pid)
        except ChildProcessError:
            return


def _read_stream(stream: bytes, status: int, killed: bytes) -> tuple[bytes, bytes, bool, bool]:
    """Verdict, text, whether the program's text passed, sensitivity: strict, and a value only with one frame and status 0."""
    passed = stream[1:2] == b"K" and len(stream) >= 3
    position, sensitive = (3, bool(stream[2])) if passed else (1, False)
    if killed == b"?":
        return b"C", SERVER_ENDED, passed, sensitive
    if status == signal.SIGKILL and not killed:
        return b"M", b"over the container's memory", passed, sensitive
    if killed:
        reason = b"CPU or wall time is over the limit" if killed == b"T" else b"more output than a frame may have"
        return killed, reason, passed, sensitive
    if status != 0:
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            return b"T", b"CPU time is over the limit", passed, sensitive
        reason = f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return b"C", reason.encode(), passed, sensitive
    tag, size = stream[position : position + 1], int.from_bytes(stream[position + 1 : position + 5], "big")
    text = stream[position + 5 :]
    whole = (
        len(stream) >= position + 5 and len(text) == size and tag in (b"V", b"E", b"M", b"O", b"X", b"U", b"B") and text.isascii()
    )
    if not whole or (tag not in (b"U", b"B") and not passed):
        return b"C", b"ended without one whole result", passed, sensitive
    return tag, text, passed, sensitive


def _cpu(pid: int) -> float:
    """CPU seconds of the running program, by the kernel's count."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def _starved(pid: int) -> float:
    """Seconds that the running program has waited for a core, by the kernel's count; 0 where it keeps none."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _oom_kills() -> int:
    """Processes of this container that the kernel has killed for want of memory anywhere; 0 where nothing counts them."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError), open(path) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return 0


def _container_kib() -> int:
    """KiB that this container may use; 2^53 where there is no limit."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:  # "max" is no number
            return int(file.read()) >> 10
    return 1 << 53


def _enlarge(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the host may cap it; a larger job is then read while it is written
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)


def _micro(start: float) -> int:
    return max(0, min(int((time.monotonic() - start) * 1e6), 0xFFFFFFFF))
