"""How much a population's scores have changed since an earlier generation, paired problem by problem. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stages.core.suites.scores import Row, Slices, attempts_of, scored_rows
from stages.core.suites.statistics import Comparison, compare, pass_at_k


@dataclass(frozen=True)
class ScoreChange:
    """The change of one measure on one slice of the problems, members averaged within each problem.

    `before` and `after` are the means over the problems that both tables have.
    """

    group: str
    measure: str
    found: Comparison
    before: float
    after: float


def score_changes(after: pa.Table, before: pa.Table, slices: Slices) -> Iterator[ScoreChange]:
    """Yield the changes between two tables of ANSWERS to the same problems, by slice; only measures that both have.

    Measures are the greedy attempt, and pass@1 and pass@n of n sampled ones. Raises ValueError if members answered different
    problems.
    """
    earlier = dict(slices(scored_rows(before)))
    for group, rows in slices(scored_rows(after)):
        was = _measures(earlier.get(group, []))
        for measure, now in _measures(rows).items():
            if measure in was:
                yield _change(group, measure, now, was[measure])


def _change(group: str, measure: str, now: Mapping[str, float], was: Mapping[str, float]) -> ScoreChange:
    found = compare(now, was)
    before, after = (math.fsum(each[problem] for problem in now.keys() & was.keys()) / found.problems for each in (was, now))
    return ScoreChange(group, measure, found, before, after)


def _measures(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return each measure's score of every problem."""
    own: dict[str, list[Row]] = {}
    for row in rows:
        own.setdefault(row["member_id"], []).append(row)
    found: dict[str, dict[str, float]] = {}
    greedy = [attempts_of(each, greedy=True) for each in own.values()]
    if any(greedy):
        found["pass@1 greedy"] = _mean([_pass(each, 1) for each in greedy])
    drawn = [attempts_of(each, greedy=False) for each in own.values()]
    if any(drawn):
        fewest = min(len(attempts) for each in drawn for attempts in each.values())
        for k in sorted({1, fewest}):
            found[f"pass@{k}"] = _mean([_pass(each, k) for each in drawn])
    return found


def _pass(attempts: Mapping[str, Sequence[bool]], k: int) -> dict[str, float]:
    return {problem: pass_at_k(len(each), sum(each), k) for problem, each in attempts.items()}


def _mean(members: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if len({frozenset(each) for each in members}) > 1:
        raise ValueError("the members were scored on different problems")
    return {problem: sum(each[problem] for each in members) / len(members) for problem in members[0]}
