"""Where steps of a run can compute at the same time on this machine: on its cards, or side by side on its processor cores."""

import os
from math import ceil

from flows.cards import Card
from flows.config import RunConfig
from flows.execution.preflight import cards_for


def places_for(config: RunConfig) -> list[Card] | list[None]:
    """Return the machine's cards; on a CPU, a None for each process that has `threads` cores to itself and a part to compute.

    Empty where one process computes all. Raises CardTooSmall, as `cards_for` does.
    """
    found = cards_for(config)
    if found or config.model.device not in ("cpu", "auto") or config.engine.kind == "vllm":  # vLLM uses all cores
        return found
    beside = min(cores() // config.threads, _parts(config))
    return [None] * beside if beside > 1 else []


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parts(config: RunConfig) -> int:
    """Return the most parts that a stage of the run has."""
    size = config.learning.adapters_per_group
    return max(config.engine.shards, ceil(config.adapters / size) if size else 1)
