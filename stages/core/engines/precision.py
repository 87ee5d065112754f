"""The arithmetic of a model on this machine: bfloat16 where it is fast, float32 elsewhere."""

import torch


def on_gpu(device: str) -> bool:
    """Return whether a model on `device` uses a GPU. `auto` is the GPU if there is one."""
    return torch.cuda.is_available() if device == "auto" else not device.startswith("cpu")


def compute_dtype(device: str, dtype: str) -> str:
    """Return the type in which a model configured as `dtype` computes on `device`: on a CPU without bfloat16 units, float32.

    Without them, products in bfloat16 are several times slower than in float32. `auto` is the GPU if there is one.
    """
    if dtype == "bfloat16" and not on_gpu(device) and not fast_bfloat16():
        return "float32"
    return dtype


def fast_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware: AVX-512 BF16 or AMX."""
    # torch has no public question for these two
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
