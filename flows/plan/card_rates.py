"""Rates of a card, of two CPU cores, and of the link to the store, from which the plan computes.

Measured on one H200: the matrix rate of an update and the step of the transformers engine (docs/scaling.md). All else is assumed.
"""

from dataclasses import dataclass

BYTES_PER_WEIGHT = 12  # stored for each trained parameter: fp32 weights and two moments
HOST_CARDS = 8  # cards of one machine, which share its link to the store


@dataclass(frozen=True)
class Card:
    """One device: sustained matrix rate in FLOP/s, memory bandwidth and link to the store in bytes/s, and seconds of a decoding
    step beyond both, with vLLM and with the transformers engine."""

    name: str
    memory: float
    flops: float
    bandwidth: float
    vllm_step: float
    own_step: float
    link: float = 1e9
    swap: float = 7.0  # seconds in which vLLM falls asleep and wakes, once a generation

    def rates(self, engine: str) -> str:
        """Return the rates that a plan with this engine rests on."""
        return (
            f"{self.name}: {self.flops / 1e12:g} TFLOP/s, {self.bandwidth / 1e9:,.0f} GB/s of memory, "
            f"{1000 * self.step(engine):g} ms more a decoding step, {self.link / 1e9:g} GB/s to the store"
        )

    def step(self, engine: str) -> float:
        """Return the seconds that a decoding step of this engine takes beyond computing and moving."""
        return self.vllm_step if engine == "vllm" else self.own_step


CARDS = (
    Card("24 GB", 24e9, 36e12, 0.8e12, 0.010, 0.040),
    Card("80 GB", 80e9, 217e12, 2.5e12, 0.008, 0.040),
)
"""A consumer's card and a data centre's: 22 % of an RTX 4090's and an H100's dense bfloat16 rates, as measured for an update, and
three quarters of their bandwidth."""
TWO_CORES = {
    "float32": Card("two CPU cores", 0, 100e9, 20e9, 0.004, 0.004, 0.5e9, 0.0),
    "bfloat16": Card("two CPU cores", 0, 400e9, 20e9, 0.004, 0.004, 0.5e9, 0.0),
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
