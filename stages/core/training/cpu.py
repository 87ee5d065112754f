"""How torch uses this machine's processor: its threads, and memory that stays with the process."""

import ctypes
from contextlib import suppress

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = 2**31 - 1


def use_cpu(threads: int) -> None:
    """Sets torch's threads; what torch frees is kept for its next tensors, where the C library is glibc.

    Each pass frees and asks for the same activations. By default large pieces go back to the kernel and come
    again as new pages: on a virtual machine a third of an update's time. The process stays as large as it has been at its peak.
    """
    torch.set_num_threads(threads)
    with suppress(OSError, AttributeError):  # another C library
        adjust = ctypes.CDLL(None).mallopt
        adjust(_MMAP_THRESHOLD, _NEVER)
        adjust(_TRIM_THRESHOLD, _NEVER)
