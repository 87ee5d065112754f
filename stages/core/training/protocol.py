"""The trainer: takes one optimizer step for each adapter of a group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

Weights = dict[str, np.ndarray]
"""PEFT parameter name -> float32 array, e.g. `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` [R, I]."""


@dataclass(frozen=True)
class Adapter:
    """Weights, AdamW moments and step count: one unit, immutable.

    `moments` holds `exp_avg.<name>` and `exp_avg_sq.<name>` for every weight (empty for a fresh adapter, which means zeros).
    """

    weights: Weights
    moments: Weights
    step: int


@dataclass(frozen=True)
class Update:
    """What one optimizer step gave: the adapter after it, and its measurements by name.

    `stepped` is False when the adapter took no step (no samples, all centred rewards equal, or non-finite gradients); then
    `adapter` is the one given.
    """

    adapter: Adapter
    stepped: bool
    metrics: dict[str, float]


class Trainer(Protocol):
    """Moves adapters along their policy gradients."""

    def update(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
        """One step for every adapter in `adapters` on its own rows of SAMPLES (column `adapter_id`), all in one pass."""
        ...
