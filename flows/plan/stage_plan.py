"""Seconds of each stage of a generation, by arithmetic: `populora run --dry-run` prints them, docs/scaling.md tabulates them.

A roofline for each stage on a number of equal cards. A decoding step takes the longer of computing and of moving weights and
cache; an update takes its arithmetic; programs take turns in the sandbox; stored bytes take the link to the store. Each term is
governed by constants of this file, which are assumed, and of card_rates.py, two of which were measured. `limit` names what holds
a stage back: where it is not the cards' own speed, more cards do not help.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from flows.config import RunConfig
from flows.plan.card_rates import HOST_CARDS, Card
from flows.plan.decoder_shape import DecoderShape
from flows.plan.memory_plan import cache_bytes, settled_for
from flows.plan.prompt_tokens import prompt_tokens
from flows.plan.update_cut import adapters_time, rows_time, shares_of_flops
from flows.plan.update_flops import Rows, packed, update_flops
from stages.core.prompts.styles import Kind

SLOW_RUNS = 0.001  # share of program runs that end at their limit of processor time
RUN_SECONDS = 0.001  # of any other program run, in one container
STAGE_SECONDS = 0.3  # of a stage beside its work: scheduling, manifest, tables


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
    tasks: int  # posed, new or again
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


def workload(config: RunConfig, share: float) -> Workload:
    """Return a generation's work if completions take that share of their limits on average and every proposal is valid."""
    proposals, rule = config.matches * config.proposals_per_teacher, config.solve
    again = round(proposals * rule.replays_per_task)
    return Workload(
        proposals,
        proposals + again,
        proposals * rule.attempts + again * (rule.trained_attempts or rule.attempts),
        ceil(proposals / config.propose.group_size) if config.population.teachers else 0,
        share * config.propose.max_new_tokens if config.population.teachers else 0.0,
        share * config.solve.max_new_tokens,
        *prompt_tokens(config),
    )


def update_rows(config: RunConfig, work: Workload) -> list[Rows]:
    """Return the rows of an update: the proposals of a group behind their prompt, and the attempts that train behind theirs."""
    rule, limit = config.learning, config.learning.row_tokens
    attempts = config.solve.trained_attempts or config.solve.attempts
    written = packed(work.groups, work.asked, config.propose.group_size, work.proposed, limit)
    solved = packed(work.tasks, work.posed, attempts, work.answered, limit)
    return (written if rule.frozen != "teachers" else []) + (solved if rule.frozen != "students" else [])


def stage_times(config: RunConfig, shape: DecoderShape, card: Card, cards: int, share: float = 1.0) -> list[StageTime]:
    """Return the seconds of each stage on that many equal cards, with completions of that share of their limits on average."""
    work, config = workload(config, share), settled_for(config, shape, card.memory)
    decoder, longest = _Decoder(config, shape, card, cards), config.propose.max_new_tokens
    propose = StageTime("propose", STAGE_SECONDS, "scheduling")
    if work.groups:
        propose = decoder.time("propose", work.proposals, work.groups, work.proposed, longest, work.asked)
    solve = decoder.time("solve", work.attempts, work.tasks, work.answered, config.solve.max_new_tokens, work.posed)
    sandbox = _Sandbox(config, card, cards)
    verified = ceil(work.proposals * 2 * _runs(config, deduction=1, abduction=1))
    graded = ceil(work.attempts * _runs(config, deduction=0, abduction=1))
    return [
        StageTime("match", STAGE_SECONDS, "scheduling"),
        propose,
        sandbox.time("verify", verified, propose if work.groups else None),
        solve,
        sandbox.time("grade", graded, solve),
        StageTime("reward", STAGE_SECONDS, "scheduling"),
        _update(config, shape, card, cards, update_flops(config, shape, update_rows(config, work)).total),
        StageTime("rate", STAGE_SECONDS, "scheduling"),
    ]


def rollout_seconds(
    config: RunConfig, shape: DecoderShape, card: Card, requests: int, prompts: int, tokens: int, prompt: int
) -> float:
    """Return the seconds in which one card that is awake writes so many completions of `tokens` tokens each to these prompts."""
    decoder = _Decoder(config, shape, card, 1)
    return decoder.time("", requests, prompts, tokens, tokens, prompt).seconds - STAGE_SECONDS - decoder.waking


def generation_seconds(times: Sequence[StageTime]) -> float:
    """Return the seconds of a generation whose stages follow one another."""
    return sum(time.seconds for time in times)


def _runs(config: RunConfig, deduction: int, abduction: int) -> Fraction:
    """Return the mean number of program runs over the kinds that are written; an induction is run on every input."""
    runs = {Kind.DEDUCTION: deduction, Kind.ABDUCTION: abduction, Kind.INDUCTION: config.propose.num_inputs}
    return Fraction(sum(runs[kind] for kind in config.kinds), len(config.kinds))


class _Decoder:
    """One rollout stage on a number of cards."""

    def __init__(self, config: RunConfig, shape: DecoderShape, card: Card, cards: int) -> None:
        self.config, self.shape, self.card, self.cards = config, shape, card, cards
        self.width = 2 if config.model.dtype == "bfloat16" and card.flops > 100e9 else 4
        asleep = config.engine.kind == "vllm" and config.model.device != "cpu"
        self.waking = card.swap / 2 if asleep else 0.0

    def time(self, stage: str, requests: int, prompts: int, mean: float, longest: int, prompt: int) -> StageTime:
        """Return a stage's seconds: reading its prompts, then the steps that the fullest card or the longest completion takes."""
        rows = ceil(requests / min(self.cards, requests))
        at_once = max(1, min(rows, self._capacity(prompt, mean, longest)))
        reading = 2 * self.shape.parameters * prompt * ceil(prompts / min(self.cards, prompts)) / self.card.flops
        filled = rows * mean / at_once
        steps = max(filled, longest)
        live = rows * mean / steps  # rows of an average step
        computed = 2 * self.shape.parameters * rows * mean / self.card.flops
        moved = steps * self._bytes(live, prompt + mean / 2) / self.card.bandwidth
        total = STAGE_SECONDS + reading + max(computed, moved) + steps * self.card.step(self.config.engine.kind) + self.waking
        if reading + computed > moved:
            return StageTime(stage, total, "arithmetic")
        return StageTime(stage, total, "longest completion" if longest > filled else "memory bandwidth")

    def _capacity(self, prompt: int, mean: float, longest: int) -> int:
        """Rows that one card decodes at once. vLLM takes memory as completions grow; our engine reserves it for the longest."""
        if self.config.engine.kind == "transformers":
            return self.config.engine.batch_tokens // (prompt + longest)
        free = self.config.engine.memory_share * self.card.memory - self.shape.parameters * self.width
        return min(self.config.engine.rows, int(free / ((prompt + mean) * cache_bytes(self.shape, self.width))))

    def _bytes(self, rows: float, context: float) -> float:
        """Bytes that a step moves: the weights, and the keys and values of its rows."""
        return self.shape.parameters * self.width + rows * context * cache_bytes(self.shape, self.width)


class _Sandbox:
    """The stages that judge. Where `sandbox.early` says so, programs also run while completions are written."""

    def __init__(self, config: RunConfig, card: Card, cards: int) -> None:
        self.rule, setting = config.sandbox, config.sandbox.early
        one_machine = cards <= HOST_CARDS  # several machines judge nothing early
        self.early = one_machine and (setting == "on" or (setting == "auto" and card.memory > 0))

    def time(self, stage: str, runs: int, rollout: StageTime | None) -> StageTime:
        """Return a stage's seconds: its runs, less those made while the rollout writes; runs at their limit are made again.

        Proposals run twice on each input, answers once. A run of deductions alone grades without the sandbox: no runs.
        """
        quick = runs * (1 - SLOW_RUNS) * RUN_SECONDS / self.rule.containers
        seconds = quick + runs * SLOW_RUNS * self.rule.cpu_seconds / self.rule.containers
        if self.early and rollout is not None and runs:
            seconds -= quick * min(1.0, rollout.seconds / seconds)
        return StageTime(stage, STAGE_SECONDS + seconds, "sandbox")


def _update(config: RunConfig, shape: DecoderShape, card: Card, cards: int, flops: float) -> StageTime:
    """Adapters and groups of equal work, in the cut that the run would choose for them."""
    members = config.adapters
    parts = ceil(members / (config.learning.adapters_per_group or members))
    groups = [flops / parts] * parts
    if shares := shares_of_flops(config, shape, groups, members):
        time, idle = rows_time(config, shape, card, shares, flops, members), "store"  # one more share has more gradients
    else:
        time, idle = adapters_time(config, shape, card, cards, groups, members), "adapter groups"
    limit = "store" if time.stored > time.computed else idle if cards > (shares or parts) else "arithmetic"
    return StageTime("update", STAGE_SECONDS + time.total, limit)


def spread(config: RunConfig, cards: int) -> RunConfig:
    """Return the configuration cut for that many cards: a shard a card, and adapter groups as small as that needs."""
    members = config.adapters
    engine = config.engine.model_copy(update={"shards": cards})
    learning = config.learning.model_copy(update={"adapters_per_group": ceil(members / cards)})
    return config.model_copy(update={"engine": engine, "learning": learning})
