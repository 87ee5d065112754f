"""Statistics of scores: pass@k, avg@k, standard errors clustered by program, paired comparisons. Pure.

Attempts at a problem are averaged first. Problems that ask about one program in several ways are alike and form a cluster; any
other problem is a cluster of its own. Undefined numbers are None (no error with fewer than two clusters) or raise (pass@k of
fewer than k attempts); they are never filled in.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STAIRCASE = re.compile(r"^(dev|test)-(?:deduction|abduction|induction)-(\d{2}-\d+)$")
_CRUXEVAL = re.compile(r"/[io]$")


@dataclass(frozen=True)
class ScoreEstimate:
    """A mean over problems, its standard error (None for fewer than two clusters), and how many problems."""

    mean: float
    stderr: float | None
    problems: int


def pass_at_k(attempts: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k (Chen et al. 2021). Raise ValueError if it is undefined (attempts < k)."""
    if attempts < k or k < 1:
        raise ValueError(f"pass@{k} is undefined for {attempts} attempts")
    return 1.0 - math.comb(attempts - correct, k) / math.comb(attempts, k)


def cluster_of(problem_id: str) -> str:
    """Return what the problems that ask about one program share: the id without its kind (staircase), `/o` or `/i` (CRUXEval).

    The kinds of a staircase's depth are numbered alike, with two digits for the depth. Ids of the probe have one: there, every
    problem has a program of its own.
    """
    return _STAIRCASE.sub(r"\1-\2", _CRUXEVAL.sub("", problem_id))


def estimate(values: Mapping[str, float]) -> ScoreEstimate:
    """The mean of one value a problem, with its standard error, robust to what the problems of a cluster share.

    With C clusters of n problems in all, sqrt(C / (C - 1) * sum over clusters of (sum of value - mean)^2) / n. Without shared
    programs that is the usual error over problems.
    """
    if not values:
        raise ValueError("no problem")
    mean = math.fsum(values.values()) / len(values)
    apart: dict[str, list[float]] = {}
    for problem_id, value in values.items():
        apart.setdefault(cluster_of(problem_id), []).append(value - mean)
    spread, clusters, problems = math.fsum(math.fsum(own) ** 2 for own in apart.values()), len(apart), len(values)
    stderr = math.sqrt(spread / (clusters - 1) / problems * (clusters / problems)) if clusters > 1 else None
    return ScoreEstimate(mean, stderr, problems)


def average(attempts: Mapping[str, Sequence[bool]]) -> ScoreEstimate:
    """avg@n: the share of right attempts, averaged over problems."""
    return estimate({problem_id: sum(each) / len(each) for problem_id, each in attempts.items()})


def passing(attempts: Mapping[str, Sequence[bool]], k: int) -> ScoreEstimate:
    """pass@k, averaged over problems. Raises ValueError where a problem has fewer than k attempts."""
    return estimate({problem_id: pass_at_k(len(each), sum(each), k) for problem_id, each in attempts.items()})


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
    differences = {problem: first[problem] - second[problem] for problem in sorted(first.keys() & second.keys())}
    found = estimate(differences)
    z = found.mean / found.stderr if found.stderr else None
    better, worse = sum(each > 0 for each in differences.values()), sum(each < 0 for each in differences.values())
    return Comparison(found.mean, found.stderr, z, found.problems, better, worse)


@dataclass(frozen=True)
class PopulationScore:
    """Mean, minimum and maximum over members, and an upper bound of the mean's standard error (None if unknown)."""

    mean: float
    stderr: float | None
    lowest: float
    highest: float
    members: int


def population(scores: Sequence[float], stderrs: Sequence[float | None]) -> PopulationScore:
    """Summarize members' scores on the same problems, given each one's standard error over problems.

    The error is the mean of the members' errors. It is an upper bound of that of the members' mean, which only the answers can
    tell, and equals it where all members solve and fail the same problems. None if one member's error is None.
    """
    known = [error for error in stderrs if error is not None]
    stderr = math.fsum(known) / len(known) if len(known) == len(stderrs) else None
    return PopulationScore(math.fsum(scores) / len(scores), stderr, min(scores), max(scores), len(scores))
