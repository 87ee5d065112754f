"""Where steps of a run can compute at the same time on this machine: on its cards, or in several processes on its processor."""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from math import ceil

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


def spare_places(config: RunConfig, places: Sequence[Card | None], environment: Mapping[str, str] = os.environ) -> str:
    """Return why rollouts do not use all processes that a run may use on a CPU; empty if they do, or the run may use one.

    Raises ConfigError as `processes` does.
    """
    count = processes(environment)
    if count == 1:
        return ""
    if None not in places:
        where = "model.device=cpu, or auto with a CPU build of torch and no GPU"
        return f"{PROCESSES}={count} is not used: it counts for the transformers engine with {where}"
    rollouts, update = config.engine.shards, _update_parts(config)
    if rollouts >= count:
        return ""
    if update >= count:
        used = f"only the update of this run has {update} parts, other stages have {rollouts}"
    elif max(rollouts, update) == 1:
        used = "no stage of this run has parts, so one process computes"
    else:
        used = f"stages of this run have {max(rollouts, update)} parts"
    return f"{PROCESSES}={count}: {used}; a run that starts with engine.shards={count} has up to {count} parts"


def _update_parts(config: RunConfig) -> int:
    """Return the parts of an update that is divided by adapters. Shares of its rows are as many as the shards of the engine."""
    rule, members = config.learning, config.population
    trained = (members.teachers if rule.frozen != "teachers" else 0) + (members.students if rule.frozen != "students" else 0)
    if config.mode == "single":
        trained = 1
    return ceil(trained / rule.adapters_per_group) if rule.adapters_per_group and rule.divide != "rows" else 1
