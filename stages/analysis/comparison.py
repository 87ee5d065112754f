"""Comparison: do two arms differ, by how much, and what difference could this many seeds detect? What changes in training?

The unit is the seed: runs of one seed share seed tasks, starting adapters and problems, so differences are computed within
seeds and then averaged (`stages.core.statistics.paired`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stages.core.statistics.paired import SeedEstimate, detectable, over_seeds, p_flip, p_paired

_STR, _INT, _FLOAT = pa.string(), pa.int64(), pa.float64()
_SPREAD = [("n", _INT), ("stderr", _FLOAT), ("low", _FLOAT), ("high", _FLOAT), ("p_t", _FLOAT), ("p_flip", _FLOAT)]

DIFFERENCES = pa.schema(
    [
        ("label", _STR),  # confirmatory or exploratory
        ("first", _STR),
        ("second", _STR),
        ("what", _STR),  # `score`, or the name of a metric
        ("measure", _STR),
        ("group", _STR),
        ("over", _STR),
        ("model", _STR),  # digest of the base model of the pairs
        ("budget", _STR),
        ("at", _FLOAT),  # the amount at which pairs were compared, averaged over pairs
        ("seeds", pa.list_(pa.int64())),
        ("first_mean", _FLOAT),
        ("second_mean", _FLOAT),
        ("difference", _FLOAT),
        *_SPREAD,
        ("detectable", _FLOAT),
    ]
)
CHANGES = pa.schema(
    [
        ("arm", _STR),
        ("measure", _STR),
        ("seeds", pa.list_(pa.int64())),
        ("early", _FLOAT),  # mean of the first third of the generations
        ("late", _FLOAT),  # of the last third
        ("change", _FLOAT),
        *_SPREAD,
        ("swing", _FLOAT),  # standard deviation of generations around their linear fit
        ("noise", _FLOAT),  # the part that sampling within a generation explains: root mean square of standard errors
    ]
)
GAINS = pa.schema(
    [
        ("arm", _STR),
        ("measure", _STR),
        ("group", _STR),
        ("over", _STR),
        ("seeds", pa.list_(pa.int64())),
        ("start", _FLOAT),  # of the base model
        ("end", _FLOAT),  # of the last scored state
        ("gain", _FLOAT),
        *_SPREAD,
    ]
)
EXTREMES = ("best", "worst")
"""Summaries over members that depend on their number: the best of four is higher than the best of one by chance alone."""
Point = Mapping[str, Any]
"""A scored state of a run: arm, seed, model, measure, group, over, members, score, and its amount of each budget so far."""


def at_budget(points: Sequence[Point], budget: str, amount: float) -> float:
    """Return the score at an amount of a budget, interpolated linearly between the scored states of one run.

    The amount must lie between those of the first and the last state.
    """
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
    """Return DIFFERENCES of every contrast, measure, group, summary over members, base model and budget.

    Each is taken at the largest amount of the budget that both runs of a pair reached. The row that equals `primary` in all its
    keys is confirmatory. Runs of different base models, or scored on different problems, do not form a pair. Nor does a run
    with no score after training; and a pair is left out where that amount lies before the first trained state of one run: what
    happens between the start and that state is unknown, and a straight line would understate it. Metrics have one state, the
    end of the run, so their pairs are runs of equally many generations. The best or worst members of runs form a pair only if
    equally many were scored.
    """
    runs: dict[tuple[str, ...], dict[tuple[str, int], list[Point]]] = {}
    for point in points:
        key = (point["what"], point["measure"], point["group"], point["over"], point["model"])
        runs.setdefault(key, {}).setdefault((point["arm"], point["seed"]), []).append(point)
    rows = []
    for first, second in contrasts:
        for (what, measure, group, over, model), own in runs.items():
            scope = {"first": first, "second": second, "what": what, "measure": measure, "group": group, "over": over}
            for budget in budgets if what == "score" else ("generations",):
                row = _difference(own, scope | {"model": model, "budget": budget}, alpha, power)
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
        if not theirs or not _comparable(ours, theirs):
            continue
        trained = [[point for point in side if point["trained"]] for side in (ours, theirs)]
        if not all(trained) or not _as_many(trained[0], trained[1], scope["over"]):
            continue
        amounts = [[point[budget] for point in side] for side in trained]
        amount = min(map(max, amounts))
        if amount < max(map(min, amounts)):
            continue
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
        **_spread(found, apart),
        "detectable": detectable(found.stderr, found.n, alpha, power),
    }


def _comparable(ours: Sequence[Point], theirs: Sequence[Point]) -> bool:
    """Return whether two runs, as far as it is known, were scored on the same problems."""
    for key in ("problems", "suite_sha256"):
        one, other = ({point.get(key) for point in side} - {None, ""} for side in (ours, theirs))
        if one and other and one != other:
            return False
    return True


def _as_many(ours: Sequence[Point], theirs: Sequence[Point], over: str) -> bool:
    """Return whether a summary over members may be compared: an extreme only if it is one of equally many."""
    return over not in EXTREMES or {point["members"] for point in ours} == {point["members"] for point in theirs}


def _spread(found: SeedEstimate, apart: Sequence[float]) -> dict[str, Any]:
    """Return the columns of _SPREAD."""
    own = {"n": found.n, "stderr": found.stderr, "low": found.low, "high": found.high}
    return own | {"p_t": p_paired(found), "p_flip": p_flip(apart)}


def gains(points: Iterable[Point], alpha: float) -> pa.Table:
    """Return GAINS of every arm, measure, group and summary over members, from its start to its last scored state.

    A run whose start was not scored, or nothing after it, is left out, and so is the best or worst of several members: the start
    is one model.
    """
    runs: dict[tuple[str, ...], dict[int, list[Point]]] = {}
    for point in points:
        key = (point["arm"], point["measure"], point["group"], point["over"])
        runs.setdefault(key, {}).setdefault(point["seed"], []).append(point)
    rows = []
    for (arm, measure, group, over), own in runs.items():
        ends = {seed: (min(one, key=_trained), max(one, key=_trained)) for seed, one in sorted(own.items())}
        whole = {
            seed: (first["score"], last["score"])
            for seed, (first, last) in ends.items()
            if not first["trained"] and last["trained"] and _as_many([first], [last], over)
        }
        if whole:
            apart = [end - start for start, end in whole.values()]
            found = over_seeds(apart, alpha)
            start, end = (float(np.mean(side)) for side in zip(*whole.values(), strict=True))
            scope = {"arm": arm, "measure": measure, "group": group, "over": over, "seeds": list(whole)}
            rows.append(scope | {"start": start, "end": end, "gain": found.mean} | _spread(found, apart))
    return pa.Table.from_pylist(rows, schema=GAINS)


def _trained(point: Point) -> int:
    return int(point["trained"])


def changes(curves: Iterable[Point], alpha: float) -> pa.Table:
    """Return CHANGES of every arm and metric from the first third of a run's generations to the last, over seeds.

    A curve's row has arm, seed, name, trained (generations so far), value, and stderr if the generation reports one. The run's
    generations are those of all its metrics: a metric that ended early, such as the solve rate of a run that poses no tasks any
    more, has no last third. A run with no value in one of the thirds is left out of the metric's row.
    """
    runs: dict[tuple[str, str], dict[int, list[Point]]] = {}
    done: dict[tuple[str, int], int] = {}
    for row in curves:
        runs.setdefault((row["arm"], row["name"]), {}).setdefault(row["seed"], []).append(row)
        done[row["arm"], row["seed"]] = max(row["trained"], done.get((row["arm"], row["seed"]), 0))
    rows = []
    for (arm, name), own in sorted(runs.items()):
        found = {seed: _ends(points, done[arm, seed]) for seed, points in sorted(own.items())}
        thirds = {seed: ends for seed, ends in found.items() if ends is not None}
        if thirds:
            rows.append({"arm": arm, "measure": name, "seeds": list(thirds)} | _change(list(thirds.values()), alpha))
    return pa.Table.from_pylist(rows, schema=CHANGES)


def _ends(points: Sequence[Point], last: int) -> tuple[float, float, float, float | None] | None:
    """Return (early mean, late mean, swing, noise) of one curve of a run with `last` generations."""
    third = max(1, last // 3)
    early = [point["value"] for point in points if point["trained"] <= third]
    late = [point["value"] for point in points if point["trained"] > last - third]
    if not early or not late or last < 2:
        return None
    x, y = np.array([(point["trained"], point["value"]) for point in points]).T
    rest = y - np.polynomial.Polynomial.fit(x, y, 1)(x)
    errors = [point["stderr"] for point in points if point["stderr"] is not None]
    noise = float(np.sqrt(np.mean(np.square(errors)))) if errors else None
    return float(np.mean(early)), float(np.mean(late)), float(np.sqrt(np.sum(rest**2) / max(1, len(x) - 2))), noise


def _change(runs: Sequence[tuple[float, float, float, float | None]], alpha: float) -> dict[str, Any]:
    apart = [late - early for early, late, _, _ in runs]
    found = over_seeds(apart, alpha)
    noises = [noise for _, _, _, noise in runs if noise is not None]
    return {
        "early": float(np.mean([early for early, _, _, _ in runs])),
        "late": float(np.mean([late for _, late, _, _ in runs])),
        "change": found.mean,
        **_spread(found, apart),
        "swing": float(np.mean([swing for _, _, swing, _ in runs])),
        "noise": float(np.mean(noises)) if noises else None,
    }
