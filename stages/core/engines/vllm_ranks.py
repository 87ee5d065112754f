"""The ranks for which vLLM can reserve memory. Needs no vLLM."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def reserved_rank(rank: int) -> int:
    """Return the `max_lora_rank` that an adapter of this rank needs: the smallest that vLLM takes and into which it fits."""
    return min((one for one in RANKS if one >= rank), default=rank)
