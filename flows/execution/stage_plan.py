"""Seconds of each stage of a generation, by arithmetic: `populora run --dry-run` prints them, docs/scaling.md tabulates them.

A roofline for each stage on a number of equal cards. A decoding step takes the longer of computing and of moving weights and
cache; an update takes its arithmetic; programs take turns in the sandbox; stored bytes take the link to the store. Each term is
governed by constants of this file; none was measured on a GPU. `limit` names what holds a stage back: where it is not the
cards' own speed, more cards do not help.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from flows.config import RunConfig
from flows.execution.decoder_shape import DecoderShape, adapter_parameters
from flows.execution.memory_plan import cache_bytes

ROWS = 256  # rows that vLLM decodes at once: max_rows of stages.core.engines.vllm_engine
PROMPTS = {"compact": (100, 60), "trace": (110, 60), "document": (700, 200), "chat": (600, 350), "azr": (1200, 700)}
"""Tokens of a teacher's and of a student's prompt, by style."""
SLOW_RUNS = 0.001  # share of program runs that end at their limit of processor time
RUN_SECONDS = 0.001  # of any other program run, in one container
STAGE_SECONDS = 0.3  # of a stage beside its work: scheduling, manifest, tables
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


@dataclass(frozen=True)
class StageTime:
    """A stage's seconds, and the term that holds it back."""

    stage: str
    seconds: float
    limit: str


@dataclass(frozen=True)
class Workload:
    """What a generation does: counts, and mean tokens of each completion and prompt."""

    proposals: int
    attempts: int
    groups: int  # of proposals that share a prompt; 0 where a generator writes them
    proposed: float
    answered: float
    asked: int  # tokens of a teacher's prompt
    posed: int  # tokens of a student's prompt

    @property
    def generated(self) -> float:
        """Generated tokens."""
        return self.proposals * self.proposed + self.attempts * self.answered

    @property
    def trained(self) -> float:
        """Positions of an update: completions, and each shared prompt once."""
        return self.generated + self.groups * self.asked + self.proposals * self.posed


def workload(config: RunConfig, share: float) -> Workload:
    """Return a generation's work if completions take that share of their limits on average and every proposal is valid."""
    proposals = config.matches * config.proposals_per_teacher
    return Workload(
        proposals,
        proposals * config.solve.attempts,
        ceil(proposals / config.propose.group_size) if config.population.teachers else 0,
        share * config.propose.max_new_tokens if config.population.teachers else 0.0,
        share * config.solve.max_new_tokens,
        *PROMPTS.get(config.model.style, PROMPTS["document"]),
    )


def stage_times(config: RunConfig, shape: DecoderShape, card: Card, cards: int, share: float = 1.0) -> list[StageTime]:
    """Return the seconds of each stage on that many equal cards, with completions of that share of their limits on average."""
    work = workload(config, share)
    decoder, longest = _Decoder(config, shape, card, cards), config.propose.max_new_tokens
    return [
        StageTime("match", STAGE_SECONDS, "scheduling"),
        decoder.time("propose", work.proposals, work.groups, work.proposed, longest, work.asked)
        if work.groups
        else StageTime("propose", STAGE_SECONDS, "scheduling"),
        _judged("verify", config, ceil(work.proposals * 2 * (2 + config.propose.num_inputs) / 3)),
        decoder.time("solve", work.attempts, work.proposals, work.answered, config.solve.max_new_tokens, work.posed),
        _judged("grade", config, ceil(work.attempts * (1 + config.propose.num_inputs) / 3)),
        StageTime("reward", STAGE_SECONDS, "scheduling"),
        _update(config, shape, card, cards, work.trained),
        StageTime("rate", STAGE_SECONDS, "scheduling"),
    ]


def generation_seconds(times: Sequence[StageTime]) -> float:
    """Return the seconds of a generation whose stages follow one another."""
    return sum(time.seconds for time in times)


class _Decoder:
    """One rollout stage on a number of cards."""

    def __init__(self, config: RunConfig, shape: DecoderShape, card: Card, cards: int) -> None:
        self.config, self.shape, self.card, self.cards = config, shape, card, cards
        self.width = 2 if config.model.dtype == "bfloat16" and card.flops > 100e9 else 4

    def time(self, stage: str, requests: int, prompts: int, mean: float, longest: int, prompt: int) -> StageTime:
        """Return a stage's seconds: reading its prompts, then the steps that the fullest card or the longest completion takes."""
        rows = ceil(requests / min(self.cards, requests))
        at_once = max(1, min(rows, self._capacity(prompt + longest)))
        reading = 2 * self.shape.parameters * prompt * ceil(prompts / min(self.cards, prompts)) / self.card.flops
        filled = rows * mean / at_once
        steps = max(filled, longest)
        live = rows * mean / steps  # rows of an average step
        computed = 2 * self.shape.parameters * rows * mean / self.card.flops
        moved = steps * self._bytes(live, prompt + mean / 2) / self.card.bandwidth
        total = STAGE_SECONDS + reading + max(computed, moved) + steps * self.card.step
        if self.config.engine.kind == "vllm" and self.config.model.device != "cpu":
            total += self.card.swap / 2
        if reading + computed > moved:
            return StageTime(stage, total, "arithmetic")
        return StageTime(stage, total, "longest completion" if longest > filled else "memory bandwidth")

    def _capacity(self, positions: int) -> int:
        """Rows that one card decodes at once."""
        if self.config.engine.kind == "transformers":
            return self.config.engine.batch_tokens // positions
        free = self.config.engine.memory_share * self.card.memory - self.shape.parameters * self.width
        return min(ROWS, int(free / (positions * cache_bytes(self.shape, self.width))))

    def _bytes(self, rows: float, context: float) -> float:
        """Bytes that a step moves: the weights, and the keys and values of its rows."""
        return self.shape.parameters * self.width + rows * context * cache_bytes(self.shape, self.width)


def _judged(stage: str, config: RunConfig, runs: int) -> StageTime:
    """Proposals run twice on each input, answers once: one input in two kinds of three and `num_inputs` in the third."""
    each = (1 - SLOW_RUNS) * RUN_SECONDS + SLOW_RUNS * config.sandbox.cpu_seconds
    return StageTime(stage, STAGE_SECONDS + runs * each / config.sandbox.containers, "sandbox")


def _update(config: RunConfig, shape: DecoderShape, card: Card, cards: int, positions: float) -> StageTime:
    """Forward and backward through a frozen base take four FLOP a parameter and position, and two more where it is recomputed."""
    members = config.adapters
    parts = ceil(members / (config.learning.adapters_per_group or members))
    used = min(cards, parts)
    computed = (6 if config.learning.gradient_checkpointing else 4) * shape.parameters * positions / card.flops
    stored = BYTES_PER_WEIGHT * members * adapter_parameters(shape, config.model.targets, config.model.rank)
    kept = 2 * stored / (card.link * ceil(used / HOST_CARDS))  # read before, written after
    rounds = ceil(parts / used) / parts
    seconds = STAGE_SECONDS + computed * rounds + kept
    if kept > computed * rounds:
        return StageTime("update", seconds, "store")
    return StageTime("update", seconds, "adapter groups" if cards > parts else "arithmetic")


def spread(config: RunConfig, cards: int) -> RunConfig:
    """Return the configuration cut for that many cards: a shard a card, and adapter groups as small as that needs."""
    members = config.adapters
    engine = config.engine.model_copy(update={"shards": cards})
    learning = config.learning.model_copy(update={"adapters_per_group": ceil(members / cards)})
    return config.model_copy(update={"engine": engine, "learning": learning})
