"""Figures over several runs: scores against what they cost, curves of training, and differences between arms.

Lines are means over seeds, bands their t intervals; thin lines are single runs if there are few. Each arm keeps one colour.
"""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stages.core.statistics.paired import over_runs, over_seeds
from stages.figures.measures import COLOURS, CURVES, UNITS, colours_of
from stages.figures.panels import INK, MUTED, SMALL
from stages.figures.plates import LINE_INCHES, Plate, canvas, label, legend

PAIR_LETTERS = 30  # of a line that names two arms beside the axes
Row = Mapping[str, Any]
Scored = dict[int, tuple[float, float]]
"""The scored states of a run: amount of a budget and score, by generations trained."""


def scores(points: Sequence[Row], arms: Sequence[str], budget: str, what: str, alpha: float) -> Plate:
    """Score against an amount of a budget."""
    question = f"What do {UNITS[budget]} buy?"
    plate = Plate(f"score-{budget.replace('_', '-')}", question, "No member has been scored yet.", ("scores",))
    if not points:
        return plate
    figure, (ax,) = canvas(question, height=3.1)
    counts = []
    for arm, colour in colours_of(arms).items():
        runs = _by_seed(points, arm, budget)
        x, means, lows, highs = _states(runs, alpha)
        if not len(x):
            continue
        ax.fill_between(x, 100 * lows, 100 * highs, color=colour, alpha=0.15, linewidth=0)
        ax.plot(x, 100 * means, color=colour, marker="o", markersize=3, linewidth=1.5, label=arm)
        for run in runs.values():
            amounts, own = zip(*run.values(), strict=True)
            ax.plot(amounts, [100 * score for score in own], color=colour, linewidth=0.5, alpha=0.5)
        counts.append(f"{arm} {len(runs)}")
    label(ax, f"{what} (%)", UNITS[budget])
    ax.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5))
    legend(ax, 3)
    caption = (
        f"Mean over seeds of each run's score; thin lines are runs, bands {100 * (1 - alpha):.0f} % t intervals over seeds at "
        f"each state that all runs of the arm have scored. n = seeds: {', '.join(counts)}."
    )
    return Plate(plate.name, question, caption, plate.tables, figure)


def _by_seed(points: Sequence[Row], arm: str, budget: str) -> dict[int, Scored]:
    runs: defaultdict[int, Scored] = defaultdict(dict)
    for point in sorted(points, key=lambda point: int(point["trained"])):
        if point["arm"] == arm:
            runs[point["seed"]][point["trained"]] = point[budget], point["score"]
    return dict(runs)


def _states(runs: Mapping[int, Scored], alpha: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(mean amount, mean score, low, high) at each age that all runs of the arm have scored."""
    ages = sorted(set.intersection(*(set(run) for run in runs.values()))) if runs else []
    at = [float(np.mean([run[age][0] for run in runs.values()])) for age in ages]
    found = [over_seeds([run[age][1] for run in runs.values()], alpha) for age in ages]
    mean = np.array([one.mean for one in found])
    low = np.array([one.mean if one.low is None else one.low for one in found])
    high = np.array([one.mean if one.high is None else one.high for one in found])
    return np.array(at), mean, low, high


def training(curves: Sequence[Row], arms: Sequence[str], name: str, alpha: float) -> Plate:
    """One metric over generations."""
    question = CURVES[name][0].upper() + CURVES[name][1:]
    slug = name.replace(".", "-").replace("_", "-").replace(" ", "-").replace("(", "").replace(")", "")
    plate = Plate(f"curve-{slug}", question, "Nothing measured yet.", ("metrics",))
    own = [row for row in curves if row["name"] == name]
    if not own:
        return plate
    figure, (ax,) = canvas(question)
    counts = []
    for arm, colour in colours_of(arms).items():
        found = defaultdict(list)
        for row in own:
            if row["arm"] == arm:
                found[row["trained"]].append(row["value"])
        if not found:
            continue
        x = np.array(sorted(found))
        estimates = [over_seeds(found[at], alpha) for at in x.tolist()]
        mean = np.array([one.mean for one in estimates])
        reach = np.array([one.stderr or 0.0 for one in estimates])
        ax.fill_between(x, mean - reach, mean + reach, color=colour, alpha=0.2, linewidth=0)
        ax.plot(x, mean, color=colour, linewidth=1.3, label=arm, marker="" if len(x) > 12 else "o", markersize=3)
        fewest, most = min(map(len, found.values())), max(map(len, found.values()))
        counts.append(f"{arm} {most}" if fewest == most else f"{arm} {fewest} to {most}")
    label(ax, textwrap.fill(CURVES[name], 30), "generations trained")
    legend(ax, 3)
    caption = f"Means over seeds; bands are ±1 standard error over seeds. n = seeds: {', '.join(counts)}."
    return Plate(plate.name, question, caption, plate.tables, figure)


def forest(differences: pa.Table, alpha: float) -> Plate:
    """Differences with their intervals and the smallest ones that could have been detected."""
    question = "How do the arms differ?"
    plate = Plate("differences", question, "No two finished runs share a seed yet.", ("differences",))
    rows = differences.to_pylist()
    if not rows:
        return plate
    names = [textwrap.fill(f"{name} (n={row['n']})", PAIR_LETTERS) for name, row in zip(contrasts(rows), rows, strict=True)][::-1]
    most = max(name.count("\n") for name in names)
    figure, (ax,) = canvas(question, height=1.2 + (0.36 + LINE_INCHES * most) * len(rows))
    for place, row in enumerate(reversed(rows)):
        confirmatory = row["label"] == "confirmatory"
        middle = 100 * row["difference"]
        if row["detectable"] is not None:
            ax.plot([-100 * row["detectable"], 100 * row["detectable"]], [place, place], color=MUTED, linewidth=6, alpha=0.25)
        if row["low"] is not None:
            ax.plot([100 * row["low"], 100 * row["high"]], [place, place], color=INK, linewidth=1.8 if confirmatory else 1.0)
        ax.plot([middle], [place], "D" if confirmatory else "o", color=INK, markersize=5 if confirmatory else 4)
    ax.set_yticks(range(len(rows)), names, fontsize=SMALL)
    if most:
        ax.set_ylim(-0.6, len(rows) - 0.4)  # several lines reach further than their point
    ax.axvline(0, color=MUTED, linewidth=0.8)
    label(ax, "", "difference of scores (percentage points)")
    marked = "The diamond is the confirmatory comparison. " if any(row["label"] == "confirmatory" for row in rows) else ""
    caption = (
        f"First minus second arm, paired by seed; bars are {100 * (1 - alpha):.0f} % t intervals over seeds (none without a "
        f"spread). {marked}Grey: true differences that this many seeds would probably have missed."
    )
    return Plate(plate.name, question, caption, plate.tables, figure)


def contrasts(rows: Sequence[Row]) -> list[str]:
    """Return what each difference is of: its arms, and its base model if the rows have several."""
    several = len({row["model"] for row in rows}) > 1
    return [f"{row['first']} − {row['second']}" + (f" on {row['model'][:8]}" if several else "") for row in rows]


def leak(curves: Mapping[str, Mapping[float, tuple[Sequence[float], Sequence[float]]]], what: str, alpha: float) -> Plate:
    """Skill and validity against the share of wrong verdicts that pass: by name and leak, the seeds' values of both."""
    question = "What does a leaking judge do?"
    plate = Plate("leak", question, "No run is finished yet.", ("scores", "metrics"))
    if not any(curves.values()):
        return plate
    figure, axes = canvas(question, columns=2)
    counts = []
    for name, colour in colours_of(list(curves)).items():
        for place, ax in enumerate(axes):
            found = {at: over_seeds(values[place], alpha) for at, values in sorted(curves[name].items()) if values[place]}
            x, mean = np.array(list(found)), np.array([100 * one.mean for one in found.values()])
            reach = [100 * (one.stderr or 0.0) for one in found.values()]
            ax.errorbar(x, mean, reach, color=colour, marker="o", markersize=3, linewidth=1.3, capsize=2, label=name)
        seeds = [str(len(values[0])) for _, values in sorted(curves[name].items())]
        counts.append(f"{name} {', '.join(seeds) or 'none'}")
    label(axes[0], f"{what} (%)", "leak")
    label(axes[1], "valid proposals (%)", "leak")
    legend(axes[0], 3)
    caption = (
        "Leak: the share of wrong verdicts that pass. Left: scores at the end of the runs, judged without it. "
        "Right: truly valid proposals over the last third. "
        f"Means over seeds ±1 standard error. n = seeds at each leak: {'; '.join(counts)}."
    )
    return Plate(plate.name, question, caption, plate.tables, figure)


def clones(pairs: Sequence[Row], alpha: float) -> Plate:
    """The score of a child minus that of its clone, by age: every pair, and the mean over runs with its interval."""
    question = "Is a child worth more than a copy of its parent?"
    plate = Plate("clones", question, "No pair has scores.", ("pairs",))
    known = [row for row in pairs if row["difference"] is not None]
    if not known:
        return plate
    figure, (ax,) = canvas(question)
    lines = defaultdict(list)
    for row in known:
        lines[row["run"], row["generation"], row["member"]].append((row["age"], 100 * row["difference"]))
    for line in lines.values():
        ax.plot(*zip(*sorted(line), strict=True), color=MUTED, linewidth=0.7, marker="o", markersize=2)
    ages = sorted({row["age"] for row in known})
    found = [over_runs([(row["run"], row["difference"]) for row in known if row["age"] == age], alpha) for age in ages]
    reach = [100 * (one.mean - one.low) if one.low is not None else 0.0 for one in found]
    ax.errorbar(
        ages, [100 * one.mean for one in found], reach, color=COLOURS[0], marker="D", markersize=4, linewidth=1.3, capsize=2
    )
    ax.axhline(0, color=INK, linewidth=0.8)
    label(ax, "child minus clone (points)", "generations since birth")
    survived = [f"{sum(row['age'] == age for row in known)} of {sum(row['age'] == age for row in pairs)}" for age in ages]
    caption = (
        "Grey: pairs. Blue: pairs averaged within each run, then the mean over runs with its "
        f"{100 * (1 - alpha):.0f} % t interval (none for one run). n = runs at each age: "
        f"{', '.join(str(one.n) for one in found)}; pairs of which both survived: {', '.join(survived)}."
    )
    return Plate(plate.name, question, caption, plate.tables, figure)
