"""Figures of a suite with graded problems: what the members of a run, or the arms of an experiment, solve in each band."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.ticker import MaxNLocator

from stages.core.statistics.estimates import only
from stages.core.statistics.paired import SeedEstimate, over_seeds
from stages.figures.measures import colours_of
from stages.figures.panels import KIND, MUTED
from stages.figures.plates import Plate, canvas, label, legend, note

MEASURE = "pass@1 greedy"
_BAND = " band "  # between kind and number, in a group of SCORES
Graded = Mapping[int, Sequence[dict[str, Any]]]
"""Band -> scores of every student at one point of training."""


def difficulty(scores: pa.Table) -> Plate:
    """What students solve in each band of each kind, at the first and at the last point of training that was scored.

    Newborns and adapters that somebody chose are left out: their mean is not that of the students.
    """
    plate = Plate("difficulty", "At which difficulty do members gain?", "No suite with bands has been scored yet.", ("scores",))
    rows = only(scores, measure=MEASURE).to_pylist()
    graded = [row for row in rows if row["population"] and row["role"] != "teacher" and _BAND in row["group"]]
    if not graded:
        return plate
    suite, rows = _most_scored(graded)
    kinds = [kind for kind in KIND if any(row["group"].startswith(f"{kind} ") for row in rows)]
    first, last = min(row["trained"] for row in rows), max(row["trained"] for row in rows)
    points = [(first, MUTED, ":")] if first == last else [(first, MUTED, ":"), (last, "", "-")]
    step = "depth" if suite.startswith("staircase") else "band"
    figure, axes = canvas(plate.question, len(kinds), 1, 0.9 + 1.9 * len(kinds))
    for ax, kind in zip(axes, kinds, strict=True):
        for trained, colour, dashes in points:
            _curve(ax, _at(rows, kind, trained), f"{trained} generations trained", colour or KIND[kind], dashes)
        ax.set_ylim(0, 105)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        label(ax, f"{kind}: solved (%)", step if kind == kinds[-1] else "")
    legend(axes[0], 2)
    members = max(len(found) for kind in kinds for found in _at(rows, kind, last).values())
    caption = (
        f"Suite {suite}, greedy, mean of the students as trained (at most {members}). Bars are the mean of their standard errors "
        f"over problems; n = {_range(row['problems'] for row in rows)} problems per kind and {step}."
        + (" Scored at one point of training, so far: no gain can be seen." if first == last else "")
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def difficulty_of_arms(points: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> Plate:
    """What each arm of an experiment solves in each band at its last scored state, and what was solved before training.

    `points` are scores of single bands by one measure: arm, seed, base model, group, generations trained and score.
    """
    plate = Plate("difficulty", "At which difficulty do arms gain?", "No finished run has scores by band.", ("scores",))
    kinds = [kind for kind in KIND if any(point["group"].startswith(f"{kind}{_BAND}") for point in points)]
    if not kinds:
        return plate
    figure, axes = canvas(plate.question, len(kinds), 1, 0.9 + 2.2 * len(kinds))
    for ax, kind in zip(axes, kinds, strict=True):
        own = [point for point in points if point["group"].startswith(f"{kind}{_BAND}")]
        before = [point for point in own if not point["trained"]]
        models = sorted({point["model"] for point in before})
        names = {model: "before training" + (f", {model[:8]}" if len(models) > 1 else "") for model in models}
        lines = [(names[model], MUTED, ":", [point for point in before if point["model"] == model]) for model in models]
        lines += [(arm, colour, "-", _last(own, arm)) for arm, colour in colours_of(arms).items()]
        for name, colour, dashes, some in (line for line in lines if line[3]):
            _seeds_curve(ax, _by_band(some), name, colour, dashes)
        ax.set_ylim(0, 105)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        label(ax, f"{kind}: solved (%)", "depth or band" if kind == kinds[-1] else "")
    legend(axes[0], 3)
    seeds = {arm: len({point["seed"] for point in points if point["arm"] == arm and point["trained"]}) for arm in arms}
    caption = (
        "Mean over seeds at the last scored state; bars are ±1 standard error over seeds (none for one seed). "
        f"n = {_range(point['problems'] for point in points)} problems per kind and band; "
        f"seeds: {', '.join(f'{arm} {count}' for arm, count in seeds.items() if count)}."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def _last(points: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    """Each run's points at its last scored state."""
    own = [point for point in points if point["arm"] == arm and point["trained"]]
    last = {seed: max(point["trained"] for point in own if point["seed"] == seed) for seed in {point["seed"] for point in own}}
    return [point for point in own if point["trained"] == last[point["seed"]]]


def _by_band(points: Sequence[Mapping[str, Any]]) -> dict[int, SeedEstimate]:
    """Band -> percent solved. Runs of one seed share their start, which counts once."""
    found = defaultdict[int, dict[int, float]](dict)
    for point in points:
        found[int(point["group"].split(_BAND)[1])][point["seed"]] = 100 * point["score"]
    return {band: over_seeds(list(found[band].values()), 0.05) for band in sorted(found)}


def _seeds_curve(ax: Any, bands: Mapping[int, SeedEstimate], name: str, colour: str, dashes: str) -> None:
    x, y = np.array(list(bands)), np.array([one.mean for one in bands.values()])
    error = np.array([one.stderr or 0.0 for one in bands.values()])
    look = {"color": colour, "linestyle": dashes, "marker": "o", "markersize": 3, "linewidth": 1.4, "capsize": 1.5}
    ax.errorbar(x, y, error, label=name, **look)
    note(ax, name, colour, x, y, error, [one.n for one in bands.values()], dashes)


def _most_scored(rows: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the suite that was scored at most points of training, each time on the same number of problems, and its rows."""
    asked = Counter[tuple[str, str, str]]()
    for row in rows:
        asked[row["suite"], row["uri"], row["adapter_id"]] += row["problems"]
    sets = defaultdict[tuple[str, int], list[dict[str, Any]]](list)
    for row in rows:
        sets[row["suite"], asked[row["suite"], row["uri"], row["adapter_id"]]].append(row)
    (suite, _), found = max(sets.items(), key=lambda one: (len({row["trained"] for row in one[1]}), *one[0]))
    return suite, found


def _at(rows: Iterable[dict[str, Any]], kind: str, trained: int) -> Graded:
    """An adapter that was scored twice counts once."""
    found = defaultdict[int, dict[str, dict[str, Any]]](dict)
    for row in rows:
        own, band = row["group"].split(_BAND)
        if own == kind and row["trained"] == trained:
            found[int(band)][row["adapter_id"]] = row
    return {band: list(found[band].values()) for band in sorted(found)}


def _range(numbers: Iterable[int]) -> str:
    low, *_, high = sorted(numbers) * 2
    return str(low) if low == high else f"{low} to {high}"


def _curve(ax: Any, graded: Graded, name: str, colour: str, dashes: str) -> None:
    x = np.array(list(graded))
    y = np.array([100 * np.mean([row["score"] for row in found]) for found in graded.values()])
    errors = [[math.nan if row["stderr"] is None else row["stderr"] for row in found] for found in graded.values()]
    error = np.array([100 * np.mean(own) for own in errors])
    look = {"color": colour, "linestyle": dashes, "marker": "o", "markersize": 3, "linewidth": 1.4, "capsize": 1.5}
    ax.errorbar(x, y, np.nan_to_num(error), label=name, **look)
    note(ax, name, colour, x, y, error, [found[0]["problems"] for found in graded.values()], dashes)
