"""Random adapters for the check, strong enough that one taken for another shows, and not so strong that rounding does.

How much a B of a given size changes a model depends on the model, so the size is found by measuring: what engine and trainer
differ by through rounding grows with the effect (7B of random weights on a GPU, mean drift 0.055 where a wrong adapter drifts
by 1.05 nats a token; 1.5B: 0.018 and 0.56).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stages.core.engines.agreement import Scorer, probe
from stages.core.lora.adapter import Adapter
from stages.core.training.protocol import Drift

SCALE = 0.03  # standard deviation of B at first
WANTED, ENOUGH = 0.5, (0.25, 1.0)  # nats a token by which an adapter taken for another drifts; between these B stays as it is
ROUNDS, LARGEST_STEP = 8, 30.0


def random_adapters(fresh: Adapter, count: int) -> dict[str, Adapter]:
    """Return `a0`, `a1`, …: the start's A, and B drawn from a normal distribution of width `SCALE`."""
    found = {}
    for number in range(count):
        rng = np.random.default_rng(number)
        weights = {
            name: rng.normal(0, SCALE, array.shape).astype(np.float32) if "lora_B" in name else array
            for name, array in fresh.weights.items()
        }
        found[f"a{number}"] = Adapter(weights, {}, 0)
    return found


def scaled(adapters: Mapping[str, Adapter], factor: float) -> dict[str, Adapter]:
    """Return the adapters with B times `factor`, and so their whole effect on the weights."""
    factor32 = np.float32(factor)
    return {
        adapter_id: Adapter({name: array * factor32 if "lora_B" in name else array for name, array in one.weights.items()}, {}, 0)
        for adapter_id, one in adapters.items()
    }


def drift_of_neighbours(engine: Any, scorer: Scorer, adapters: Mapping[str, Adapter], temperature: float) -> dict[str, Drift]:
    """Return each adapter's drift if the engine had served its neighbour under its name."""
    names = list(adapters)
    claimed = dict(zip(names, [adapters[name] for name in (*names[1:], names[0])], strict=True))
    return scorer.drift(claimed, probe(engine, claimed, temperature))


def strong_enough(adapters: Mapping[str, Adapter], effect_of: Callable[[Mapping[str, Adapter]], float]) -> Mapping[str, Adapter]:
    """Return the adapters with B scaled until `effect_of`, the least drift of a wrong one, is `ENOUGH`, or the last of ROUNDS.

    The effect grows with B, by how much is unknown: proportionally until it was once too small and once too large, then between.
    One adapter alone has no neighbour to differ from and stays as it is.
    """
    if len(adapters) == 1:
        return adapters
    (least, most), factor, weak, strong = ENOUGH, 1.0, 0.0, float("inf")
    for _ in range(ROUNDS):
        tried = scaled(adapters, factor)
        effect = effect_of(tried)
        if least <= effect <= most:
            break
        if effect < least:
            weak = factor
            further = factor * min(LARGEST_STEP, WANTED / effect if effect > 0 else LARGEST_STEP)
        else:  # also where an effect is not finite
            strong = factor
            further = factor * max(1 / LARGEST_STEP, WANTED / effect if effect < float("inf") else 0.0)
        factor = further if weak == 0 or strong == float("inf") else (weak * strong) ** 0.5
    return tried
