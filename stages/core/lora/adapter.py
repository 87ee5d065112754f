"""An adapter as a value: its weights, optimizer moments and step count."""

from dataclasses import dataclass

import numpy as np

Weights = dict[str, np.ndarray]
"""PEFT parameter name -> float32 array, e.g. `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` [R, I]."""


@dataclass(frozen=True)
class Adapter:
    """Weights, AdamW moments and step count as one immutable unit.

    `moments` holds `exp_avg.<name>` and `exp_avg_sq.<name>` for every weight (empty for a fresh adapter, which means zeros).
    """

    weights: Weights
    moments: Weights
    step: int

    def finite(self) -> bool:
        """Return whether all weights and moments are finite numbers."""
        return all(np.isfinite(array).all() for arrays in (self.weights, self.moments) for array in arrays.values())


@dataclass(frozen=True)
class Gradient:
    """One part's share of an adapter's gradient: PEFT parameter name -> float32 array, and the tokens of its micro-batches."""

    values: Weights
    micro_batch_tokens: int
