"""Memory that this process has freed and its C library keeps: useful within a stage, too much over many generations."""

import ctypes
from contextlib import suppress

KEPT = 2 << 30  # bytes: what the next stage of a small model takes again, without asking the system for new pages


class _Counted(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


def give_back_freed_memory(kept: int = KEPT) -> int:
    """Give what was freed back to the system where it is more than `kept` bytes. Return how much was free before.

    `stages.core.training.cpu.use_cpu` makes glibc keep what torch frees. Stages differ in the sizes of their tensors, so a
    process that keeps everything grows: from 6 to 12 GB in 50 generations of `laptop`. Returns 0 with another C library.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        count = library.mallinfo2
        count.restype = _Counted
        free: int = count().fordblks
        if free > kept:
            library.malloc_trim(0)
        return free
    return 0
