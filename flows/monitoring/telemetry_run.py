"""The numbers of one run for Prometheus: (name, description, labels, value)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from flows.monitoring.amounts import amounts
from flows.monitoring.cost import generation_costs, own_stages
from flows.monitoring.run_tables import RunTables
from flows.run.manifest import Manifest
from flows.run.planned import planned_generations
from stages.analysis.summary import KINDS

Number = tuple[str, str, dict[str, str], float]
Values = Mapping[tuple[str, str | None, str | None, str | None], float]

_MEMORY = (
    ("peak_memory_mb", "populora_stage_peak_memory_bytes", "Largest resident memory of the process during the stage"),
    ("peak_gpu_memory_mb", "populora_stage_peak_gpu_memory_bytes", "Peak memory of the stage's tensors on a GPU"),
)


def numbers(watch: RunTables) -> Iterator[Number]:
    """Return all numbers from a run's manifests and small tables."""
    description = watch.run.history.description() or {}
    config = description.get("config", {})
    labels = {"mode": str(config.get("mode", "")), "model": str(config.get("model", {}).get("name", ""))}
    yield "populora_run_info", "The run's mode and base model.", labels, 1
    planned = planned_generations(description, watch.newest_stages())
    yield "populora_generations_planned", "Generations planned for the run.", {}, planned
    whole = [generation for generation in watch.generations if _stage(watch, generation, "evolve")]
    yield "populora_generations_done", "Complete generations.", {}, len(whole)
    yield from _times(watch, whole)
    yield from _work(watch, whole)
    yield from _costs(watch)
    yield from _newest(watch)
    yield from _alarms(watch)


def _times(watch: RunTables, whole: list[int]) -> Iterator[Number]:
    total: dict[str, float] = {}
    for spent in watch.clock().values():
        total |= {stage: total.get(stage, 0.0) + seconds for stage, seconds in spent.items()}
    for stage, seconds in total.items():
        yield "populora_stage_seconds_total", "Seconds of a stage, over all generations.", {"stage": stage}, seconds
    if not whole:
        return
    for stage, seconds in watch.clock()[whole[-1]].items():
        yield "populora_newest_stage_seconds", "Seconds of a stage in the newest complete generation.", {"stage": stage}, seconds
        clock = _clock(watch, whole[-1], stage)
        for key, name, says in _MEMORY:
            if key in clock:
                yield name, f"{says}, newest complete generation.", {"stage": stage}, float(clock[key]) * 2**20


def _work(watch: RunTables, whole: list[int]) -> Iterator[Number]:
    """Return tokens and programs over all complete generations, and per second in the newest."""
    done: Counter[tuple[str, str]] = Counter()
    for generation in whole:
        done.update(amounts(watch.numbers(generation), watch.manifests(generation)))
    for (unit, stage), amount in done.items():
        yield f"populora_{unit}_total", f"{unit.capitalize()} of a stage, over complete generations.", {"stage": stage}, amount
    if not whole:
        return
    spent = watch.clock()[whole[-1]]
    for (unit, stage), amount in amounts(watch.numbers(whole[-1]), watch.manifests(whole[-1])).items():
        if spent.get(stage):
            says = f"{unit.capitalize()} per second of a stage in the newest complete generation."
            yield f"populora_{unit}_per_second", says, {"stage": stage}, amount / spent[stage]


def _costs(watch: RunTables) -> Iterator[Number]:
    """Return what the run's own stages have used so far, the start included; see flows.monitoring.cost."""
    for stage, cost in own_stages(generation_costs(watch)).items():
        of = {"stage": stage}
        yield "populora_machine_seconds_total", "Machine time of a stage, once per machine.", of, cost.machine_seconds
        for kind, count in (
            ("prompt", cost.prompt_tokens),
            ("generated", cost.generated_tokens),
            ("trained", cost.trained_tokens),
        ):
            if count is not None:
                yield "populora_cost_tokens_total", "Tokens of a stage, by what they were for.", of | {"kind": kind}, count
        for source, joules in cost.joules.items():
            says = "Energy of a stage, measured (cards, processor) or an estimate (watts x time)."
            yield "populora_energy_joules_total", says, of | {"source": source}, joules
        for currency, amount in cost.money.items():
            yield "populora_money_total", "Price of a stage's machine time and energy.", of | {"currency": currency}, amount


def _newest(watch: RunTables) -> Iterator[Number]:
    """Return shares, rewards and ratings of the newest rated generation, and proposals by verdict over all."""
    statuses: Counter[str] = Counter()
    newest: Values = {}
    rated: list[dict[str, Any]] = []
    for generation in watch.generations:
        values = watch.numbers(generation)
        prefix = "propose.status."
        statuses.update(
            {name.removeprefix(prefix): int(value) for (name, *_), value in values.items() if name.startswith(prefix)}
        )
        if found := watch.of(generation, "ratings").to_pylist():
            newest, rated = values, found
    for status, count in statuses.items():
        yield "populora_proposals_total", "Proposals by verdict.", {"status": status}, count
    for kind in (None, *KINDS):
        of = {"kind": kind or "all"}
        if (share := newest.get(("propose.valid_share", None, None, kind))) is not None:
            yield "populora_valid_share", "Share of proposals that are valid, newest rated generation.", of, share
        if (rate := newest.get(("solve.rate", None, None, kind))) is not None:
            yield "populora_solve_rate", "Share of attempts that are correct, newest rated generation.", of, rate
    for role in ("teacher", "student"):
        if (reward := newest.get(("reward.mean", None, role, None))) is not None:
            yield "populora_reward_mean", "Mean reward of a role, newest rated generation.", {"role": role}, reward
    yield from _members(newest, rated)


def _members(values: Values, rated: list[dict[str, Any]]) -> Iterator[Number]:
    shown = {
        "update.entropy": ("populora_entropy_nats", "Entropy per token of a member."),
        "update.drift_mean": ("populora_drift_nats", "Difference between engine and trainer for a member, in nats per token."),
    }
    for (name, member, role, _), value in values.items():
        if name in shown and member and role:
            metric, says = shown[name]
            yield metric, says, {"member": member, "role": role}, value
    for row in {row["member_id"]: row for row in rated}.values():
        of = {"member": row["member_id"], "role": row["role"]}
        yield "populora_rating_mu", "TrueSkill mu of a member.", of, row["mu"]
        yield "populora_rating_sigma", "TrueSkill sigma of a member.", of, row["sigma"]


def _alarms(watch: RunTables) -> Iterator[Number]:
    found = watch.alarms()
    for name, count in Counter(alarm.name for alarm in found).items():
        yield "populora_alarms_total", "Alarms raised, by name.", {"alarm": name}, count
    rated = [generation for generation in watch.generations if watch.of(generation, "ratings").num_rows]
    for name in sorted({alarm.name for alarm in found if rated and alarm.generation == rated[-1]}):
        yield "populora_alarm", "Alarms of the newest rated generation.", {"alarm": name}, 1


def _stage(watch: RunTables, generation: int, stage: str) -> Manifest | None:
    return next((manifest for manifest in watch.manifests(generation) if manifest.stage == stage), None)


def _clock(watch: RunTables, generation: int, stage: str) -> dict[str, Any]:
    manifest = _stage(watch, generation, stage)
    return {} if manifest is None else manifest.clock
