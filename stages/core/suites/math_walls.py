"""The walls around the grader of mathematical answers: what its process gives up before it reads what a model wrote.

Linux on x86_64 and aarch64: a filter of system calls that also binds root. The process can compute, read its standard input,
write to its standard output and end; it opens no file and no socket, makes no process, sends no signal and changes no limit.
Elsewhere, including macOS, only the limits hold, and the grader reports on standard error that its walls are weaker.
"""

import ctypes
import os
import platform
import resource
import struct
import sys

MEMORY = 2 << 30
NOBODY = 65_534
_SET_SECCOMP, _SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_X86 = """
read=0 write=1 close=3 fstat=5 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12 rt_sigaction=13 rt_sigprocmask=14
rt_sigreturn=15 sched_yield=24 mremap=25 madvise=28 nanosleep=35 setitimer=38 getpid=39 exit=60 gettimeofday=96 getrusage=98
sigaltstack=131 gettid=186 time=201 futex=202 restart_syscall=219 clock_gettime=228 clock_getres=229 clock_nanosleep=230
exit_group=231 set_robust_list=273 getrandom=318 membarrier=324 rseq=334
"""
_ARM = """
read=63 write=64 close=57 fstat=80 ppoll=73 lseek=62 mmap=222 mprotect=226 munmap=215 brk=214 rt_sigaction=134
rt_sigprocmask=135 rt_sigreturn=139 sched_yield=124 mremap=216 madvise=233 nanosleep=101 setitimer=103 getpid=172 exit=93
gettimeofday=169 getrusage=165 sigaltstack=132 gettid=178 futex=98 restart_syscall=128 clock_gettime=113 clock_getres=114
clock_nanosleep=115 exit_group=94 set_robust_list=99 getrandom=278 membarrier=283 rseq=293
"""
_MACHINES = {"x86_64": (0xC000003E, _X86), "aarch64": (0xC00000B7, _ARM)}
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000  # refused calls answer EPERM


def raise_walls() -> list[str]:
    """Gives up everything but computing; the names of the walls that this machine does not have."""
    missing = []
    for name, value in (("AS", MEMORY), ("CORE", 0), ("FSIZE", 0), ("NPROC", 0)):
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except (ValueError, OSError):  # macOS has no limit on address space
            missing.append(f"limit_{name.lower()}")
    if os.getuid() == 0:
        try:
            os.setgroups(())
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        except OSError:  # in a user namespace that does not map it
            missing.append("own_uid")
    return missing if _filter() else [*missing, "system_call_filter"]


def _filter() -> bool:
    """Install the filter; return False if this machine does not support it."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    library = ctypes.CDLL(None, use_errno=True)
    code = _program()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    zero = ctypes.c_ulong(0)
    if library.prctl(_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
        return False
    return bool(library.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), program, zero, zero) == 0)


def _program() -> bytes:
    """The filter: another architecture's calls kill, x32 numbers and all that is not listed are refused."""
    architecture, text = _MACHINES[platform.machine()]
    allowed = [int(entry.partition("=")[2]) for entry in text.split()]
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, _KILL)]
    code += [(0x20, 0, 0, 0), (0x35, 0, 1, 0x40000000), (0x06, 0, 0, _REFUSE)]
    code += [(0x15, len(allowed) - place, 0, number) for place, number in enumerate(allowed)]
    code += [(0x06, 0, 0, _REFUSE), (0x06, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *line) for line in code)
