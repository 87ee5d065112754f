"""Rows of METRICS: a mean with its number of observations and its standard error, for one member or all members.

Attempts at one task, or proposals from one prompt, resemble each other, so each such cluster counts as one observation: its
mean (as in `stages.core.statistics.estimates`). A count or a ratio of totals has no sampling error; its `n` is what it was
taken over.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]

ZERO_VARIANCE_LIMIT = 0.8
"""Share of a role's groups without a signal above which an alarm is raised.

docs/evidence.md measured it on groups of equal rewards alone; groups with centred rewards of 0, which count today, are more.
"""


def mean_row(
    name: str,
    values: Iterable[float],
    clusters: Sequence[Hashable] | None = None,
    member_id: str | None = None,
    role: str | None = None,
    kind: str | None = None,
    opponent_id: str | None = None,
) -> Row:
    """Return the mean of cluster means with its standard error (null for fewer than two clusters); NaN and null if empty."""
    value, stderr, n = clustered(list(values), clusters)
    scope = {"member_id": member_id, "role": role, "kind": kind, "opponent_id": opponent_id}
    return {"name": name, "value": value, "n": n, "stderr": stderr} | scope


def student_rows(name: str, observed: Sequence[tuple[float, str, str]]) -> list[Row]:
    """Return the mean over all students and of each, from (value, task id, student id). Answers of a task are one cluster."""
    rows = [mean_row(name, [value for value, _, _ in observed], [task for _, task, _ in observed])]
    for student in sorted({student for _, _, student in observed}):
        own = [(value, task) for value, task, one in observed if one == student]
        rows.append(mean_row(name, [value for value, _ in own], [task for _, task in own], student, "student"))
    return rows


def value_row(name: str, value: float, n: int | None = None, **scope: str | None) -> Row:
    """Return a row with a number that is not a mean: a count, a distance, a ratio of totals."""
    return {"name": name, "value": float(value), "n": n, "stderr": None, "member_id": None, "role": None, "kind": None} | scope


def clustered(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> tuple[float, float | None, int]:
    """(mean of cluster means, standard error, clusters); values that are not finite are left out."""
    groups: dict[Hashable, list[float]] = {}
    for place, value in enumerate(values):
        if math.isfinite(value):
            groups.setdefault(place if clusters is None else clusters[place], []).append(float(value))
    means = [math.fsum(group) / len(group) for group in groups.values()]
    if not means:
        return math.nan, None, 0
    mean = math.fsum(means) / len(means)
    if len(means) < 2:
        return mean, None, 1
    squares = math.fsum((one - mean) ** 2 for one in means)
    return mean, math.sqrt(squares / (len(means) - 1) / len(means)), len(means)
