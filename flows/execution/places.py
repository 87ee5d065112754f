"""Where steps of a run can compute at the same time on this machine: on its cards, or in several processes on its processor."""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from flows.cards import Card
from flows.config import RunConfig
from flows.execution.preflight import PROCESSES, cards_for, processes


def places_for(config: RunConfig, environment: Mapping[str, str] = os.environ, torch: str = "") -> list[Card] | list[None]:
    """Return the machine's cards; on a CPU, a None for each process that may work there, or nothing where that is one.

    vLLM uses all cores by itself. With `auto` and a torch (its version) that could use a GPU which `nvidia-smi` does not list, a
    run stays one process: several would share that GPU.

    Raises ConfigError as `processes` does, CardTooSmall as `cards_for` does.
    """
    found, count = cards_for(config), processes(environment)
    device = config.model.device
    computes_here = device == "cpu" or (device == "auto" and (torch or version("torch")).endswith("+cpu"))
    if found or not computes_here or config.engine.kind == "vllm" or count == 1:
        return found
    return [None] * count


def spare_places(config: RunConfig, places: Sequence[Card | None]) -> str:
    """Return that a run on a CPU may use several processes but has no parts for them; empty if it does not, or has parts."""
    rule = config.learning
    if None not in places or config.engine.shards > 1 or 0 < rule.adapters_per_group < config.adapters:
        return ""
    return (
        f"{PROCESSES}={len(places)}: no stage of this run has parts, so one process computes; "
        f"engine.shards={len(places)} would make parts"
    )
