"""The trainer: take one optimizer step for each adapter of a group, or compute the gradients of a share of the rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from stages.core.lora.adapter import Adapter, Gradient


@dataclass(frozen=True)
class Update:
    """Result of one optimizer step: the adapter after it, and its measurements by name.

    `stepped` is False if the adapter took no step (no samples, no advantage and equal centred rewards, or non-finite gradients);
    `adapter` is then unchanged.
    """

    adapter: Adapter
    stepped: bool
    metrics: dict[str, float]


@dataclass(frozen=True)
class Drift:
    """|log-probability of the trainer minus that of the engine| over an adapter's tokens, in nats: their mean and the largest."""

    mean: float
    largest: float


class Updater(Protocol):
    """Takes the step of each adapter of a group."""

    def update(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
        """Take one step for each adapter in `adapters` on its own rows of SAMPLES (column `adapter_id`)."""
        ...


class Trainer(Updater, Protocol):
    """Updates adapters along their policy gradients, all in one pass."""

    def gradients(
        self, adapters: Mapping[str, Adapter], samples: pa.Table, tokens: Mapping[str, int]
    ) -> tuple[dict[str, Gradient], pa.Table]:
        """Return each adapter's gradient on these rows, divided by its response tokens in `tokens`, and TOKENS of the rows."""
        ...


class Stepper(Protocol):
    """Takes the step of an adapter whose gradient was computed in parts. Needs no model."""

    def step(self, adapter: Adapter, gradients: Iterable[Gradient], tokens: pa.Table, counts: Mapping[str, float]) -> Update:
        """Step on the sum of the gradients, added in their order. `tokens` are its TOKENS, `counts` those of its samples."""
        ...
