"""What `learning.gradient_checkpointing = "auto"` means for a run: settled when it begins, and kept in its run.json."""

from collections.abc import Mapping
from typing import Any

from flows.cards import cards
from flows.config import RunConfig
from flows.execution.preflight import cards_for
from flows.plan.decoder_shape import shape_of
from flows.plan.memory_plan import settled_for


def settled(config: RunConfig, known: Mapping[str, Any] | None = None, elsewhere: bool = False) -> RunConfig:
    """Return the configuration with recomputation settled: its own value, else the run's, else what the plan says of the card.

    `known` is the run.json of a run that exists; a resumed run keeps what it began with, whatever card it is on now. The plan is
    that of the smallest card of this machine. Where cards are `elsewhere`, or nothing is known of card or model, activations are
    recomputed: they fit then. Raises ConfigError for a card that is too small.
    """
    if config.learning.gradient_checkpointing != "auto":
        return config
    if known is not None:
        meant = known["config"].get("learning", {})
        return config.recomputing(meant.get("gradient_checkpointing", False), meant.get("recompute_above", 0))
    if config.model.device == "cpu":
        return config.recomputing(False)
    if elsewhere:
        return config.recomputing(True)
    found = cards() if ":" in config.model.device else cards_for(config)
    shape, memory = shape_of(config.model.name), min((card.memory_mb for card in found), default=0)
    if not found or (shape and memory):
        return settled_for(config, shape, memory * 2.0**20) if shape else config.recomputing(False)
    return config.recomputing(True)
