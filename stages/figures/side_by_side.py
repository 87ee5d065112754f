"""Curves of a few chosen runs: one metric of each run, laid over one another. For arms of several seeds see comparison.py.

Each run keeps one colour and one dash in every figure, by its place among the runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stages.figures.measures import CURVES as TEXTS
from stages.figures.measures import UNITS, colours_of
from stages.figures.panels import Line, Outline, Panel

DASHES = ("-", "--", "-.", ":")
Row = Mapping[str, Any]


def overlay(rows: Sequence[Row], runs: Sequence[str], name: str, text: str = "", by: str = "generation") -> Outline:
    """One metric of several runs. Rows have run, value, n, stderr (None: no band) and `by`, which is the horizontal axis.

    `text` describes the metric with its unit; by default as in the figures of an experiment. `by` is `generation`, or an amount
    spent so far, a name in `stages.figures.measures.UNITS`.
    """
    text = text or TEXTS[name]
    question = text[0].upper() + text[1:]
    slug = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
    found = {run: own for run in runs if (own := [row for row in rows if row["run"] == run and row[by] is not None])}
    if not found:
        return Outline(slug, question, "None of the runs has measured it yet.", ("metrics",))
    lines = [
        _line(sorted(found[run], key=lambda row: float(row[by])), by, colour, DASHES[place % len(DASHES)])
        for place, (run, colour) in enumerate(colours_of(runs).items())
        if run in found
    ]
    bands = any(row["stderr"] is not None for own in found.values() for row in own)
    said = "Bands are ±1 standard error within a generation" if bands else "One number per generation, without an error"
    counts = ", ".join(f"{run} {_counts(own)}" for run, own in found.items())
    panel = Panel(UNITS.get(by, by), text, "", tuple(lines))
    return Outline(slug, question, f"{said}. n per generation: {counts}.", ("metrics",), (panel,))


def _line(rows: Sequence[Row], by: str, colour: str, dashes: str) -> Line:
    x, mean = (tuple(float(row[key]) for row in rows) for key in (by, "value"))
    error = tuple(math.nan if row["stderr"] is None else float(row["stderr"]) for row in rows)
    counts = [row["n"] for row in rows]
    n = () if None in counts else tuple(int(count) for count in counts)
    return Line(str(rows[0]["run"]), colour, dashes, "line", x, mean, error, n)


def _counts(rows: Sequence[Row]) -> str:
    counts = [row["n"] for row in rows if row["n"] is not None]
    if not counts:
        return "unknown"
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
