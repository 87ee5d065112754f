"""The largest memory of a step: of this process, and of its tensors on a GPU. A warm process runs many steps."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc/self")


def forget_peaks() -> None:
    """Reset what `peaks` reports: GPU memory if this process uses a GPU, and the process's own memory, which requires Linux."""
    with suppress(OSError):  # another system, or a container that does not allow it
        (PROC / "clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def peaks() -> dict[str, int]:
    """Return the peaks in MB since `forget_peaks`: `peak_memory_mb`, and with a GPU `peak_gpu_memory_mb`.

    The first is the largest resident memory of this process. Where the system has no VmHWM, as on macOS, it is the largest since
    the process began. vLLM's separate process is not counted.
    """
    return {"peak_memory_mb": _resident_mb()} | _gpu()


def _resident_mb() -> int:
    with suppress(OSError):
        for line in (PROC / "status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # macOS counts bytes, others kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit


def _gpu() -> dict[str, int]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"peak_gpu_memory_mb": int(torch.cuda.max_memory_allocated()) >> 20}
