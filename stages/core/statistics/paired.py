"""Statistics of paired runs: intervals and tests over seeds, and the difference that this many seeds could detect.

Intervals are Student's t over seeds. The test is the paired t test, reported with the exact sign-flip test, which assumes
only symmetry. The smallest detectable difference is the one that this test finds with the given power at the observed spread
between seeds: nc * stderr, with nc from the noncentral t distribution. Seeds without any spread, such as two that both gained one
problem, do not say how large chance is: no interval, no t test and no detectable difference follows from them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import special

MOST_FLIPS = 16  # seeds; with more, there are too many sign flips
ROUNDING = 1e-12  # of values up to 1, or of the largest: seeds that differ by no more have no spread


@dataclass(frozen=True)
class SeedEstimate:
    """A mean over seeds with its standard error and t interval; None for what one seed, or equal ones, do not give."""

    n: int
    mean: float
    stderr: float | None
    low: float | None
    high: float | None


def over_seeds(values: Sequence[float], alpha: float) -> SeedEstimate:
    """Return the mean of one value per seed."""
    found = np.asarray(values, np.float64)
    n = len(found)
    if not n:
        return SeedEstimate(0, math.nan, None, None, None)
    mean = float(found.mean())
    if n == 1:
        return SeedEstimate(1, mean, None, None, None)
    if float(np.ptp(found)) <= ROUNDING * max(1.0, float(np.abs(found).max())):
        return SeedEstimate(n, mean, 0.0, None, None)
    stderr = float(found.std(ddof=1) / math.sqrt(n))
    reach = stderr * float(special.stdtrit(n - 1, 1 - alpha / 2))
    return SeedEstimate(n, mean, stderr, mean - reach, mean + reach)


def over_runs(values: Iterable[tuple[str, float]], alpha: float) -> SeedEstimate:
    """Return the mean over runs of (run, value), each run's values averaged first.

    Values of one run share its members, opponents and problems, so they are not independent and count as one.
    """
    by_run: dict[str, list[float]] = {}
    for run, value in values:
        by_run.setdefault(run, []).append(value)
    return over_seeds([math.fsum(own) / len(own) for own in by_run.values()], alpha)


def p_paired(estimate: SeedEstimate) -> float | None:
    """Two-sided p of the paired t test that the mean difference is zero; None without a spread between seeds."""
    if not estimate.stderr:
        return None
    return float(2 * special.stdtr(estimate.n - 1, -abs(estimate.mean) / estimate.stderr))


def p_flip(differences: Sequence[float]) -> float | None:
    """Two-sided p of the exact sign-flip test: the share of all sign patterns whose mean is as far from zero."""
    n = len(differences)
    if not 2 <= n <= MOST_FLIPS:
        return None
    values = np.abs(np.asarray(differences, np.float64))
    sums = np.array(list(product((1.0, -1.0), repeat=n))) @ values
    seen = abs(math.fsum(differences))
    return float((np.abs(sums) >= seen - 1e-9 * values.sum()).mean())  # the observed pattern counts, however its sum was rounded


def detectable(stderr: float | None, n: int, alpha: float, power: float) -> float | None:
    """The true difference that the two-sided paired t test finds with that power, at this spread between seeds, if any."""
    if not stderr or n < 2:
        return None
    critical = float(special.stdtrit(n - 1, 1 - alpha / 2))
    return stderr * float(special.nctdtrinc(n - 1, 1 - power, critical))
