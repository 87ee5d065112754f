"""Check that this machine can run a configuration, before anything is written. Faults are reported in one line."""

import math
import os
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import version

from flows import cards
from flows.backend import Backend
from flows.cards import Card
from flows.config import PROJECT, ConfigError, RunConfig, check_operators
from flows.plan.estimate import stored_bytes, too_small
from flows.run.held_adapters import held_by_process
from flows.run.retention import check_room
from flows.run.run import Run
from flows.storage import open_store

PROCESSES = "POPULORA_PROCESSES"
"""How many processes of a run may compute parts of a stage on a CPU. It belongs to the machine: no bytes of a run change."""
MOST_PROCESSES = 1024
HOURS = "POPULORA_STAGE_HOURS"
DEFAULT_HOURS = 24.0
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


class CardTooSmall(ConfigError):
    """A card of this machine is smaller than the run's plan."""


def check(
    config: RunConfig,
    store: str,
    run_id: str,
    gpu_elsewhere: bool = False,
    model_elsewhere: bool = False,
    sandbox_elsewhere: bool = False,
) -> None:
    """Raise ConfigError, SandboxUnavailable or StoreRefused for faults that a run on this machine would meet later.

    Cards may be on other machines; with a work pool for stages, the model or the sandbox may be there, too. `start` checks the
    model where it is.
    """
    if Run(open_store(store), run_id).history.description() is None:  # an older run may have operators that are refused now
        check_operators(config)
    check_machine(config, gpu_elsewhere)
    backend = Backend(config)
    try:
        if not (model_elsewhere or sandbox_elsewhere):
            backend.check_run()
        else:
            backend.check_names()
            if not model_elsewhere:
                backend.check_model()
    finally:
        backend.close()
    check_room(open_store(store), {run_id: stored_bytes(config)})


def check_machine(config: RunConfig, gpu_elsewhere: bool = False) -> None:
    """Raise ConfigError for a card or an interpreter of vLLM that is not here, and for wrong variables of the environment.

    With `gpu_elsewhere`, other machines generate and train.
    """
    processes()
    held_by_process()
    stage_hours()
    if not DEVICE.fullmatch(config.model.device):
        raise ConfigError(f"model.device: {config.model.device!r}; give auto, cpu, cuda, or a card such as cuda:1")
    device, _, number = config.model.device.partition(":")
    if config.engine.kind == "vllm" and number:
        raise ConfigError(f"model.device: vLLM uses the first visible card: set it to {device}, with {cards.VISIBLE}={number}")
    if not gpu_elsewhere:
        _check_interpreter(config)
        if device == "cuda":
            _check_card(config.model.device, int(number or 0))


def _check_interpreter(config: RunConfig) -> None:
    python = config.engine.python
    if config.engine.kind == "vllm" and shutil.which(python if os.sep not in python else str(PROJECT / python)) is None:
        raise ConfigError(
            f"engine.python: {python} is not a program on this machine; run make vllm, or give the Python of an environment that "
            "has vLLM"
        )


def _check_card(device: str, number: int) -> None:
    found = len(cards.cards())
    if not found and not _unlisted_gpu():
        raise ConfigError(
            f"model.device: {device} was requested, but no NVIDIA GPU is visible on this machine; "
            "choose auto or cpu, or place these stages in the pool gpu"
        )
    if found <= number and found:
        raise ConfigError(f"model.device: {device} was requested, but the last visible GPU is cuda:{found - 1}")


def _unlisted_gpu() -> bool:
    """Return whether torch sees a GPU where there is no nvidia-smi to list it."""
    from stages.core.engines.precision import on_gpu  # noqa: PLC0415

    return shutil.which("nvidia-smi") is None and on_gpu("auto")


def processes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processes of a run may compute on a CPU. Raises ConfigError for what is not a number from 1 to 1024."""
    text = environment.get(PROCESSES, "1")
    if text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_PROCESSES)) and 1 <= int(text) <= MOST_PROCESSES:
        return int(text)
    raise ConfigError(f"{PROCESSES}={text}: give how many processes may compute at the same time, such as 2")


def stage_hours() -> float:
    """Return how long a stage may take, from the environment. Raises ConfigError."""
    text = os.environ.get(HOURS, str(DEFAULT_HOURS))
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < math.inf:
        raise ConfigError(f"{HOURS}={text}: give the hours that a stage may take, such as {DEFAULT_HOURS:.0f}")
    return hours


def cards_for(config: RunConfig) -> list[Card]:
    """Return the cards of this machine to which the run's processes are pinned; none where it runs on the CPU.

    Raises CardTooSmall for a card that is smaller than the run's plan, and names those that are not. With `auto` and the engine
    that also computes on a CPU, such cards are left out if there are others, or if torch was built without CUDA.
    """
    found = cards.usable(config.model.device)
    lacking = {card: lack for card in found if card.memory_mb and (lack := too_small(config, card.memory_mb * 2.0**20))}
    may_choose = config.model.device == "auto" and config.engine.kind == "transformers"
    if may_choose and (len(lacking) < len(found) or version("torch").endswith("+cpu")):
        return [card for card in found if card not in lacking]
    if lacking:
        card, lack = next(iter(lacking.items()))
        others = ",".join(one.name for one in found if one not in lacking)
        lower = "lower engine.batch_tokens, learning.micro_batch_tokens or learning.recompute_above"
        lower += ", or set model.device=cpu" if may_choose else ""
        remedy = f"use the others: {cards.VISIBLE}={others}" if others else lower
        raise CardTooSmall(f"{card} of this machine has {card.memory_mb / 1024:.1f} GiB, but {lack}; {remedy}")
    return found
