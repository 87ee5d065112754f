"""Rows of METRICS: a mean with its number of observations and its standard error, for one member or all members.

Attempts at one task, or proposals from one prompt, resemble each other, so each such cluster counts as one observation: its
mean (as in `stages.core.statistics.estimates`). Tasks of one prompt are alike, too: they stay observations of their own, so
that a solve rate is one over tasks, but the error takes those of a prompt together. A count or a ratio of totals has no
sampling error; its `n` is what it was taken over.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]

ZERO_VARIANCE_LIMIT = 0.8
"""Share of a role's groups with equal rewards above which an alarm is raised (measured in docs/evidence.md)."""


def mean_row(
    name: str,
    values: Iterable[float],
    clusters: Sequence[Hashable] | None = None,
    member_id: str | None = None,
    role: str | None = None,
    kind: str | None = None,
    opponent_id: str | None = None,
    groups: Mapping[Any, Hashable] | None = None,
) -> Row:
    """Return the mean of cluster means with its standard error (null for fewer than two clusters); NaN and null if empty."""
    value, stderr, n = clustered(list(values), clusters, groups)
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


def clustered(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, groups: Mapping[Any, Hashable] | None = None
) -> tuple[float, float | None, int]:
    """(mean of cluster means, standard error, clusters); values that are not finite are left out.

    Clusters of one group, by `groups`, are not independent; a cluster that it does not name is a group of its own. With G
    groups of c clusters in all, the error is sqrt(G / (G - 1) * sum over groups of (sum of mean - value)^2) / c; none for one
    group.
    """
    found: dict[Hashable, list[float]] = {}
    for place, value in enumerate(values):
        if math.isfinite(value):
            found.setdefault(place if clusters is None else clusters[place], []).append(float(value))
    means = {cluster: math.fsum(own) / len(own) for cluster, own in found.items()}
    if not means:
        return math.nan, None, 0
    mean, apart = math.fsum(means.values()) / len(means), dict[Hashable, list[float]]()
    for cluster, one in means.items():
        apart.setdefault((groups or {}).get(cluster, cluster), []).append(one - mean)
    if len(apart) < 2:
        return mean, None, len(means)
    squares = math.fsum(math.fsum(own) ** 2 for own in apart.values())
    return mean, math.sqrt(squares / (len(apart) - 1) / len(means) * (len(apart) / len(means))), len(means)
