"""The walls around a program: resource limits, own uid, seccomp. Linux, x86_64 and aarch64; standard library only.

The template installs the outer filter and the limits that children inherit; each child drops the rest. A wall that the kernel
refuses is recorded by name, never ignored silently.
"""

import posix  # `os` with what it brings would be sixty pages more to fork
import resource
import struct

from drop import make_drop
from native import Number, Place, Text, Word, function
from uids import first_mapped

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
# Not `fcntl`: programs share the open pipes of their template, and flags, sizes and owners of a pipe outlive a program. Nor what
# tells a process's own number or user: a value that changes slowly passes two runs and is another one later.
_X86_TEXT = """
read=0 write=1 close=3 fstat=5 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12 rt_sigaction=13 rt_sigprocmask=14
rt_sigreturn=15 pread64=17 sched_yield=24 mremap=25 madvise=28 nanosleep=35 sendto=44 recvfrom=45 clone=56 fork=57
exit=60 wait4=61 setgroups=116 setresuid=117
setresgid=119 sigaltstack=131 prctl=157 setrlimit=160 futex=202 restart_syscall=219 clock_gettime=228
clock_nanosleep=230 exit_group=231 openat=257 newfstatat=262 set_robust_list=273 prlimit64=302 seccomp=317 getrandom=318
rseq=334
"""
_ARM_TEXT = """
read=63 write=64 close=57 fstat=80 lseek=62 mmap=222 mprotect=226 munmap=215 brk=214 rt_sigaction=134 rt_sigprocmask=135
rt_sigreturn=139 pread64=67 sched_yield=124 mremap=216 madvise=233 nanosleep=101 sendto=206 recvfrom=207 clone=220
exit=93 wait4=260 setgroups=159 setresuid=147
setresgid=149 sigaltstack=132 prctl=167 setrlimit=164 futex=98 restart_syscall=128 clock_gettime=113
clock_nanosleep=115 exit_group=94 openat=56 newfstatat=79 set_robust_list=99 prlimit64=261 seccomp=277 getrandom=278 rseq=293
ppoll=73
"""
_NAMESPACES = 0x7E020000  # flags of `clone` for new namespaces: mount, control group, UTS, IPC, user, pid, network
_MACHINES = {"x86_64": (0xC000003E, _X86_TEXT), "aarch64": (0xC00000B7, _ARM_TEXT)}
_NOBODY = 65_534
PROGRAM_UIDS = 63  # of the 64 that a supervisor has; the last is its key server's
_prctl = function("prctl", Number, Number, Word, Place, Word, Word)
_capset = function("capset", Number, Text, Text)
_malloc, _copy = function("malloc", Place, Word), function("memcpy", Place, Place, Text, Word)


def prctl(option: int, value: int, pointer: int | None = None) -> int:
    return _prctl(option, value, pointer, 0, 0)


def lasting(data: bytes) -> int:
    """The address of a copy that stays."""
    place = _malloc(len(data))
    _copy(place, data, len(data))
    return place


def make_filter() -> int | None:
    """The address of the allow list, which answers EPERM to the rest; None where the machine type is not known."""
    if posix.uname().machine not in _MACHINES:
        return None
    arch, text = _MACHINES[posix.uname().machine]
    table = {name: int(number) for name, _, number in (entry.partition("=") for entry in text.split())}
    wanted = [number for name, number in table.items() if name != "clone"]
    # load arch; other arch: kill. load number; x32 numbers: refuse. `clone`: by its flags. then one comparison a call
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, arch), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0), (0x35, 0, 1, 0x40000000)]
    code += [(0x06, 0, 0, 0x00050001)]
    code += [(0x15, 0, 4, table["clone"]), (0x20, 0, 0, 16), (0x45, 0, 1, _NAMESPACES), (0x06, 0, 0, 0x00050001)]
    code += [(0x06, 0, 0, 0x7FFF0000)]
    code += [(0x15, len(wanted) - number, 0, call) for number, call in enumerate(wanted)]
    code += [(0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    raw = b"".join(struct.pack("<HBBI", *line) for line in code)
    return lasting(struct.pack("@HP", len(code), lasting(raw)))


def install(program: int | None) -> bool:
    return program is not None and prctl(PR_SET_SECCOMP, 2, program) == 0


class Walls:
    """What a template sets once, and by `drop` what each of its children does."""

    def __init__(self, memory_mb: int, cpu_ceiling: int):
        self.missing: list[str] = []
        self.root = posix.getuid() == 0 and first_mapped(65_536, PROGRAM_UIDS + 1) is not None
        if not self.root:
            self.missing.append("own_uid")
        self.drop, self.memory = make_drop(self.root, (cpu_ceiling, cpu_ceiling + 1)), memory_mb << 20
        self.filter = make_filter()
        self.clone = 56 if posix.uname().machine == "x86_64" else 220  # the latter is every newer architecture's number

    def template(self) -> None:
        """In the template, once: limits that children inherit, no dumping, no new privileges, the outer filter.

        One session a template: a session a child would have the kernel make a scheduling group for each (a twelfth of its cost),
        and guards nothing that the filter does not, which allows no signals.
        """
        posix.setsid()
        for name in ("CORE", "FSIZE", "MSGQUEUE", "MEMLOCK", "NICE", "RTPRIO"):
            self._limit(name, 0)
        self._limit("STACK", 8 << 20)
        if self.root:
            posix.setgroups(())
            group = first_mapped(_NOBODY, 1, "/proc/self/gid_map")
            posix.setresgid(group, group, group)
        else:  # where it is root of a user namespace of one id, its programs will be too
            self._try("capabilities", _capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)) == 0)
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        self._limit("AS", pages * posix.sysconf("SC_PAGESIZE") + self.memory)
        self._try("dumpable", prctl(PR_SET_DUMPABLE, 0) == 0)
        self._try("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1) == 0)
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("900")
        except OSError:
            pass  # the container already has a raised score; the limit on address space is the wall
        self._try("seccomp", install(self.filter))

    def _limit(self, name: str, value: int) -> None:
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            self.missing.append("rlimit_" + name.lower())

    def _try(self, name: str, worked: bool) -> None:
        if not worked:
            self.missing.append(name)
