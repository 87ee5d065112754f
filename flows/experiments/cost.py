"""The cost of an experiment before it runs (`populora experiment FILE --dry-run`). Writes nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flows.benchmarks.nightly import run_ids
from flows.config import ConfigError, RunConfig, check_operators, parse
from flows.execution.session import check_resumable
from flows.experiments.pace import Pace, hours_left, measured
from flows.experiments.spec import Experiment, Planned
from flows.monitoring.cost_text import money_text
from flows.monitoring.prices import of_machine
from flows.plan.estimate import hours, price_of, stored_bytes
from flows.plan.stage_plan import workload
from flows.run.retention import check_room
from flows.run.run import Run
from flows.storage import Damaged, NotStored, Store

OTHERS = 3  # runs of a model whose pace is read: one may lack a stage, and each takes a request per manifest


def plan_text(experiment: Experiment, runs: Sequence[Planned], store: Store) -> str:
    """Return one line per run with its hours and bytes, and their sums. Runs that have begun tell the pace of the others.

    Before any has, so do other runs in the store whose model computes alike.
    """
    states = [measured(Run(store, planned.run_id), planned.config) for planned in runs]
    paces = _paces(runs, states)
    others = {} if paces else _other_paces(runs, store)
    lines = [
        experiment.question,
        f"{len(experiment.arms)} arms, {len(runs)} runs one after another; primary: {_primary(experiment)}",
        f"{'run':40} {'generations':>13} {'hours':>7} {'MB':>9}  hours are",
    ]
    total_hours, total_bytes, unknown = 0.0, 0, []
    money: dict[str, float] = {}
    for planned, (done, _) in zip(runs, states, strict=True):
        needed, source = _hours(planned, done, paces, others)
        if needed is None:
            unknown.append(planned.run_id)
            needed = 0.0
        if (price := price_of(planned.config, needed)) is not None:
            currency = of_machine(planned.config.cost).currency
            money[currency] = money.get(currency, 0.0) + price
        size = stored_bytes(planned.config)
        total_hours, total_bytes = total_hours + needed, total_bytes + size
        place = f"{done} of {planned.config.generations}"
        lines.append(f"{planned.run_id:40} {place:>13} {needed:7,.2f} {size / 1e6:9,.1f}  {source}")
    lines.append(f"{'total':40} {'':13} {total_hours:7,.2f} {total_bytes / 1e6:9,.1f}")
    if unlike := _attempts(runs):
        lines.append(f"attempts per student and generation, at most: {unlike}; equal generations are not equal attempts")
    if money:
        lines.append(f"money: {money_text(money)}, these hours at the price of a machine hour")
    if unknown:
        lines.append(f"not counted: {', '.join(unknown)}")
    return "\n".join(lines)


def _paces(runs: Sequence[Planned], states: Sequence[tuple[int, Pace | None]]) -> dict[str, Pace]:
    """Return the pace of each arm that has begun: of its run with the most generations, since one says little."""
    longest: dict[str, tuple[int, Pace]] = {}
    for planned, (done, pace) in zip(runs, states, strict=True):
        if pace is not None and done > longest.get(planned.arm, (0, None))[0]:
            longest[planned.arm] = done, pace
    return {arm: pace for arm, (_, pace) in longest.items()}


def _other_paces(runs: Sequence[Planned], store: Store) -> dict[str, Pace]:
    """Return the paces of the longest other runs in the store with the model of one of these, by run id."""
    found: dict[str, Pace] = {}
    for computed in {_computed(planned.config): None for planned in runs}:
        alike = [(run_id, config) for run_id, config in _stored(store) if _computed(config) == computed]
        longest = sorted(alike, key=lambda one: -len(Run(store, one[0]).history.generations()))[:OTHERS]
        paces = {run_id: measured(Run(store, run_id), config)[1] for run_id, config in longest}
        found |= {run_id: pace for run_id, pace in paces.items() if pace is not None}
    return found


def _stored(store: Store) -> Iterator[tuple[str, RunConfig]]:
    """Yield the runs of a store with the configurations that this version can read."""
    for run_id in run_ids(store):
        try:
            description: Mapping[str, Any] = Run(store, run_id).history.description() or {}
            yield run_id, parse(description["config"])
        except (ConfigError, KeyError, NotStored, Damaged):
            continue


def _computed(config: RunConfig) -> tuple[object, ...]:
    """Return what the speed of a generation depends on, beside its amount of work."""
    return config.model.name, config.model.dtype, config.model.device, config.engine.kind, config.threads


def _attempts(runs: Sequence[Planned]) -> str:
    """Return how many attempts a student makes in a generation of each arm, at most; empty if it is the same in all."""
    arms: dict[int, dict[str, None]] = {}
    for planned in runs:
        config = planned.config
        arms.setdefault(round(workload(config, 1.0).attempts / config.population.students), {})[planned.arm] = None
    return "; ".join(f"{count:,} in {', '.join(names)}" for count, names in arms.items()) if len(arms) > 1 else ""


def check(runs: Sequence[Planned], store: Store, reachable: Callable[[RunConfig], None]) -> None:
    """Raise before the first run what a later one would raise: a run of the same name, a missing model or choice, no space."""
    for planned in runs:
        check_resumable(Run(store, planned.run_id), planned.config)
        if Run(store, planned.run_id).history.description() is None:
            check_operators(planned.config)
    left = [planned for planned in runs if Run(store, planned.run_id).manifest("evolve", planned.config.generations - 1) is None]
    for _, planned in sorted({planned.arm: planned for planned in left}.items()):
        reachable(planned.config)
    check_room(store, {planned.run_id: stored_bytes(planned.config) for planned in left})


def _primary(experiment: Experiment) -> str:
    rule = experiment.primary
    first, second = rule.contrast
    return f"{first} minus {second}, {rule.over} {rule.measure} on {rule.group} problems at equal {rule.budget.replace('_', ' ')}"


def _hours(planned: Planned, done: int, paces: Mapping[str, Pace], others: Mapping[str, Pace]) -> tuple[float | None, str]:
    """Return the hours that a run still needs, None if they are unknown, and how they are known."""
    config = planned.config
    if planned.arm in paces:
        return hours_left(config, done, [paces[planned.arm]]), "as measured"
    if (needed := hours_left(config, done, list(paces.values()))) is not None:
        return needed, "by the pace of another arm"
    for run_id, pace in others.items():
        with suppress(ConfigError):  # its benchmark may be of a suite that is not here
            if _computed(pace.config) == _computed(config) and (needed := hours_left(config, done, [pace])) is not None:
                return needed, f"by the pace of {run_id}, a run of the same model"
    machine, whole = next(iter(hours(config).items()), ("", None))
    if whole is None:
        return None, "unknown: the model is missing on this machine"
    left = max(config.generations - done, 0) / config.generations
    return whole * left, f"arithmetic on {machine}, completions at full length"
