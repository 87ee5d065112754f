"""How much memory of a graphics card a stage took, for its manifest's clock; torch is asked only where a stage has loaded it."""

import sys


def forget_gpu_memory() -> None:
    """From here on `gpu_memory` counts anew. Nothing where torch is not loaded or sees no card."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def gpu_memory() -> dict[str, int]:
    """The most that this process's tensors held; empty without a card. vLLM's engine, a process of its own, is not counted."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"peak_gpu_memory_mb": int(torch.cuda.max_memory_allocated()) >> 20}
