"""Time that a generation and a run still need: what their stages usually took in this run, less what is already done.

Only clocks of manifests and readings of the running step are used, so whoever reads the store computes the same. A benchmark that
is due counts for as long as the newest one took. Before the first generation is complete, nothing is usual yet, and the only time
left that is known is the running step's own.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from flows.monitoring.spending import began_early
from flows.monitoring.working import Step
from flows.run.manifest import Manifest
from flows.stages import REQUIRED, STAGE_NAMES

RECENT = 10  # complete generations that tell what is usual


@dataclass(frozen=True)
class TimeLeft:
    """Seconds left of the running stage, its generation and the run; None where nothing is known yet."""

    stage: float | None = None
    generation: float | None = None
    run: float | None = None


@dataclass(frozen=True)
class Benchmarks:
    """The generations of a run that have a benchmark, and the seconds of the newest one; 0 before the first."""

    due: Collection[int] = ()
    seconds: float = 0.0


NONE_DUE = Benchmarks()
BENCHMARK = "benchmark"


def elapsed(manifests: Sequence[Manifest]) -> dict[str, float]:
    """Return the seconds from the begin to the end of each stage. Parts that ran at the same time count once.

    Where a stage's parts began after a break (a resumed run), or have no start time, their own seconds are added instead. Of an
    update beside the rollouts, the time between its parts and their join does not count.
    """
    steps = _by_stage(manifests)
    found = {stage: _elapsed([step.clock for step in own]) for stage, own in steps.items()}
    if began_early(steps.get("update", ()), steps.get("reward", ())):
        found["update"] = _at_work(steps["update"])
    return found


def overlap(manifests: Sequence[Manifest]) -> float:
    """Return by how much the sum of `elapsed` exceeds the generation's time: what its update shared with other stages."""
    steps = _by_stage(manifests)
    if not began_early(steps.get("update", ()), steps.get("reward", ())):
        return 0.0
    others = [step for stage, own in steps.items() if stage != "update" for step in own]
    return _at_work(others) + _at_work(steps["update"]) - _at_work(manifests)


def _by_stage(manifests: Sequence[Manifest]) -> dict[str, list[Manifest]]:
    found: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        found.setdefault(manifest.whole_stage, []).append(manifest)
    return found


def usual_seconds(generations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what each stage that every generation has usually takes: its median over the newest of them."""
    recent = generations[-RECENT:]
    spent = {name: [one[name] for one in recent if name in one] for name in REQUIRED}
    return {name: statistics.median(seconds) for name, seconds in spent.items() if seconds}


def time_left(
    stage: str,
    generation: int | None,
    planned: int,
    steps: Sequence[Step],
    done_seconds: float,
    usual: Mapping[str, float],
    shared: float = 0.0,
    benchmark: Benchmarks = NONE_DUE,
) -> TimeLeft:
    """Return what is left while STAGE of GENERATION runs.

    `done_seconds`: what finished parts of the stage took; `shared`: the usual `overlap` of a generation's stages.
    """
    own = [step for step in steps if step.stage == stage and step.generation == generation]
    now = _stage_left(own, done_seconds, (benchmark.seconds or None) if stage == BENCHMARK else usual.get(stage))
    if generation is None or not usual:
        return TimeLeft(now)
    later = [name for name in STAGE_NAMES[STAGE_NAMES.index(stage) + 1 :] if name != BENCHMARK or generation in benchmark.due]
    costs = {**usual, BENCHMARK: benchmark.seconds}
    if now is None or any(name not in costs for name in later):
        return TimeLeft(now)
    of_generation = now + sum(costs[name] for name in later) - (shared if "update" in later else 0.0)
    of_others = max(planned - generation - 1, 0) * (sum(usual.values()) - shared)
    of_others += benchmark.seconds * sum(generation < one < planned for one in benchmark.due)
    return TimeLeft(now, max(of_generation, now), max(of_generation, now) + of_others)


def _stage_left(own: Sequence[Step], done_seconds: float, usual: float | None) -> float | None:
    whole = [step for step in own if step.part is None and step.reading is not None]
    for reading in (step.reading for step in whole):
        if reading is not None and reading.seconds_left is not None and reading.left_of == reading.counts[0][0]:
            return reading.seconds_left
    if usual is None:
        return None
    return max(usual - done_seconds - max((step.seconds for step in own), default=0.0), 0.0)


def _elapsed(clocks: Sequence[Mapping[str, object]]) -> float:
    seconds = [_number(clock.get("seconds")) for clock in clocks]
    starts = [_number(clock["started"]) for clock in clocks if "started" in clock]
    if len(clocks) == 1 or len(starts) < len(clocks):
        return sum(seconds)
    ends = [start + spent for start, spent in zip(starts, seconds, strict=True)]
    return min(sum(seconds), max(ends) - min(starts))


def _at_work(steps: Sequence[Manifest]) -> float:
    """Return the seconds in which any of these steps was at work."""
    found, until = 0.0, -math.inf
    for start, spent in sorted((_number(step.clock.get("started")), _number(step.clock.get("seconds"))) for step in steps):
        found += max(0.0, start + spent - max(start, until))
        until = max(until, start + spent)
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
