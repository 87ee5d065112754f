"""Comparison: do two arms differ, by how much, and what difference could this many seeds have shown?

The unit is the seed: runs of one seed share seed tasks, starting adapters and problems, so differences are taken within seeds
and only then averaged (`stages.core.paired`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stages.core.paired import detectable, over_seeds, p_flip, p_paired

_STR, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()

DIFFERENCES = pa.schema(
    [
        ("label", _STR),  # confirmatory or exploratory
        ("first", _STR),
        ("second", _STR),
        ("what", _STR),  # `score`, or the name of a metric
        ("measure", _STR),
        ("group", _STR),
        ("over", _STR),
        ("budget", _STR),
        ("at", _FLOAT),  # the mean over pairs of the amount at which they were compared
        ("seeds", pa.list_(pa.int64())),
        ("first_mean", _FLOAT),
        ("second_mean", _FLOAT),
        ("difference", _FLOAT),
        ("n", _INT),
        ("stderr", _FLOAT),
        ("low", _FLOAT),
        ("high", _FLOAT),
        ("p_t", _FLOAT),
        ("p_flip", _FLOAT),
        ("detectable", _FLOAT),
    ]
)
Point = Mapping[str, Any]
"""A scored state of a run: arm, seed, model, measure, group, over, score, and its amount of each budget so far."""


def at_budget(points: Sequence[Point], budget: str, amount: float) -> float:
    """The score at an amount of a budget, linear between the scored states of one run."""
    ordered = sorted(points, key=lambda point: point[budget])
    return float(np.interp(amount, [point[budget] for point in ordered], [point["score"] for point in ordered]))


def differences(
    points: Iterable[Point],
    contrasts: Sequence[tuple[str, str]],
    budgets: Sequence[str],
    primary: Mapping[str, Any],
    alpha: float,
    power: float,
) -> pa.Table:
    """DIFFERENCES of every contrast, measure, group, summary over members and budget, each at the largest amount of the budget
    that both runs of a pair reached. The row that equals `primary` in all its keys is confirmatory.

    Runs of different base models are no pair. A pair with a single scored state on one side has no slope and is left out, too.
    """
    runs: dict[tuple[str, ...], dict[tuple[str, int], list[Point]]] = {}
    for point in points:
        key = (point["what"], point["measure"], point["group"], point["over"])
        runs.setdefault(key, {}).setdefault((point["arm"], point["seed"]), []).append(point)
    rows = []
    for first, second in contrasts:
        for (what, measure, group, over), own in runs.items():
            for budget in budgets if what == "score" else ("generations",):
                scope = {"first": first, "second": second, "what": what, "measure": measure, "group": group, "over": over}
                row = _difference(own, scope | {"budget": budget}, alpha, power)
                if row is not None:
                    confirmatory = all(row[key] == value for key, value in primary.items())
                    rows.append(row | {"label": "confirmatory" if confirmatory else "exploratory"})
    return pa.Table.from_pylist(rows, schema=DIFFERENCES)


def _difference(
    runs: Mapping[tuple[str, int], list[Point]], scope: dict[str, Any], alpha: float, power: float
) -> dict[str, Any] | None:
    budget, pairs = scope["budget"], []
    for seed in sorted({seed for arm, seed in runs if arm == scope["first"]}):
        ours, theirs = runs[scope["first"], seed], runs.get((scope["second"], seed), [])
        if not theirs or {point["model"] for point in ours} != {point["model"] for point in theirs}:
            continue
        amount = min(max(point[budget] for point in side) for side in (ours, theirs))
        pairs.append((seed, amount, at_budget(ours, budget, amount), at_budget(theirs, budget, amount)))
    if not pairs:
        return None
    apart = [one - other for _, _, one, other in pairs]
    found = over_seeds(apart, alpha)
    return scope | {
        "at": math.fsum(amount for _, amount, _, _ in pairs) / len(pairs),
        "seeds": [seed for seed, _, _, _ in pairs],
        "first_mean": math.fsum(one for _, _, one, _ in pairs) / len(pairs),
        "second_mean": math.fsum(other for _, _, _, other in pairs) / len(pairs),
        "difference": found.mean,
        "n": found.n,
        "stderr": found.stderr,
        "low": found.low,
        "high": found.high,
        "p_t": p_paired(found),
        "p_flip": p_flip(apart),
        "detectable": detectable(found.stderr, found.n, alpha, power),
    }
