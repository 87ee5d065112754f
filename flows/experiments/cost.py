"""The cost of an experiment before it runs (`populora experiment FILE --dry-run`). Writes nothing."""

from collections.abc import Callable, Sequence

from flows.config import RunConfig
from flows.execution.session import check_resumable
from flows.experiments.spec import Experiment, Planned
from flows.monitoring.cost_text import money_text
from flows.monitoring.prices import of_machine
from flows.monitoring.spending import spent
from flows.plan.estimate import hours, price_of, stored_bytes
from flows.run.retention import check_room
from flows.run.run import Run
from flows.settings import Cost
from flows.storage import Damaged, NotStored, Store


def plan_text(experiment: Experiment, runs: Sequence[Planned], store: Store) -> str:
    """Return one line per run with its hours and bytes, and their sums. Hours of an arm that has run before are as measured."""
    states = [_done(store, planned) for planned in runs]
    pace = {planned.arm: seconds / done for planned, (done, seconds) in zip(runs, states, strict=True) if done}
    lines = [
        experiment.question,
        f"{len(experiment.arms)} arms, {len(runs)} runs one after another; primary: {_primary(experiment)}",
        f"{'run':40} {'generations':>13} {'hours':>7} {'MB':>9}  hours are",
    ]
    total_hours, total_bytes, unknown = 0.0, 0, []
    money: dict[str, float] = {}
    for planned, (done, _) in zip(runs, states, strict=True):
        left = planned.config.generations - min(done, planned.config.generations)
        if planned.arm in pace:
            needed, source = left * pace[planned.arm] / 3600, "as measured"
        else:
            machine, whole = next(iter(hours(planned.config).items()), ("", 0.0))
            needed, source = whole * left / planned.config.generations, f"arithmetic on {machine}, a lower bound"
            if not machine:
                unknown.append(planned.run_id)
                source = "unknown: the model is missing on this machine"
        if (price := price_of(planned.config, needed)) is not None:
            currency = of_machine(planned.config.cost).currency
            money[currency] = money.get(currency, 0.0) + price
        size = stored_bytes(planned.config)
        total_hours, total_bytes = total_hours + needed, total_bytes + size
        place = f"{done} of {planned.config.generations}"
        lines.append(f"{planned.run_id:40} {place:>13} {needed:7.2f} {size / 1e6:9.1f}  {source}")
    lines.append(f"{'total':40} {'':13} {total_hours:7.2f} {total_bytes / 1e6:9.1f}")
    if money:
        lines.append(f"money: {money_text(money)}, these hours at the price of a machine hour")
    if unknown:
        lines.append(f"not counted: {', '.join(unknown)}")
    return "\n".join(lines)


def check(runs: Sequence[Planned], store: Store, reachable: Callable[[RunConfig], None]) -> None:
    """Raise before the first run what a later one would raise: a run of the same name, a missing model or choice, no space."""
    for planned in runs:
        check_resumable(Run(store, planned.run_id), planned.config)
    left = [planned for planned in runs if Run(store, planned.run_id).manifest("evolve", planned.config.generations - 1) is None]
    for _, planned in sorted({planned.arm: planned for planned in left}.items()):
        reachable(planned.config)
    check_room(store, sum(stored_bytes(planned.config) for planned in left))


def _primary(experiment: Experiment) -> str:
    rule = experiment.primary
    first, second = rule.contrast
    return f"{first} minus {second}, {rule.over} {rule.measure} on {rule.group} problems at equal {rule.budget.replace('_', ' ')}"


def _done(store: Store, planned: Planned) -> tuple[int, float]:
    """(generations done, their machine time in seconds) of a run in the store."""
    run = Run(store, planned.run_id)
    try:
        done = [number for number in run.history.generations() if run.manifest("evolve", number) is not None]
        seconds = [spent(run.history.of_generation(number, parts=True), Cost()).machine_seconds for number in done]
    except (NotStored, Damaged):
        return 0, 0.0
    return len(done), sum(seconds)
