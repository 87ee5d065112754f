"""Statistics of scores: pass@k, avg@k, standard errors clustered by problem, paired comparisons. Pure.

A problem is one cluster: its attempts are averaged first, and the error is over problems. Undefined numbers are None (no error
with fewer than two problems) or raise (pass@k of fewer than k attempts); they are never filled in.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ScoreEstimate:
    """A mean over problems, its standard error (None for fewer than two), and how many problems."""

    mean: float
    stderr: float | None
    problems: int


def pass_at_k(attempts: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k (Chen et al. 2021). Raise ValueError if it is undefined (attempts < k)."""
    if attempts < k or k < 1:
        raise ValueError(f"pass@{k} is undefined for {attempts} attempts")
    return 1.0 - math.comb(attempts - correct, k) / math.comb(attempts, k)


def estimate(values: Sequence[float]) -> ScoreEstimate:
    """The mean of one value a problem, with its standard error."""
    if not values:
        raise ValueError("no problem")
    mean = math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values)
    stderr = math.sqrt(spread / (len(values) - 1) / len(values)) if len(values) > 1 else None
    return ScoreEstimate(mean, stderr, len(values))


def average(attempts: Mapping[str, Sequence[bool]]) -> ScoreEstimate:
    """avg@n: the share of right attempts, averaged over problems."""
    return estimate([sum(each) / len(each) for each in attempts.values()])


def passing(attempts: Mapping[str, Sequence[bool]], k: int) -> ScoreEstimate:
    """pass@k, averaged over problems. Raises ValueError where a problem has fewer than k attempts."""
    return estimate([pass_at_k(len(each), sum(each), k) for each in attempts.values()])


def powers(attempts: int) -> list[int]:
    """The k that pass@k is given for: powers of two up to the number of attempts, and that number."""
    return sorted({2**power for power in range(attempts.bit_length()) if 2**power <= attempts} | {attempts}) if attempts else []


@dataclass(frozen=True)
class Comparison:
    """How much better the first is than the second on the same problems; z is None if the error is unknown or zero."""

    difference: float
    stderr: float | None
    z: float | None
    problems: int
    better: int
    worse: int


def compare(first: Mapping[str, float], second: Mapping[str, float]) -> Comparison:
    """Return the paired difference of two players' scores over the problems that both have. Raise ValueError for none."""
    common = sorted(first.keys() & second.keys())
    differences = [first[problem] - second[problem] for problem in common]
    found = estimate(differences)
    z = found.mean / found.stderr if found.stderr else None
    better, worse = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    return Comparison(found.mean, found.stderr, z, found.problems, better, worse)


@dataclass(frozen=True)
class PopulationScore:
    """Mean, minimum and maximum over members; the error is that of the mean over problems, members averaged within each."""

    mean: float
    stderr: float | None
    lowest: float
    highest: float
    members: int
    problems: int


def population(scores: Mapping[str, Mapping[str, float]]) -> PopulationScore:
    """Summarize members' scores by problem, without a best-member headline. Raise ValueError for unequal problems."""
    names = {frozenset(each) for each in scores.values()}
    if len(names) != 1:
        raise ValueError("the members were scored on different problems")
    problems = sorted(names.pop())
    matrix = np.array([[each[problem] for problem in problems] for each in scores.values()])
    found, means = estimate(matrix.mean(0).tolist()), matrix.mean(1)
    return PopulationScore(found.mean, found.stderr, float(means.min()), float(means.max()), len(scores), len(problems))
