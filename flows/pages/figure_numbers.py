"""The numbers of a drawn figure: as JSON for its interactive plot, and as tables for everybody who reads rather than looks.

Both come from the numbers that were drawn (`panels`), so that they cannot differ from the picture.
"""

import math
from collections.abc import Sequence

from flows.run.manifest import Json
from stages.core.highlight import visible
from stages.core.number_text import minus
from stages.figures.panels import VARIABLES, Line, Numbered, Panel

ROWS = 100  # of a table on a page, the newest; the JSON has them all


def numbers(figure: Numbered) -> Json:
    """Return everything that was drawn; NaN becomes null, a themed colour the name of its CSS variable."""
    return {
        "name": figure.name,
        "question": figure.question,
        "caption": visible(figure.caption),
        "panels": [_panel(panel) for panel in figure.panels],
        "listing": [[visible(cell) for cell in row] for row in figure.listing],
    }


def tables(figure: Numbered) -> list[Json]:
    """Return a table for each panel, the newest rows first where they are numbered: title, heading, rows, rows left out."""
    if figure.listing:
        heading, *rows = figure.listing
        return [_cut("", list(heading), [list(row) for row in rows])]
    return [_table(panel) for panel in figure.panels]


def zooms(figure: Numbered) -> bool:
    """Return whether the figure has curves, so that an interactive plot shows more than its picture."""
    return bool(figure.panels) and all(panel.curves for panel in figure.panels)


def _panel(panel: Panel) -> Json:
    return {
        "x": panel.x,
        "y": panel.y,
        "title": visible(panel.title),
        "limits": panel.limits,
        "curves": panel.curves,
        "lines": [_line(line) for line in panel.lines],
    }


def _line(line: Line) -> Json:
    return {
        "name": visible(line.name),
        "colour": f"--{VARIABLES[line.colour]}" if line.colour in VARIABLES else line.colour,
        "dashes": line.dashes,
        "broken": line.broken,
        "x": [visible(value) if isinstance(value, str) else value for value in line.x],
        "y": _finite(line.y),
        "error": _finite(line.error),
        "n": list(line.n),
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _table(panel: Panel) -> Json:
    by_x: dict[float | str, dict[int, str]] = {}
    for column, line in enumerate(panel.lines):
        for place, x in enumerate(line.x):
            by_x.setdefault(x, {})[column] = _cell(line, place)
    counted = all(not isinstance(x, str) for x in by_x)
    places = sorted(by_x, key=float, reverse=panel.curves) if counted else list(by_x)
    rows = [[_number(x), *(by_x[x].get(column, "–") for column in range(len(panel.lines)))] for x in places]
    title = " · ".join(part for part in (panel.title, panel.y) if part)
    return _cut(title, [panel.x or "–", *(line.name for line in panel.lines)], rows)


def _cut(title: str, heading: list[str], rows: list[list[str]]) -> Json:
    return {"title": title, "heading": heading, "rows": rows[:ROWS], "more": max(len(rows) - ROWS, 0)}


def _cell(line: Line, place: int) -> str:
    value = line.y[place]
    if not math.isfinite(value):
        return "–"
    error = f" ± {_number(line.error[place])}" if line.error and math.isfinite(line.error[place]) else ""
    return f"{_number(value)}{error}" + (f" (n = {line.n[place]:,})" if line.n else "")


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return minus(f"{value:,.0f}" if value == round(value) else f"{value:.4g}")
