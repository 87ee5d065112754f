"""How an update is cut into parts, by arithmetic: by adapters, or by rows, whichever is expected to take fewer seconds.

By adapters, the busiest card holds an update back: one adapter is never on two cards. By rows, all cards have equal work, but
each part writes the gradients of its rows to the store, and one process reads them all and takes the steps. The rates are those
of the plan (card_rates.py), not of the machine, so that a run decides alike wherever it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from flows.config import RunConfig
from flows.plan.card_rates import BYTES_PER_WEIGHT, CARDS, HOST_CARDS, TWO_CORES, Card
from flows.plan.decoder_shape import DecoderShape, adapter_parameters
from flows.plan.update_flops import token_flops

GRADIENT_BYTES = 4  # of a parameter's gradient, in fp32; as many as its weight


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of an update: of arithmetic, and of the link to the store."""

    computed: float
    stored: float

    @property
    def total(self) -> float:
        """The sum: a part reads before it computes, and writes after."""
        return self.computed + self.stored


def shares_of(config: RunConfig, shape: DecoderShape | None, groups: Sequence[float], adapters: int) -> int:
    """Return into how many shares of the rows to cut an update with these adapter groups, given by their tokens; 0: by adapters.

    Where the configuration leaves the choice: by rows if that takes fewer seconds on `engine.shards` cards, in the number of
    shares that takes the fewest. One shard, or a model of unknown dimensions, is cut by adapters.
    """
    each = token_flops(config, shape) if shape else 1.0
    return shares_of_flops(config, shape, [each * tokens for tokens in groups], adapters)


def shares_of_flops(config: RunConfig, shape: DecoderShape | None, groups: Sequence[float], adapters: int) -> int:
    """Return what `shares_of` returns, for groups that are given by their FLOP."""
    chosen, shards = config.learning.divide, config.engine.shards
    if chosen != "auto":
        return shards if chosen == "rows" else 0
    if shape is None or shards < 2:
        return 0
    card = TWO_CORES[config.model.dtype] if config.model.device == "cpu" else CARDS[-1]
    seconds = {0: adapters_time(config, shape, card, shards, groups, adapters).total}
    seconds |= {parts: rows_time(config, shape, card, parts, sum(groups), adapters).total for parts in range(2, shards + 1)}
    return min(seconds, key=seconds.__getitem__)


def adapters_time(
    config: RunConfig, shape: DecoderShape, card: Card, cards: int, groups: Sequence[float], adapters: int
) -> UpdateTime:
    """Return the seconds by adapters of groups given by their FLOP: the busiest card's, and those to read and write adapters.

    Adapters and moments are read before and written after.
    """
    used = min(cards, len(groups))
    busy = [0.0] * max(1, used)
    for flops in groups:
        busy[busy.index(min(busy))] += flops
    stored = 2 * BYTES_PER_WEIGHT * adapters * _parameters(config, shape)
    return UpdateTime(max(busy) / card.flops, stored / (card.link * _machines(used)))


def rows_time(config: RunConfig, shape: DecoderShape, card: Card, parts: int, flops: float, adapters: int) -> UpdateTime:
    """Return the seconds by rows of so many FLOP: an equal share a card, and what the parts and the join read and write.

    Each part reads weights and writes gradients, over the links of all machines. The join reads the gradients, and reads and
    writes adapters and moments, over one. Shares are contiguous: each but the first adds at most one (part, adapter) pair.
    """
    pairs, one = min(adapters * parts, adapters + parts - 1), float(_parameters(config, shape))
    spread = 2 * GRADIENT_BYTES * pairs * one / (card.link * _machines(parts))
    joined = (GRADIENT_BYTES * pairs + 2 * BYTES_PER_WEIGHT * adapters) * one / card.link
    return UpdateTime(flops / parts / card.flops, spread + joined)


def _parameters(config: RunConfig, shape: DecoderShape) -> int:
    return adapter_parameters(shape, config.model.targets, config.model.rank)


def _machines(cards: int) -> int:
    return max(1, ceil(cards / HOST_CARDS))
