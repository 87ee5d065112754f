"""An evolution strategy on one adapter: perturbed copies, their fitness, and the step. Pure.

    theta_i = theta + sigma e_i          e_2j ~ N(0, 1), e_2j+1 = -e_2j (antithetic pairs), i = 0 ... n - 1
    theta  <- theta + learning_rate / (n sigma) * sum_i f_i e_i

(Salimans et al. 2017, arXiv 1703.03864.) f_i is the mean reward of what copy i wrote, standardised over the copies as in Qiu et
al. 2025 (arXiv 2509.24372), who train language models so. Deviations from the latter: copies come in antithetic pairs, as in the
former; the noise lies on both LoRA factors instead of all weights; and answers are sampled, not greedy. The default step is the
latter's, half of sigma per unit of fitness.

sigma is absolute, as in both sources and as AdamW's step on the same factors: every entry gets noise of one size. A size relative
to a matrix cannot start, because B is zero in every new adapter, and noise on A alone changes nothing while B is zero.

The noise is a function of its key (seed, generation, adapter, pair), so that it is drawn where it is needed and never stored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stages.core.lora.adapter import Adapter, Weights
from stages.core.randomness import generator

EQUAL = 1e-12
"""Mean rewards that differ by no more are the same (a share of the largest, if that is above 1): the sums of equal rewards in
another order differ by rounding."""


@dataclass(frozen=True)
class Strategy:
    """Number of copies per adapter (even), standard deviation of their noise, and learning rate."""

    population: int
    sigma: float
    learning_rate: float


@dataclass(frozen=True)
class NoiseKey:
    """What an adapter's noise is drawn from in one generation."""

    seed: int
    generation: int
    adapter_id: str


def copy_id(adapter_id: str, copy: int) -> str:
    """Return the name under which an engine serves a copy, such as `s0-g0007+03`."""
    return f"{adapter_id}+{copy:02d}"


def noise(weights: Weights, key: NoiseKey, pair: int) -> Weights:
    """Return e_2j of a pair j: standard normal, of the shapes of the weights. Equal keys give equal noise."""
    rng = generator(key.seed, key.generation, "strategy", key.adapter_id, pair)
    return {name: rng.standard_normal(weights[name].shape, np.float32) for name in sorted(weights)}


def perturbed(weights: Weights, strategy: Strategy, key: NoiseKey, copy: int) -> Weights:
    """Return the weights of one copy: the noise of its pair is added for an even number, subtracted for an odd one."""
    drawn = noise(weights, key, copy // 2)
    scale = np.float32(strategy.sigma if copy % 2 == 0 else -strategy.sigma)
    return {name: weights[name] + scale * drawn[name] for name in drawn}


def mean_rewards(rewards: Sequence[float], population: int) -> list[float]:
    """Return each copy's mean reward, from the rewards of an adapter's completions in one role, in order.

    Raise ValueError unless all copies wrote equally many: the prompts that a copy gets must be those of every other.
    """
    if len(rewards) % population:
        raise ValueError(f"{len(rewards)} completions cannot be dealt out evenly over {population} copies")
    each = len(rewards) // population
    return [math.fsum(rewards[copy::population]) / each for copy in range(population)] if each else []


def fitness(roles: Mapping[str, Sequence[float]], population: int) -> list[float]:
    """Return f_i: mean rewards with mean 0 and variance 1 over the copies, averaged over the roles that an adapter played.

    `roles` maps a role to the rewards of its completions. All zero if all copies earned the same.
    """
    scores_RN = [_standardised(means) for rewards in roles.values() if (means := mean_rewards(rewards, population))]
    return [math.fsum(scores) / len(scores_RN) for scores in zip(*scores_RN, strict=True)] if scores_RN else [0.0] * population


def _standardised(means: Sequence[float]) -> list[float]:
    middle = math.fsum(means) / len(means)
    spread = math.sqrt(math.fsum((mean - middle) ** 2 for mean in means) / len(means))
    if max(means) - min(means) <= EQUAL * max(1.0, *map(abs, means)):
        return [0.0] * len(means)
    return [(mean - middle) / spread for mean in means]


def stepped(adapter: Adapter, scores: Sequence[float], strategy: Strategy, key: NoiseKey) -> Adapter:
    """Return the adapter after its step; the step has no moments. `scores` are the copies' fitness."""
    rate = strategy.learning_rate / (strategy.population * strategy.sigma)
    weights = dict(adapter.weights)
    for pair in range(strategy.population // 2):
        drawn = noise(adapter.weights, key, pair)
        scale = np.float32(rate * (scores[2 * pair] - scores[2 * pair + 1]))
        weights = {name: weights[name] + scale * drawn[name] for name in weights}
    return Adapter(weights, {}, adapter.step + 1)
