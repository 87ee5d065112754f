"""Figures over a few chosen runs: one metric of each run, laid over one another. For arms of several seeds see comparison.py.

Each run keeps one colour and one dash in every figure, by its place among the runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stages.core.statistics.estimates import Series
from stages.figures.comparison import COLOURS
from stages.figures.comparison import CURVES as TEXTS
from stages.figures.plates import Plate, canvas, curve, label, legend

DASHES = ("-", "--", "-.", ":")
Row = Mapping[str, Any]


def run_colours(runs: Sequence[str]) -> dict[str, str]:
    """A colour for each run."""
    return {run: COLOURS[place % len(COLOURS)] for place, run in enumerate(runs)}


def overlay(rows: Sequence[Row], runs: Sequence[str], name: str, text: str = "") -> Plate:
    """One metric of several runs over generations. Rows have run, generation, value, n and stderr (None: no band).

    `text` describes the metric with its unit; by default as in the figures of an experiment.
    """
    text = text or TEXTS[name]
    question = text[0].upper() + text[1:]
    slug = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
    found = {run: series for run in runs if (series := _series([row for row in rows if row["run"] == run]))}
    if not found:
        return Plate(slug, question, "None of the runs has measured it yet.", ("metrics",))
    columns = 3 if max(map(len, runs)) <= 10 else 2 if max(map(len, runs)) <= 22 else 1
    figure, (ax,) = canvas(question.partition(" (")[0], height=2.6 + 0.17 * -(-len(found) // columns))
    counts = []
    for place, (run, colour) in enumerate(run_colours(runs).items()):
        if run in found:
            curve(ax, found[run], colour, run, dashes=DASHES[place % len(DASHES)])
            counts.append(f"{run} {found[run].clusters_text()}" if found[run].clusters.any() else run)
    label(ax, text if len(text) <= 34 else text.replace(" (", "\n("), "generation")
    legend(ax, columns)
    bands = any(np.isfinite(series.stderr).any() for series in found.values())
    said = "Bands are ±1 standard error within a generation" if bands else "One number per generation, without an error"
    return Plate(slug, question, f"{said}. n per generation: {', '.join(counts)}.", ("metrics",), figure)


def _series(rows: Sequence[Row]) -> Series:
    ordered = sorted(rows, key=lambda row: row["generation"])
    columns = {
        "generation": np.array([row["generation"] for row in ordered], np.int64),
        "value": np.array([row["value"] for row in ordered], np.float64),
        "stderr": np.array([np.nan if row["stderr"] is None else row["stderr"] for row in ordered], np.float64),
        "n": np.array([row["n"] or 0 for row in ordered], np.int64),
    }
    return Series(columns["generation"], columns["value"], columns["stderr"], columns["n"])
