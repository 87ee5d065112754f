"""The last step before a program's process reads its job: the limits and the uid that its template cannot have yet."""

import posix
import resource
from _functools import partial as held  # see program.py

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LIMITED = resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE
Pair = tuple[int, int]


def make_drop(own_uid: bool, cpu: Pair, nproc: Pair = (0, 0), nofile: Pair = (0, 0)) -> "Callable[[int], None]":
    """What a child does before it reads its job. Anything that fails in it ends the child (the supervisor reports a crash).

    The seccomp filter is the inherited one: what it allows beyond a program's needs is for the template, and is refused
    here by other means: new processes and threads by NPROC 0, every new descriptor by NOFILE 0, another uid by the
    missing capability.
    """
    set_limit, set_uid = held(resource.setrlimit), held(posix.setresuid)
    cpu_limit, nproc_limit, nofile_limit = _LIMITED

    def drop(uid: int) -> None:
        set_limit(cpu_limit, cpu)
        set_limit(nproc_limit, nproc)
        set_limit(nofile_limit, nofile)
        if own_uid:
            set_uid(uid, uid, uid)

    return drop


def make_idle_drop() -> "Callable[[int], None]":
    """The same with the limits that stand already: called with uid -1 it changes nothing, and warms the code up."""
    return make_drop(True, *(resource.getrlimit(kind) for kind in _LIMITED))
