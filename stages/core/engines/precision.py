"""The arithmetic of a model on this machine: bfloat16 where it is fast, float32 elsewhere."""

import torch


def on_gpu(device: str) -> bool:
    """Return whether a model on `device` uses a GPU. `auto` is the GPU if there is one."""
    return torch.cuda.is_available() if device == "auto" else not device.startswith("cpu")


def compute_dtype(device: str, dtype: str) -> str:
    """Return the type in which a model configured as `dtype` computes on `device`: float32 where a CPU is slow in bfloat16.

    Without units for it, products in bfloat16 are several times slower than in float32. `auto` is the GPU if there is one.
    """
    if dtype == "bfloat16" and not on_gpu(device) and not fast_bfloat16():
        return "float32"
    return dtype


def fast_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 faster than float32: with AMX, or with AVX-512 BF16 if it is not Intel's.

    Intel's processors have both, but a virtual machine may hide AMX. What is left then takes twice as long as float32 (a Xeon of
    model 207: 169 to 326 GFLOPS); on AMD's Zen 4 the same instructions are five times as fast.
    """
    found = torch.cpu.get_capabilities()
    return bool(found.get("amx_bf16") or (found.get("avx512_bf16") and not str(found.get("cpu_name")).startswith("Intel")))
