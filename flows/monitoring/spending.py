"""What steps of a run have used, added up from the clocks of their manifests: tokens, time, energy and money.

A machine is a host name in the clocks (POPULORA_NODE where it is set). Steps that run at the same time on one machine share it:
its hour is paid once, and counters of whole devices that several of them read are counted once, as the mean of what they say.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from flows.run.manifest import Manifest
from flows.settings import Cost

KWH = 3.6e6  # joules
HOUR = 3600.0  # seconds
UPDATE = "update"
ESTIMATE = "estimate"
"""The source of joules that are watts x seconds. The other sources, `cards` and `processor`, are measured."""


@dataclass(frozen=True)
class Spent:
    """What a stage, a generation or a run has used. None: not recorded.

    Attributes:
        seconds: Of all its steps, also of those that ran at the same time.
        machine_seconds: In which it kept a machine busy, added over machines.
        prompt_tokens: Tokens of prompts, the whole prompt for every completion.
        generated_tokens: Tokens that the engine sampled.
        trained_tokens: Response tokens that trained an adapter.
        joules: By source: `cards` and `processor` are measured, `estimate` is watts x machine time.
        energy_seconds: The part of `machine_seconds` for which `joules` knows something.
        money: By currency.
        priced_seconds: The part of `machine_seconds` that has a price.
    """

    seconds: float = 0.0
    machine_seconds: float = 0.0
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    trained_tokens: int | None = None
    joules: Mapping[str, float] = field(default_factory=dict)
    energy_seconds: float = 0.0
    money: Mapping[str, float] = field(default_factory=dict)
    priced_seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        if self is NOTHING or other is NOTHING:  # a page adds thousands
            return other if self is NOTHING else self
        return Spent(
            self.seconds + other.seconds,
            self.machine_seconds + other.machine_seconds,
            _sum(self.prompt_tokens, other.prompt_tokens),
            _sum(self.generated_tokens, other.generated_tokens),
            _sum(self.trained_tokens, other.trained_tokens),
            _merged(self.joules, other.joules),
            self.energy_seconds + other.energy_seconds,
            _merged(self.money, other.money),
            self.priced_seconds + other.priced_seconds,
        )

    @property
    def kwh(self) -> float | None:
        """Energy, measured or estimated (see `energy_source`)."""
        return sum(self.joules.values()) / KWH if self.joules else None

    @property
    def energy_source(self) -> str:
        """How the energy is known: `measured`, `estimated`, `partly estimated`, or empty."""
        if not self.joules:
            return ""
        return "measured" if ESTIMATE not in self.joules else "estimated" if len(self.joules) == 1 else "partly estimated"


NOTHING = Spent()


def total(parts: Iterable[Spent]) -> Spent:
    """Return the sum."""
    return sum(parts, NOTHING)


@dataclass(frozen=True)
class _Step:
    """One step of a stage on its machine: power in watts by (source, counter), and its price."""

    host: str
    began: float
    seconds: float
    watts: Mapping[tuple[str, str], float]
    price: Cost | None


def spent(manifests: Iterable[Manifest], fill: Cost, prices: Cost | None = None) -> Spent:
    """Return what the steps of one stage (or of several that overlap in time) used, without the tokens that tables know.

    `fill` has the price for steps that recorded none; `prices` replaces what every step recorded, also the watts
    if it has any (`_instead`).
    """
    found, prompts, generated = list[_Step](), list[int | None](), list[int | None]()
    for number, manifest in enumerate(manifests):
        found.append(_step(manifest.clock, number, fill, prices))
        tokens = manifest.clock.get("tokens", {})
        prompts.append(tokens.get("prompt"))
        generated.append(tokens.get("generated"))
    machines: dict[str, list[_Step]] = defaultdict(list)
    for step in found:
        machines[step.host].append(step)
    used = total(_on_one_machine(steps) for steps in machines.values())
    tokens_of = Spent(sum(step.seconds for step in found), 0.0, _known(prompts), _known(generated))
    return used + tokens_of


def spent_by_stage(steps: Iterable[Manifest], fill: Cost, prices: Cost | None = None) -> dict[str, Spent]:
    """Return what each stage of a generation used: of an update beside the rollouts what it added to them, so that sums hold."""
    by_stage: dict[str, list[Manifest]] = {}
    for step in steps:
        by_stage.setdefault(step.whole_stage, []).append(step)
    found = {}
    for stage, own in by_stage.items():
        joined = any(step.stage == UPDATE for step in own)
        if stage == UPDATE and len(by_stage) > 1 and not (joined or by_stage.get("reward")):
            continue  # how much it adds is known when the others are done: sums of a run never fall
        beside = [step for other, some in by_stage.items() if other != stage for step in some]
        early = stage == UPDATE and began_early(own, by_stage.get("reward", ()))
        found[stage] = _added(own, beside, fill, prices) if early else spent(own, fill, prices)
    return found


def began_early(update: Iterable[Manifest], reward: Iterable[Manifest]) -> bool:
    """Return whether an update ran beside the stages before it: a part began before the rewards that it would otherwise need."""
    return _began(update) < _began(reward) < math.inf


def _began(steps: Iterable[Manifest]) -> float:
    return min((float(step.clock.get("started", math.inf)) for step in steps), default=math.inf)


def _added(manifests: Sequence[Manifest], beside: Sequence[Manifest], fill: Cost, prices: Cost | None) -> Spent:
    """Return what the steps of one stage used beyond what others used at the same time.

    Where they share a counter, the mean power of both may be below that of the others: the energy added is then 0.
    """
    own, others, both = (spent(some, fill, prices) for some in (manifests, beside, [*beside, *manifests]))
    return replace(
        own,
        machine_seconds=both.machine_seconds - others.machine_seconds,
        joules={source: max(0.0, joules) for source, joules in _less(both.joules, others.joules).items()},
        energy_seconds=both.energy_seconds - others.energy_seconds,
        money=_less(both.money, others.money),
        priced_seconds=both.priced_seconds - others.priced_seconds,
    )


def _step(clock: Mapping[str, Any], number: int, fill: Cost, prices: Cost | None) -> _Step:
    seconds = float(clock.get("seconds", 0.0))
    host, began = str(clock.get("host", "")), clock.get("started")
    if began is None:  # of an older version: nothing says that it overlaps another step
        host, began = f"{host} {number}", 0.0
    joules = clock.get("energy", {})
    watts = {(source, name): value / seconds for source, own in joules.items() for name, value in own.items() if seconds > 0}
    assumed = prices.watts if prices is not None and prices.watts else float(clock.get("watts", fill.watts))
    if assumed and "processor" not in joules:
        watts[ESTIMATE, ""] = assumed
    recorded = Cost.model_validate(clock["price"]) if "price" in clock else fill
    price = recorded if prices is None else _instead(prices, recorded)
    return _Step(host, float(began), seconds, watts, price if price.machine_hour or price.kwh else None)


def _instead(prices: Cost, recorded: Cost) -> Cost:
    """Return the prices; those that name neither an hour nor a kWh keep the recorded ones in their own currency and watts."""
    if prices.machine_hour or prices.kwh:
        return prices
    return recorded.model_copy(update=prices.model_dump(include=prices.model_fields_set))


def _on_one_machine(steps: list[_Step]) -> Spent:
    """Return the use of one machine: at each moment, means over the steps that are at work then."""
    if len(steps) == 1:
        return _slice(steps, steps[0].seconds)
    moments = sorted({moment for step in steps for moment in (step.began, step.began + step.seconds)})
    used = NOTHING
    for begin, end in pairwise(moments):
        working = [step for step in steps if step.began <= begin and end <= step.began + step.seconds]
        if working:
            used += _slice(working, end - begin)
    return used


def _slice(steps: list[_Step], seconds: float) -> Spent:
    """Return what a machine used in that time, during which exactly these steps are at work."""
    power: dict[tuple[str, str], list[float]] = defaultdict(list)
    for step in steps:
        for counter, watts in step.watts.items():
            power[counter].append(watts)
    joules: dict[str, float] = defaultdict(float)
    for (source, _), readings in power.items():
        joules[source] += fmean(readings) * seconds
    prices = [step.price for step in steps if step.price is not None]
    money: dict[str, float] = {}
    if prices:
        hour, kwh = fmean(price.machine_hour for price in prices), fmean(price.kwh for price in prices)
        money[prices[0].currency] = hour * seconds / HOUR + kwh * sum(joules.values()) / KWH
    known, priced = seconds if joules else 0.0, seconds if prices else 0.0
    return Spent(0.0, seconds, joules=dict(joules), energy_seconds=known, money=money, priced_seconds=priced)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _known(counts: Iterable[int | None]) -> int | None:
    found: int | None = None
    for count in counts:
        found = _sum(found, count)
    return found


def _less(whole: Mapping[str, float], part: Mapping[str, float]) -> dict[str, float]:
    return {key: value - part.get(key, 0.0) for key, value in whole.items()}


def _merged(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    if not one or not other:
        return {**one, **other}
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}
