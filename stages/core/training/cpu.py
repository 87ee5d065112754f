"""How torch uses this machine's CPU: its threads, and memory that stays with the process."""

import ctypes
from contextlib import suppress

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = 2**31 - 1


def use_cpu(threads: int) -> None:
    """Set torch's threads. With glibc, also keep the memory that torch frees for its next tensors.

    Each pass frees and allocates the same activations. By default large blocks return to the kernel and come back as new pages,
    which takes a third of an update's time on a virtual machine. The process keeps its peak size until
    `flows.execution.freed_memory` gives back what a stage has freed.
    """
    torch.set_num_threads(threads)
    with suppress(OSError, AttributeError):  # another C library
        adjust = ctypes.CDLL(None).mallopt
        adjust(_MMAP_THRESHOLD, _NEVER)
        adjust(_TRIM_THRESHOLD, _NEVER)
