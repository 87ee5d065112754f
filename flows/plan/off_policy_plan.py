"""Seconds of a generation whose update runs beside its rollouts (`learning.off_policy_steps`), by arithmetic.

Cards can be shared: rollouts take all of them, and the update fills the time in which the sandbox and the scheduler keep them
waiting. Or they can be split: `engine.shards` of them roll out, at most half, and as many shares of the update are computed on
the others at the same time. Split cards pay where a rollout waits for its longest completion, which more cards do not shorten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flows.config import RunConfig
from flows.plan.card_rates import Card
from flows.plan.decoder_shape import DecoderShape
from flows.plan.stage_plan import StageTime, generation_seconds, spread, stage_times


@dataclass(frozen=True)
class Division:
    """The seconds of a generation, and how many of the cards roll out (all of them: they also train)."""

    seconds: float
    shards: int


def best_division(config: RunConfig, shape: DecoderShape, card: Card, cards: int, share: float = 1.0) -> Division:
    """Return the fastest way to use the cards. On one card, an update has nothing to run beside."""

    def times(count: int) -> list[StageTime]:
        return stage_times(spread(config, count), shape, card, count, share)

    if cards == 1:
        return Division(generation_seconds(times(1)), 1)
    counts = sorted({max(1, cards * part // 16) for part in range(1, 9)})
    split = [Division(_split_seconds(times(count)), count) for count in counts]
    return min([Division(shared_seconds(times(cards)), cards), *split], key=lambda division: division.seconds)


def shared_seconds(times: Sequence[StageTime]) -> float:
    """Return the seconds if all cards roll out and train.

    Not counted: what an update fills while the last completions of a rollout leave cards without work.
    """
    waiting = sum(time.seconds for time in times if time.limit in ("sandbox", "scheduling"))
    return generation_seconds(times) - min(waiting, _of(times, "update"))


def _split_seconds(times: Sequence[StageTime]) -> float:
    """Return the seconds if the cards of these stages roll out while as many others train."""
    alone, training = _of(times, "match", "rate"), _of(times, "update")
    return alone + max(generation_seconds(times) - alone - training, training)


def _of(times: Sequence[StageTime], *stages: str) -> float:
    return sum(time.seconds for time in times if time.stage in stages)
