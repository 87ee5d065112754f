"""The step of an evolution strategy, in the place of a policy gradient: no pass over the samples, only their rewards.

Row k of an adapter in a role was written by its copy k mod n (stages.core.engines.dealt). Rows name the adapter that was
perturbed; with the seed, the generation and the strategy, it determines the weights that wrote them.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from stages.core.lora.adapter import Adapter
from stages.core.lora.strategy import NoiseKey, Strategy, fitness, mean_rewards, stepped
from stages.core.training.packing import check_samples, count
from stages.core.training.protocol import Update


class StrategyUpdater:
    """Implements `Updater` by an evolution strategy."""

    def __init__(self, strategy: Strategy, seed: int, generation: int) -> None:
        self._strategy, self._seed, self._generation = strategy, seed, generation

    def update(self, adapters: Mapping[str, Adapter], samples: pa.Table) -> dict[str, Update]:
        """Take one step for each adapter on the rewards of its own rows.

        It takes none if all its copies earned the same, or if weights would not be finite after it.

        Raise ValueError for rows of other or stale weights, or if an adapter's copies wrote unequal numbers of rows.
        """
        check_samples(adapters, samples)
        return {adapter_id: self._step(adapter_id, adapter, samples) for adapter_id, adapter in adapters.items()}

    def _step(self, adapter_id: str, adapter: Adapter, samples: pa.Table) -> Update:
        roles: dict[str, list[float]] = {}
        for row_id, role, reward in zip(*(samples[name].to_pylist() for name in ("adapter_id", "role", "reward")), strict=True):
            if row_id == adapter_id:
                roles.setdefault(role, []).append(reward)
        counts = count(samples, adapter_id)
        scores = fitness(roles, self._strategy.population)
        spread = {f"copies_spread_{role}": _spread(rewards, self._strategy.population) for role, rewards in roles.items()}
        if not any(scores):
            return Update(adapter, False, counts | spread | {"nonfinite": 0.0})
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            moved = stepped(adapter, scores, self._strategy, NoiseKey(self._seed, self._generation, adapter_id))
        if not moved.finite():
            return Update(adapter, False, counts | spread | {"nonfinite": 1.0})
        return Update(moved, True, counts | spread | {"nonfinite": 0.0, "step_rms": _rms(adapter, moved)})


def _spread(rewards: list[float], population: int) -> float:
    """Return the standard deviation of the copies' mean rewards."""
    return float(np.std(mean_rewards(rewards, population)))


def _rms(before: Adapter, after: Adapter) -> float:
    """Return the root mean square of the step over all parameters."""
    moved = np.concatenate([(after.weights[name] - before.weights[name]).reshape(-1) for name in sorted(before.weights)])
    return float(np.sqrt(np.mean(np.square(moved, dtype=np.float64))))
