"""Where steps of a run can compute at the same time on this machine: on its cards, or in several processes on its processor."""

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version

from flows.cards import Card
from flows.config import ConfigError, RunConfig
from flows.execution.preflight import cards_for

PROCESSES = "POPULORA_PROCESSES"
"""How many processes may compute parts of a stage on a CPU at the same time. Of the machine, not of a run: no bytes change."""


def places_for(config: RunConfig, environment: Mapping[str, str] = os.environ) -> list[Card] | list[None]:
    """Return the machine's cards; on a CPU, a None for each process that may work there, or nothing where that is one.

    vLLM uses all cores by itself. With `auto` and a torch that could use a GPU which nobody lists, it stays one process: all of
    them would use that GPU.

    Raises ConfigError for a number of processes that is none, CardTooSmall as `cards_for` does.
    """
    found, processes = cards_for(config), _processes(environment)
    device = config.model.device
    computes_here = device == "cpu" or (device == "auto" and version("torch").endswith("+cpu"))
    if found or not computes_here or config.engine.kind == "vllm" or processes == 1:
        return found
    return [None] * processes


def _processes(environment: Mapping[str, str]) -> int:
    text = environment.get(PROCESSES, "1")
    with suppress(ValueError):
        if (count := int(text)) >= 1:
            return count
    raise ConfigError(f"{PROCESSES}={text}: give how many processes may compute at the same time, such as 2")
