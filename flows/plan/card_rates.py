"""Rates of a card, of two CPU cores, and of the link to the store, from which the plan computes. None was measured on a GPU."""

from dataclasses import dataclass

BYTES_PER_WEIGHT = 12  # stored for each trained parameter: fp32 weights and two moments
HOST_CARDS = 8  # cards of one machine, which share its link to the store


@dataclass(frozen=True)
class Card:
    """One device: sustained matrix rate in FLOP/s, memory bandwidth and link to the store in bytes/s, seconds of a decoding step
    beyond both."""

    name: str
    memory: float
    flops: float
    bandwidth: float
    step: float
    link: float = 1e9
    swap: float = 7.0  # seconds in which vLLM falls asleep and wakes, once a generation

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.flops / 1e12:g} TFLOP/s, {self.bandwidth / 1e9:,.0f} GB/s of memory, "
            f"{1000 * self.step:g} ms more a decoding step, {self.link / 1e9:g} GB/s to the store"
        )


CARDS = (
    Card("24 GB", 24e9, 60e12, 0.8e12, 0.010),
    Card("80 GB", 80e9, 350e12, 2.5e12, 0.008),
)
"""A consumer's card and a data centre's: a third of an H100's dense bfloat16 rate and three quarters of its bandwidth."""
TWO_CORES = {
    "float32": Card("two CPU cores", 0, 100e9, 20e9, 0.004, 0.5e9, 0.0),
    "bfloat16": Card("two CPU cores", 0, 400e9, 20e9, 0.004, 0.5e9, 0.0),
}
"""Two cores with AVX-512, by the type in which they compute."""


def rates_of(memory: float | None, dtype: str) -> Card:
    """Return the rates that the plan assumes of a card with so many bytes, or (None) of a processor computing in this type.

    A card between two of the plan's counts as the smaller one.
    """
    if memory is None:
        return TWO_CORES[dtype]
    smaller = [card for card in CARDS if card.memory <= 1.05 * memory]  # drivers keep some of it to themselves
    return max(smaller or CARDS[:1], key=lambda card: card.memory)
