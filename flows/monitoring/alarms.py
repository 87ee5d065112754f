"""Alarms: what needs a person's attention in a run's numbers. Computed from stored tables only, so report and terminal agree.

| alarm | raised when |
|---|---|
| collapse | valid share below 10 %, or below half of its median so far; share of correct attempts below half of its median so |
| | far; entropy below a quarter of its median so far; more than half of the valid tasks repeat earlier ones, or ten |
| | generations in a row open no new cell of the problem space |
| forgetting | on the run's own suite, students solve fewer problems of a kind greedily than at the start or in an earlier |
| | generation, by more than three standard errors |
| one-sided | the students' mean chance to win, by rating, is below 10 % or above 90 % |
| zero-variance | more than 80 % of a role's groups have no signal: equal rewards, or no advantage |
| truncated | more than a quarter of proposals or answers hit the token limit |
| drift | engine and trainer differ on a member's tokens by more than half of what stops the run |
| lag | weights one step off-policy differ by more than 0.1 nats per token from those that wrote their samples |
| not-finite | an adapter took no step because the gradient, or the adapter after the step, was not finite |
| slow | a stage took more than six times its median over the other generations, and more than 5 s longer |
"""

import bisect
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flows.run.suite_versions import is_one_version
from stages.core.prompts.styles import Kind
from stages.core.statistics.metric_rows import ZERO_VARIANCE_LIMIT

LEAST_VALID, FALL, ENTROPY_FALL = 0.1, 0.5, 0.25
FORGOTTEN = 3.0  # standard errors of the difference, as if both scores were of different problems
ONE_SIDED = 0.1
TRUNCATED = 0.25
DRIFT = 0.5  # of the mean difference at which the run stops
LAG = 0.1  # four times the most that was measured (docs/metrics.md)
SLOW, SLOW_SECONDS = 6.0, 5.0
UNLIKE = ("evolve", "benchmark")  # stages that have work in some generations only, or other work
REPEATED = 0.5
KINDS = frozenset(Kind)
BARREN = 10  # generations without a new cell
HISTORY = 3  # generations before a fall can be detected
SPANS = 6  # ranges of generations that a line lists

WATCHED = (
    *("propose.valid_share", "propose.duplicate_share", "propose.truncated_share", "solve.truncated_share", "solve.rate"),
    *("coverage.new_cells", "reward.zero_variance_share"),
    *("update.entropy", "update.drift_mean", "update.lag_mean", "update.nonfinite"),
)
"""The metrics that alarms look at."""

Clock = Mapping[int, Mapping[str, float]]
"""Seconds by generation and stage."""
Measured = dict[tuple[str, str | None], dict[int, list[float]]]
"""Values of metrics by name and role, and by generation."""


@dataclass(frozen=True)
class Alarm:
    """One alarm in one generation."""

    generation: int
    name: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"g{self.generation:04d} {self.name}: {self.message}"


def alarms(
    metrics: pa.Table,
    ratings: pa.Table,
    clock: Clock,
    bounds: Mapping[int, float] | None = None,
    scores: Mapping[int, pa.Table] | None = None,
    suites: Mapping[int, str] | None = None,
) -> list[Alarm]:
    """Return all alarms in order of generations. METRICS and RATINGS have `generation` as their first column.

    `bounds` are the mean differences of engine and trainer at which the run stops, by generation, and `scores` the SCORES on the
    run's own suite, under -1 those of the start; `suites` has the version of the suite of each, as in `suite_version`.
    """
    read = _read(metrics)
    found = [
        *_collapsed(read),
        *_forgotten(scores or {}, suites or {}),
        *_one_sided(ratings),
        *_without_gradient(read),
        *_truncated(read),
    ]
    found += [*_drifted(read, bounds or {}), *_moved(read)]
    return sorted([*found, *_slow(clock)], key=lambda alarm: (alarm.generation, alarm.name, alarm.subject))


def summary(found: Iterable[Alarm]) -> list[str]:
    """Return one line for each kind of alarm and subject, with its generations and its latest message."""
    grouped: dict[tuple[str, str], list[Alarm]] = {}
    for alarm in found:
        grouped.setdefault((alarm.name, alarm.subject), []).append(alarm)
    return [f"{name}, {_spans([one.generation for one in group])}: {group[-1].message}" for (name, _), group in grouped.items()]


def _spans(generations: list[int]) -> str:
    """`generation 3`, or `generations 1 to 4 and 7`."""
    spans: list[list[int]] = []
    for generation in sorted(set(generations)):
        if spans and generation == spans[-1][1] + 1:
            spans[-1][1] = generation
        else:
            spans.append([generation, generation])
    if len(spans) > SPANS:
        return f"{len(set(generations))} of the generations {spans[0][0]} to {spans[-1][1]}"
    texts = [f"{low}" if low == high else f"{low} to {high}" for low, high in spans]
    word = "generation" if spans and texts == [f"{spans[0][0]}"] else "generations"
    return f"{word} {', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else f"{word} {texts[0]}"


def _read(metrics: pa.Table) -> Measured:
    """Return the finite values of the metrics that alarms look at, in one pass, by name, role and generation.

    Without a role: of all members. With one: of each of its members. With `all teachers` or the like: of the role as a whole.
    """
    wanted = pc.and_(pc.is_in(metrics["name"], value_set=pa.array(WATCHED)), pc.is_null(metrics["kind"]))
    chosen, found = metrics.filter(wanted), Measured()
    columns = [chosen[name].to_pylist() for name in ("generation", "name", "member_id", "role", "value")]
    for generation, name, member, role, value in zip(*columns, strict=True):
        if math.isfinite(value):
            whole = f"all {role}s" if role and member is None else role
            found.setdefault((name, whole), {}).setdefault(generation, []).append(value)
    return found


def _values(measured: Measured, name: str, role: str | None = None) -> dict[int, float]:
    """Return, by generation, the metric's mean over members (of the role) or its value for all members."""
    return {generation: statistics.fmean(values) for generation, values in sorted(measured.get((name, role), {}).items())}


def _collapsed(measured: Measured) -> list[Alarm]:
    found = []
    valid = _values(measured, "propose.valid_share")
    for generation, value, usual in _with_medians(valid):
        if value < LEAST_VALID or (usual is not None and value < FALL * usual):
            so_far = "" if usual is None else f"; the median before was {100 * usual:.0f} %"
            found.append(Alarm(generation, "collapse", "valid share", f"only {100 * value:.0f} % of proposals are valid{so_far}"))
    for generation, value, usual in _with_medians(_values(measured, "solve.rate")):
        if usual is not None and value < FALL * usual:
            message = f"only {100 * value:.0f} % of attempts are correct; the median before was {100 * usual:.0f} %"
            found.append(Alarm(generation, "collapse", "solve rate", message))
    found += _repeating(measured)
    for role in ("teacher", "student", "both"):
        for generation, value, usual in _with_medians(_values(measured, "update.entropy", role)):
            if usual is not None and value < ENTROPY_FALL * usual:
                message = f"entropy of {role}s fell to {value:.2f} nats per token; the median before was {usual:.2f}"
                found.append(Alarm(generation, "collapse", f"entropy {role}", message))
    return found


def _repeating(measured: Measured) -> list[Alarm]:
    """Yield an alarm if coverage stands still."""
    found = []
    for generation, share in _values(measured, "propose.duplicate_share").items():
        if share > REPEATED:
            message = f"{100 * share:.0f} % of the valid tasks repeat earlier ones"
            found.append(Alarm(generation, "collapse", "coverage", message))
    barren = 0
    for generation, cells in _values(measured, "coverage.new_cells").items():
        barren = 0 if cells else barren + 1
        if barren >= BARREN:
            message = f"no new cell of the problem space for {barren} generations"
            found.append(Alarm(generation, "collapse", "cells", message))
    return found


def _with_medians(values: Mapping[int, float]) -> Iterator[tuple[int, float, float | None]]:
    """Yield generation, value, and the median of the values before it; None before HISTORY values."""
    earlier: list[float] = []
    for generation, value in values.items():
        yield generation, value, statistics.median(earlier) if len(earlier) >= HISTORY else None
        bisect.insort(earlier, value)  # in order: a median sorts what is not


def _forgotten(scores: Mapping[int, pa.Table], suites: Mapping[int, str]) -> list[Alarm]:
    found, known = list[Alarm](), ""
    best: dict[str, tuple[float, float]] = {}  # of each kind: the highest score so far, and its variance
    for generation, table in sorted(scores.items()):
        version = suites.get(generation, "")
        if not is_one_version((known, version)):
            best.clear()
        known = version or known
        by_kind: dict[str, list[tuple[float, int]]] = {}
        for row in table.select(["role", "group", "measure", "score", "problems"]).to_pylist():
            if row["role"] != "teacher" and row["measure"] == "pass@1 greedy" and row["group"] in KINDS and row["problems"]:
                by_kind.setdefault(row["group"], []).append((row["score"], row["problems"]))
        for kind, members in by_kind.items():
            score, problems = statistics.fmean(one for one, _ in members), members[0][1]
            variance = score * (1 - score) / problems  # members answer the same problems, so they count once
            before = best.get(kind, (score, variance))
            if before[0] - score > FORGOTTEN * math.sqrt(before[1] + variance):
                shares = f"{100 * score:.0f} % of the {kind}s of the run's own suite are solved; earlier {100 * before[0]:.0f} %"
                found.append(Alarm(generation, "forgetting", kind, shares))
            best[kind] = max(before, (score, variance))
    return found


def _one_sided(ratings: pa.Table) -> list[Alarm]:
    chances: dict[int, list[float]] = {}
    for row in ratings.select(["generation", "role", "expected"]).to_pylist():
        if row["role"] == "student" and row["expected"] is not None:
            chances.setdefault(row["generation"], []).append(row["expected"])
    found = []
    for generation, values in chances.items():
        mean = statistics.fmean(values)
        if not ONE_SIDED <= mean <= 1 - ONE_SIDED:
            ahead = "teachers" if mean < ONE_SIDED else "students"
            message = f"{ahead} are far ahead: by rating, a student has a chance of {100 * mean:.0f} % to win"
            found.append(Alarm(generation, "one-sided", ahead, message))
    return found


def _without_gradient(measured: Measured) -> list[Alarm]:
    found = []
    for role in ("teacher", "student"):
        for generation, share in _values(measured, "reward.zero_variance_share", f"all {role}s").items():
            if share > ZERO_VARIANCE_LIMIT:
                message = f"{100 * share:.0f} % of the {role}s' groups have equal rewards or no advantage"
                found.append(Alarm(generation, "zero-variance", role, message))
    return found


def _truncated(measured: Measured) -> list[Alarm]:
    found = []
    for stage, what in (("propose", "proposals"), ("solve", "answers")):
        for generation, share in _values(measured, f"{stage}.truncated_share").items():
            if share > TRUNCATED:
                message = f"{100 * share:.0f} % of {what} hit the token limit"
                found.append(Alarm(generation, "truncated", stage, message))
    return found


def _drifted(measured: Measured, bounds: Mapping[int, float]) -> list[Alarm]:
    """A run stops for its worst member, so that one counts, not the mean of its role."""
    found = []
    for role in ("teacher", "student", "both"):
        for generation, values in sorted(measured.get(("update.drift_mean", role), {}).items()):
            if (bound := bounds.get(generation)) is not None and max(values) > DRIFT * bound:
                subject = "the agent" if role == "both" else f"a {role}"
                message = f"engine and trainer differ by {max(values):.2g} nats per token for {subject}; {bound:g} stop the run"
                found.append(Alarm(generation, "drift", role, message))
    return found


def _moved(measured: Measured) -> list[Alarm]:
    found = []
    for role in ("teacher", "student", "both"):
        for generation, value in _values(measured, "update.lag_mean", role).items():
            if value > LAG:
                whose = "agent's" if role == "both" else f"{role}s'"
                message = f"the {whose} weights have moved {value:.2f} nats per token from those that wrote their samples"
                found.append(Alarm(generation, "lag", role, message))
        for generation, share in _values(measured, "update.nonfinite", role).items():
            if share > 0:
                whose = "the agent's adapter" if role == "both" else f"{100 * share:.0f} % of the {role}s' adapters"
                message = f"{whose} took no step: the gradient, or the adapter after the step, was not finite"
                found.append(Alarm(generation, "not-finite", role, message))
    return found


def _slow(clock: Clock) -> list[Alarm]:
    found, spent = [], dict[str, list[float]]()
    for stages in clock.values():
        for stage, seconds in stages.items():
            spent.setdefault(stage, []).append(seconds)
    ordered = {stage: sorted(values) for stage, values in spent.items() if stage not in UNLIKE and len(values) > HISTORY}
    for generation, stages in clock.items():
        for stage, seconds in stages.items():
            if seconds <= SLOW_SECONDS or stage not in ordered:
                continue
            usual = _median_without(ordered[stage], bisect.bisect_left(ordered[stage], seconds))
            if seconds > SLOW * usual and seconds > usual + SLOW_SECONDS:
                message = f"{stage} took {seconds:.0f} s; the median of the other generations is {usual:.1f} s"
                found.append(Alarm(generation, "slow", stage, message))
    return found


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Return the median of these sorted values without the one at `place`."""
    count = len(ordered) - 1
    low, high = (ordered[index + (index >= place)] for index in ((count - 1) // 2, count // 2))
    return (low + high) / 2
