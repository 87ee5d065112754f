"""State of a run, as text for `populora status`."""

from collections import Counter
from collections.abc import Sequence

from flows.monitoring.alarms import Alarm
from flows.monitoring.cost import generation_costs, own_stages, point_costs
from flows.monitoring.cost_text import changed_text, cost_line, gain_text
from flows.monitoring.live import Follower
from flows.monitoring.live_text import headline, step_text
from flows.monitoring.meter import duration
from flows.monitoring.run_state import RunState, Standing, StateReader
from flows.monitoring.run_tables import RunTables
from flows.monitoring.spending import total
from flows.run.leaking import warning
from flows.run.manifest import Json, Manifest
from flows.run.planned import planned_generations
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored
from stages.analysis.summary import generation_line


def status(run: Run) -> str:
    """Return what is done, what is next, who holds the lease, the head, bytes stored, the newest numbers, and alarms."""
    description = run.history.description()
    if description is None:
        raise NotStored(f"no run {run.run_id} in {run.store.url}")
    planned = planned_generations(description, run.history.newest_stages())
    tables, states = RunTables(run).look(), StateReader(run.store)
    (numbers, newest), alarms = _numbers(tables), tables.alarms()
    costs = generation_costs(tables)
    gains = point_costs(tables, costs)
    lines = [
        f"run        {run.run_id} in {run.store.url}",
        *(f"WARNING    {text}" for text in [warning(description)] if text),
        *(f"WARNING    {fault}; `populora fsck {run.run_id}` says what depends on it" for fault in tables.faults),
        f"done       {done(run, planned)}",
        *(f"now        {text}" for text in [_now(run, tables, states)] if text),
        f"next       {following(run, planned)}",
        f"lease      {holder(states.standing(run.run_id, complete=False))}",
        f"head       {run.history.head()}",
        f"stored     {stored(run)}",
        f"cost       {cost_line(total(own_stages(costs).values()))}",
        f"numbers    {numbers}",
        *(f"change     {gain_text(point)}" for point in gains.points),
        *(f"change     {changed_text(one)}" for one in gains.changed),
        *(f"alarm      {alarm}" for alarm in alarms if alarm.generation == newest),
        *(f"alarms     {text}" for text in [_earlier(alarms, newest)] if text),
    ]
    return "\n".join(lines)


def _now(run: Run, tables: RunTables, states: StateReader) -> str:
    """Return what a process computes at the moment, or how to resume, as the live page says it; empty if the run is finished."""
    state = Follower(run, tables, states).look()
    if state.condition in ("finished", "running"):
        return "; ".join([headline(state), *map(step_text, state.steps)]) if state.condition == "running" else ""
    return headline(state)


def active(description: Json, finished: Sequence[Manifest]) -> float:
    """Return when the run began or its newest stage ended, by the clock of its machine; 0.0 if neither is recorded.

    `finished` has the stages of the newest generation.
    """
    clocks = [description.get("clock", {}), *(one.clock for one in finished)]
    return max(
        (float(clock["started"]) + float(clock.get("seconds", 0.0)) for clock in clocks if "started" in clock), default=0.0
    )


def done(run: Run, planned: int) -> str:
    """Return how much of the run is done."""
    whole = len(run.finished_generations())
    finished = run.history.newest_stages()
    if not finished:
        return "nothing yet"
    newest = finished[-1]
    where = "start" if newest.generation is None else f"{newest.stage} of generation {newest.generation}"
    return f"{whole} of {planned} generations; last finished: {where}"


def following(run: Run, planned: int) -> str:
    """Return the next stage as text."""
    return stage_text(*upcoming(run, planned))


def stage_text(stage: str, generation: int | None) -> str:
    """Format the stage that comes next and its generation."""
    if not stage:
        return "nothing: the run is finished"
    if generation is None:
        return stage
    # A benchmark runs only in some generations, so either may follow `rate`.
    return f"{'benchmark or evolve' if stage == 'benchmark' else stage} of generation {generation}"


def upcoming(run: Run, planned: int) -> tuple[str, int | None]:
    """Return the next stage and its generation: `start` and None before generation 0, an empty name and None after the last."""
    finished = run.history.newest_stages()
    return after(finished[-1].stage, finished[-1].generation, planned) if finished else ("start", None)


def after(stage: str, generation: int | None, planned: int) -> tuple[str, int | None]:
    """Return the stage and generation that follow a finished stage; an empty name and None after the last one."""
    if generation is not None and stage != STAGE_NAMES[-1]:
        return STAGE_NAMES[STAGE_NAMES.index(stage) + 1], generation
    following = 0 if generation is None else generation + 1
    return (STAGE_NAMES[0], following) if following < planned else ("", None)


def holder(known: Standing) -> str:
    """Return who holds a run's lease, or who left it behind."""
    if known.lease is None:
        return "not held"
    if known.lease.ended:
        return f"left by {known.lease.who}, which was killed"
    if known.state is RunState.RUNNING:
        return f"held by {known.lease.who}, beat {known.lease.beat.rpartition(' ')[2]}"
    return f"{'held' if known.held else 'left'} by {known.lease.who}, last heartbeat {duration(known.silent)} ago"


def stored(run: Run) -> str:
    """Format bytes by purpose."""
    sizes = stored_bytes(run)
    parts = ", ".join(f"{kind} {size_text(size)}" for kind, size in sorted(sizes.items()))
    return f"{size_text(sum(sizes.values()))} ({parts})" if parts else "0 B"


def stored_bytes(run: Run) -> dict[str, int]:
    """Return the bytes of adapters, benchmarks, generations and the rest."""
    found: dict[str, int] = {}
    prefix = f"{run.run_id}/"
    for uri, size in run.store.sizes(prefix).items():
        top = uri.removeprefix(prefix).partition("/")[0]
        kind = "generations" if top.startswith("generation=") else top if top in ("adapters", "benchmarks") else "other"
        found[kind] = found.get(kind, 0) + size
    return found


def size_text(size: float) -> str:
    """Format bytes with a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _earlier(alarms: list[Alarm], newest: int | None) -> str:
    """Return how many alarms of each kind were raised before the newest rated generation, and where to read them."""
    kinds = Counter(alarm.name for alarm in alarms if newest is not None and alarm.generation < newest)
    counted = ", ".join(f"{name} {count}" for name, count in kinds.most_common())
    return f"{kinds.total()} in earlier generations ({counted}): the report and the run's page list them" if kinds else ""


def _numbers(tables: RunTables) -> tuple[str, int | None]:
    """Return the line of the newest rated generation, and its number."""
    run = tables.run
    for generation in reversed(run.history.generations()):
        if run.manifest("rate", generation) is None:
            continue
        try:
            metrics, ratings = run.read_table(generation, "metrics"), run.read_table(generation, "ratings")
            seconds = tables.times(generation)
            evolved = run.manifest("evolve", generation) is not None
            offspring = run.read_table(generation, "offspring") if evolved else None
            return generation_line(metrics, ratings, offspring, seconds, generation), generation
        except (NotStored, Damaged) as error:
            return str(error), generation
    return "none yet", None
