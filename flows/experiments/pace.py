"""How long runs of an experiment will take: the seconds that stages took in runs that have begun, in proportion to their work.

An arm that has finished generations continues at the pace of its run that has most of them. Any other arm takes the pace of one
that has, or of another run in the store whose model computes alike, stage by stage:

    seconds(stage) = seconds measured x work of this arm / work of that arm

The work of propose and solve is the number of tokens that they may generate, of verify and grade the number of programs, of an
update the positions of its rows (flows.plan.update_flops), of a benchmark its answers. Other stages, and the time between
stages, count as equal. That assumes completions of one length in both arms, and one machine. A benchmark that nothing has
scored yet takes as long for each answer as solving and grading an attempt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from flows.config import RunConfig
from flows.monitoring.spending import spent_by_stage
from flows.plan.stage_plan import update_rows, workload
from flows.run.manifest import Manifest
from flows.run.planned import benchmarks_at
from flows.run.run import Run
from flows.settings import Cost
from flows.storage import Damaged, NotStored
from flows.suites.own_suites import OwnSuites

BENCHMARK = "benchmark"


@dataclass(frozen=True)
class Pace:
    """Seconds of each stage in a generation that has it, and between stages, as measured in a run of this configuration."""

    config: RunConfig
    stages: Mapping[str, float]
    between: float


def measured(run: Run, config: RunConfig) -> tuple[int, Pace | None]:
    """Return how many generations of a run are done, and their pace; None if there are none.

    Machine time counts: parts that ran at the same time on one machine count once. The first generation, in which engines start,
    counts only if it is the only one.
    """
    try:
        numbers = run.finished_generations()
        steps = [run.history.of_generation(number, parts=True) for number in numbers]
    except (NotStored, Damaged):
        return 0, None
    if not steps:
        return 0, None
    found = [_by_stage(own) for own in steps]
    later = found[1:] or found
    stages = {stage: fmean([one[stage] for one in later if stage in one]) for stage in {name for one in later for name in one}}
    if BENCHMARK not in stages and BENCHMARK in found[0]:
        stages[BENCHMARK] = found[0][BENCHMARK]
    return len(found), Pace(config, stages, _between(steps, found))


def _by_stage(manifests: Sequence[Manifest]) -> dict[str, float]:
    return {stage: used.machine_seconds for stage, used in spent_by_stage(manifests, Cost()).items()}


def _between(steps: Sequence[Sequence[Manifest]], stages: Sequence[Mapping[str, float]]) -> float:
    """Return the median seconds from one generation's begin to the next one's that no stage took, so that breaks do not count."""
    begins = [min((float(step.clock.get("started", 0.0)) for step in own), default=0.0) for own in steps]
    rest = [later - earlier - sum(own.values()) for earlier, later, own in zip(begins, begins[1:], stages, strict=False)]
    return max(median(rest), 0.0) if rest and all(begins) else 0.0


def hours_left(config: RunConfig, done: int, paces: Sequence[Pace]) -> float | None:
    """Return the hours of the generations after the first `done`, at the first of these paces that knows every stage; or None."""
    for pace in paces:
        own, other = _work(config), _work(pace.config)
        alike = (
            pace.config.learning.off_policy_steps == config.learning.off_policy_steps
        )  # else an update's time means another thing
        if alike and all(other[stage] or not own[stage] for stage in own):
            return _seconds_left(config, done, pace, own, other) / 3600
    return None


def _seconds_left(config: RunConfig, done: int, pace: Pace, own: Mapping[str, float], other: Mapping[str, float]) -> float:
    ratio = {stage: own[stage] / other[stage] if other[stage] else 1.0 for stage in own}
    usual = sum(seconds * ratio.get(stage, 1.0) for stage, seconds in pace.stages.items() if stage != BENCHMARK)
    if BENCHMARK in pace.stages:
        scoring = pace.stages[BENCHMARK] * ratio[BENCHMARK]
    else:
        attempt = sum(pace.stages.get(stage, 0.0) for stage in ("solve", "grade")) / workload(pace.config, 1.0).attempts
        scoring = attempt * own[BENCHMARK]
    left = range(done, config.generations)
    return (usual + pace.between) * len(left) + scoring * sum(benchmarks_at(config, generation) for generation in left)


def _work(config: RunConfig) -> dict[str, float]:
    """Return what each stage has to do in a generation, in a unit of its own."""
    work, rule = workload(config, 1.0), config.benchmark
    members = config.population.students + (config.population.teachers if rule.members == "all" else 0)
    problems = rule.limit or OwnSuites().problems(rule.suite).num_rows
    return {
        "propose": work.proposals * work.proposed,
        "verify": float(work.proposals),
        "solve": work.attempts * work.answered,
        "grade": float(work.attempts),
        "update": sum(rows.positions for rows in update_rows(config, work)),
        BENCHMARK: float(members * problems * (1 + rule.attempts)),
    }
