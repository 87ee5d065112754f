"""Figures over a few chosen runs: one metric of each run, laid over one another. For arms of several seeds see comparison.py.

Each run keeps one colour and one dash in every figure, by its place among the runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stages.figures.comparison import COLOURS, UNITS
from stages.figures.comparison import CURVES as TEXTS
from stages.figures.plates import MANY, Plate, canvas, label, legend, note

DASHES = ("-", "--", "-.", ":")
Row = Mapping[str, Any]


def run_colours(runs: Sequence[str]) -> dict[str, str]:
    """A colour for each run."""
    return {run: COLOURS[place % len(COLOURS)] for place, run in enumerate(runs)}


def overlay(rows: Sequence[Row], runs: Sequence[str], name: str, text: str = "", by: str = "generation") -> Plate:
    """One metric of several runs. Rows have run, value, n, stderr (None: no band) and `by`, which is the horizontal axis.

    `text` describes the metric with its unit; by default as in the figures of an experiment. `by` is `generation`, or an amount
    spent so far, a name in `stages.figures.comparison.UNITS`.
    """
    text = text or TEXTS[name]
    question = text[0].upper() + text[1:]
    slug = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
    found = {run: own for run in runs if (own := [row for row in rows if row["run"] == run and row[by] is not None])}
    if not found:
        return Plate(slug, question, "None of the runs has measured it yet.", ("metrics",))
    columns = 3 if max(map(len, runs)) <= 10 else 2 if max(map(len, runs)) <= 22 else 1
    figure, (ax,) = canvas(question.partition(" (")[0], height=2.6 + 0.17 * -(-len(found) // columns))
    for place, (run, colour) in enumerate(run_colours(runs).items()):
        if run in found:
            _line(ax, sorted(found[run], key=lambda row: float(row[by])), by, colour, DASHES[place % len(DASHES)])
    label(ax, text if len(text) <= 34 else text.replace(" (", "\n("), UNITS.get(by, by))
    if by != "generation":
        ax.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5))
    legend(ax, columns)
    bands = any(row["stderr"] is not None for own in found.values() for row in own)
    said = "Bands are ±1 standard error within a generation" if bands else "One number per generation, without an error"
    counts = ", ".join(f"{run} {_counts(own)}" for run, own in found.items())
    return Plate(slug, question, f"{said}. n per generation: {counts}.", ("metrics",), figure)


def _line(ax: Any, rows: Sequence[Row], by: str, colour: str, dashes: str) -> None:
    x, mean = (np.array([row[key] for row in rows], np.float64) for key in (by, "value"))
    reach = np.array([row["stderr"] or 0.0 for row in rows], np.float64)
    ax.fill_between(x, mean - reach, mean + reach, color=colour, alpha=0.18, linewidth=0)
    marker = "o" if len(x) <= MANY else ""
    ax.plot(x, mean, color=colour, linestyle=dashes, marker=marker, markersize=3.2, linewidth=1.5, label=rows[0]["run"])
    counts = [row["n"] for row in rows]
    note(ax, rows[0]["run"], colour, x, mean, reach, [] if None in counts else counts, dashes)
    if len(x) == 1 and reach[0]:
        ax.errorbar(x, mean, reach, color=colour, linewidth=1.2, capsize=2)


def _counts(rows: Sequence[Row]) -> str:
    counts = [row["n"] for row in rows if row["n"] is not None]
    if not counts:
        return "unknown"
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
