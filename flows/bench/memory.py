"""Memory that a side of a bench takes: the peak of some work, and what a process holds before it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak_memory(work: Callable[[], Any]) -> float:
    """Return the peak bytes of `work`: on the GPU if there is one, else of this process (0 if the system cannot report it)."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        work()
        return float(torch.cuda.max_memory_allocated())
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not clear.exists():
        return 0.0
    clear.write_text("5")  # resets the high-water mark
    work()
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return float(line.split()[1]) * 1024


def resident() -> float:
    """Bytes that this process holds at the moment; 0 on a GPU, whose allocator counts only what it gave."""
    import torch

    status = Path("/proc/self/status")
    if torch.cuda.is_available() or not status.exists():
        return 0.0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return float(line.split()[1]) * 1024
