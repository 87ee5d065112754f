"""Estimate a run's tokens, hours, memory and disk before it starts, by arithmetic alone (`populora run --dry-run`)."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from flows.config import RunConfig
from flows.monitoring.cost_text import money_text
from flows.monitoring.prices import of_machine
from flows.plan.card_rates import CARDS, HOST_CARDS, TWO_CORES, Card
from flows.plan.decoder_shape import DecoderShape, adapter_parameters, shape_of
from flows.plan.memory_plan import lacking, memory_lines
from flows.plan.off_policy_plan import best_division
from flows.plan.stage_plan import generation_seconds, spread, stage_times, workload
from flows.run.retention import expected_bytes, policy_of

GIB = 1024**3
MANY = (8, 64, 512)  # cards
MEAN = 0.125  # of its limit: a typical completion's tokens where the limit leaves room for a thought
AMX, AVX512, INTEL = "amx_bf16", "avx512_bf16", "GenuineIntel"  # as /proc/cpuinfo names them
SMALL = 50e6  # parameters of a model for which nobody rents a GPU
TABLE_BYTES = 8  # stored per generated token, in rollouts and samples together


def plan(config: RunConfig) -> str:
    """Return the plan as lines of text: completions and tokens per generation, memory and where it fits, disk, hours."""
    shape = shape_of(config.model.name)
    teachers, students, members = config.population.teachers, config.population.students, config.adapters
    proposals, attempts = config.matches * config.proposals_per_teacher, workload(config, 1.0).attempts
    written = proposals * config.propose.max_new_tokens if teachers else 0
    tokens = written + attempts * config.solve.max_new_tokens
    lines = [
        "members          1, in both roles"
        if config.mode == "single"
        else f"members          {members} ({teachers or 'no'} teachers, {students} students)",
        f"per generation   {proposals:,} proposals, at most {attempts:,} attempts, at most {tokens:,} generated tokens",
    ]
    if advice := uncorrected(config):
        lines.append(f"advice           {advice}")
    if shape is None:
        return "\n".join([*lines, f"model            {config.model.name} is unknown: no estimate of memory and hours"])
    if spare := spare_shards(config):
        lines.append(f"shards           {spare}")
    lines += memory_lines(config, shape, members)
    lines += _disk(config, adapter_parameters(shape, config.model.targets, config.model.rank), members)
    return "\n".join(lines + _seconds(config, shape) + _hours(config) + _money(config))


def spare_shards(config: RunConfig) -> str:
    """Return that a run asks for more shards than its generations have requests, and what it gets; empty if it does not."""
    requests = _requests(config)
    if config.engine.shards <= requests:
        return ""
    return (
        f"engine.shards={config.engine.shards}: propose and solve have {requests} prompts per generation and use only {requests} "
        "shards; the others stay idle"
    )


def uncorrected(config: RunConfig) -> str:
    """Return that a run with vLLM trains without importance correction, and how to switch it on; empty if it does not."""
    if config.engine.kind != "vllm" or config.learning.importance_cap or config.strategy.population:
        return ""
    return (
        "learning.importance_cap=0: vLLM and the trainer round differently, and nothing corrects for it; a new run can "
        "start with learning.importance_cap=2"
    )


def _requests(config: RunConfig) -> int:
    """Return the prompts of a rollout, of which a shard needs at least one."""
    return config.matches * config.prompts_per_teacher


def _cards(config: RunConfig) -> int:
    return min(config.engine.shards, max(1, _requests(config)))


def too_small(config: RunConfig, memory: float) -> str:
    """Return what of the run does not fit into a card of that many bytes; empty if all does, or for an unknown model."""
    shape = shape_of(config.model.name)
    return "" if shape is None else lacking(config, shape, config.adapters, memory)


def _disk(config: RunConfig, adapter: int, members: int) -> list[str]:
    a_generation, kept = adapter * 12 * members, "all kept" if not config.retention.on else "after retention"
    return [
        f"disk             {a_generation / GIB:.3f} GiB of adapters per generation ({adapter / 1e6:.2f} M parameters each), "
        f"{stored_bytes(config) / GIB:.1f} GiB at the end ({kept})"
    ]


def stored_bytes(config: RunConfig) -> int:
    """Return the bytes in the store at the end of the run; 0 for an unknown model."""
    shape = shape_of(config.model.name)
    if shape is None:
        return 0
    policy, members = policy_of(config), config.adapters
    weights = 4 * adapter_parameters(shape, config.model.targets, config.model.rank)
    work = workload(config, 1.0)
    tokens = (work.proposals + work.attempts) * config.solve.max_new_tokens
    events = config.generations // config.evolution.every if config.evolution.every and members > 2 else 0
    births = 2 * max(1, int(members // 2 * config.evolution.gamma)) * events
    benchmarks = 1 + (config.generations // config.benchmark.every if config.benchmark.every else 0)
    return expected_bytes(policy, config.generations, members, weights, 2 * weights, tokens * TABLE_BYTES, births, benchmarks)


def cpu_dtype(dtype: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the type in which this machine's CPU computes a model of that type, as `stages.core.engines.precision` decides it.

    A CPU that does not list its features, as on macOS, counts as one without units for bfloat16.
    """
    if dtype != "bfloat16":
        return dtype
    features = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return "bfloat16" if AMX in features or (AVX512 in features and INTEL not in features) else "float32"


def hours(config: RunConfig, share: float = 1.0) -> dict[str, float]:
    """Return hours of arithmetic by machines, completions taking `share` of their limits on average; empty for an unknown model.

    There is a card for each of `engine.shards` that gets work, HOST_CARDS of them in a machine.
    """
    shape = shape_of(config.model.name)
    if shape is None:
        return {}
    found = {}
    for card in _machines(config, shape):
        count = _cards(config) if card.memory else 1
        divided = config if card.memory else spread(config, 1)  # parts on a CPU share its cores
        seconds = generation_seconds(stage_times(divided, shape, card, count, share)) * config.generations
        cards = f"{count} x {card.name} GPUs" if count > 1 else f"one {card.name} GPU"
        found[cards if card.memory else card.name] = seconds / 3600
    return found


def _machines(config: RunConfig, shape: DecoderShape) -> tuple[Card, ...]:
    """Return the machines that a plan is made for: this one's cores for a CPU run or a small model, else cards that it fits."""
    if config.model.device == "cpu" or shape.parameters < SMALL:
        return (TWO_CORES[cpu_dtype(config.model.dtype)],)
    return tuple(card for card in CARDS if not lacking(config, shape, config.adapters, card.memory)) or CARDS[-1:]


def _seconds(config: RunConfig, shape: DecoderShape) -> list[str]:
    """Return a table of the seconds of each stage, a column for each machine, at a mean of MEAN of each completion's limit."""
    machines = [(card, 1) for card in _machines(config, shape)]
    if machines[-1][0].memory:
        machines += [(CARDS[-1], count) for count in MANY]
    columns = [stage_times(spread(config, count), shape, card, count, MEAN) for card, count in machines]
    names = [f"{count} x {card.name}" if card.memory else card.name for card, count in machines]
    rows = [("seconds by stage", *names, "limited by")]
    for times in zip(*columns, strict=True):
        limits = dict.fromkeys(time.limit for time in times)
        rows.append((f"  {times[0].stage}", *(f"{time.seconds:,.1f}" for time in times), ", then ".join(limits)))
    usual = f"if completions have {MEAN:.1%} of their token limits"
    rows.append(("  one generation", *(f"{generation_seconds(times):,.0f}" for times in columns), usual))
    full = [generation_seconds(stage_times(spread(config, count), shape, card, count)) for card, count in machines]
    rows.append(("", *(f"{seconds:,.0f}" for seconds in full), "if they have all of them"))
    if config.learning.off_policy_steps:
        rows += _beside(config, shape, machines)
    widths = [max(len(row[place]) for row in rows) for place in range(len(names) + 1)]
    table = [
        f"{row[0]:17}" + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths[1:], strict=True)) + f"  {row[-1]}"
        for row in rows
    ]
    rates = dict.fromkeys(card.rates(config.engine.kind) for card, _ in machines)
    return [*table, *(f"assumed          {line}" for line in rates)]


def _beside(config: RunConfig, shape: DecoderShape, machines: Sequence[tuple[Card, int]]) -> list[tuple[str, ...]]:
    """Return the rows for a generation whose update runs beside its rollouts."""
    found = [best_division(config, shape, card, count, MEAN) for card, count in machines]
    shards = ", ".join(str(division.shards) for division in found)
    usual = f"if the update runs beside the rollouts, with engine.shards={shards}, and {MEAN:.1%} of the limits"
    return [("  off-policy", *(f"{division.seconds:,.0f}" for division in found), usual)]


def price_of(config: RunConfig, needed: float) -> float | None:
    """Return the price of so many hours on the machines of `hours`, with the energy of `cost.watts`; None without a price.

    Raises ConfigError for a variable of this machine that cannot be used.
    """
    rule = of_machine(config.cost)
    if not rule.machine_hour and not (rule.kwh and rule.watts):
        return None
    return needed * _hosts(config) * (rule.machine_hour + rule.kwh * rule.watts / 1000)


def _hosts(config: RunConfig) -> int:
    """Return how many machines `hours` are of."""
    shape = shape_of(config.model.name)
    return ceil(_cards(config) / HOST_CARDS) if shape is not None and _machines(config, shape)[0].memory else 1


def _money(config: RunConfig) -> list[str]:
    rule = of_machine(config.cost)
    prices = {machine: price for machine, needed in hours(config).items() if (price := price_of(config, needed)) is not None}
    if not prices:
        return []
    found = ", ".join(f"{money_text({rule.currency: price})} on {machine}" for machine, price in prices.items())
    energy = f" and {rule.watts:g} W at {rule.kwh:g} a kWh" if rule.kwh and rule.watts else ""
    each = f"on {hosts} machines, each " if (hosts := _hosts(config)) > 1 else ""
    return [f"money            at most {found}, {each}at {rule.machine_hour:g} an hour{energy}"]


def _hours(config: RunConfig) -> list[str]:
    usual = hours(config, MEAN)
    found = ", ".join(f"{span_text(usual[machine], most)} on {machine}" for machine, most in hours(config).items())
    shares = f"the first if completions have {MEAN:.1%} of their token limits, the second if all are as long as they may be"
    return [f"time             {found}: an estimate from arithmetic, without start and benchmarks; {shares}"]


def span_text(least: float, most: float) -> str:
    """Return a span of hours, in minutes below an hour: `7 to 46 minutes`, `40 minutes to 3.20 hours`."""
    low, high = (max(1, round(60 * value)) if value < 1 else None for value in (least, most))
    if high is not None:
        return f"{low} to {high} minutes" if low != high else f"about {high} minute{'' if high == 1 else 's'}"
    return f"{rounded(least) if low is None else f'{low} minutes'} to {rounded(most)} hours"


def rounded(value: float) -> str:
    """Return hours as the plan prints them: with two decimals below ten, else whole."""
    return f"{value:,.{2 if value < 10 else 0}f}"
