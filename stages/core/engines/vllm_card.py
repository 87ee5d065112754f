"""Environment variables with which vLLM uses a GPU. Needs no vLLM."""

from collections.abc import Mapping

START = "VLLM_WORKER_MULTIPROC_METHOD"
MEMORY = "PYTORCH_ALLOC_CONF"
_MEMORY_TOO = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # older names, which torch still reads
PINNED_MB = 16  # less than the 20 MiB in which torch reserves GPU memory for the parameters of a model
KNOWN_SINCE = (2, 13)  # torch 2.11 does not start with an option of its allocator that it does not know; 2.12 was not tried


def card_settings(environment: Mapping[str, str], torch_version: str) -> dict[str, str]:
    """Return the variables to set before vLLM starts on a GPU with this torch. What the user has set stays.

    A sleeping vLLM copies each segment of GPU memory to pinned host memory, which torch rounds up to a power of two and keeps
    after the wake, 1.9 times the weights of a 7B model. Above a size that torch does not cache, it does neither. An older
    torch keeps that memory. (`pinned_max_round_threshold_mb` alone is not safe: torch 2.13 then reuses blocks that are too
    small.) The engine process is spawned, because CUDA does not survive a fork, and on a MIG slice torch cannot count cards
    without CUDA.
    """
    chosen = {START: "spawn"}
    release = tuple(int(part) for part in torch_version.split(".")[:2])
    if release >= KNOWN_SINCE and not any(environment.get(name) for name in (MEMORY, *_MEMORY_TOO)):
        chosen[MEMORY] = f"pinned_max_cached_size_mb:{PINNED_MB}"
    return {name: value for name, value in chosen.items() if not environment.get(name)}
