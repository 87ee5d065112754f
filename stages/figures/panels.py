"""The numbers of figures and their looks, without a library that draws. Pages draw curves from them (`vector.py`).

Colours are Okabe and Ito's, distinct to colour-blind eyes; lines differ in markers or dashes as well. On a page each colour is
a CSS variable, so that the page's dark theme can change it.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

INK, MUTED, GRID = "#24292f", "#6b7480", "#d5dbe1"
ROLE = {"teacher": "#d55e00", "student": "#0072b2", "both": "#5b5f97"}
KIND = {"deduction": "#009e73", "abduction": "#b0569a", "induction": "#96700a"}
MARK = {"teacher": "o", "student": "s", "deduction": "o", "abduction": "s", "induction": "^"}
DASHES = {"teacher": "-", "student": "--", "deduction": "-", "abduction": "--", "induction": "-."}
SERIES = ("#7b7fd4", "#88ccee", "#44aa99", "#999933", "#ddcc77", "#cc6677", "#b04a7a", "#8b8f96", "#c9a0dc", "#5aa469")
VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid",
    ROLE["teacher"]: "teacher", ROLE["student"]: "student", ROLE["both"]: "both",
    **{colour: kind for kind, colour in KIND.items()},
}  # fmt: skip
WIDTH, TITLE, TEXT, SMALL = 4.6, 11.5, 9.5, 8.5
NAMED = 12  # lines that are named at their ends; of more, only those of living members
MANY = 40  # generations; beyond, markers would touch


Drawn = Literal["line", "bars", "points", "cells"]


@dataclass(frozen=True)
class Line:
    """The numbers behind one line (or row of bars, points or cells) of a figure, in the units of its axes.

    `error` and `n` are empty, or as long as `y`. NaN: no value, or no error known. `broken`: not drawn over missing generations.
    """

    name: str
    colour: str
    dashes: str
    drawn: Drawn
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    error: tuple[float, ...] = ()
    n: tuple[int, ...] = ()
    broken: bool = False


@dataclass(frozen=True)
class Panel:
    """The numbers of one pair of axes, with the axes' labels. `limits` of the values, if the figure sets both."""

    x: str
    y: str
    title: str
    lines: tuple[Line, ...]
    limits: tuple[float, float] | None = None
    named_at_ends: bool = False  # names stand at the ends of lines: there are too many for a legend

    @property
    def curves(self) -> bool:
        """Whether it consists of lines over numbers, so that hovering and zooming help."""
        return all(line.drawn == "line" for line in self.lines) and any(len(line.x) > 1 for line in self.lines)


def ends(panel: Panel) -> list[tuple[float, float, str]]:
    """The places of the names at the ends of its lines: of all lines, or of those that reach furthest if there are many."""
    found = [(float(line.x[-1]), line.y[-1], line.name) for line in panel.lines]
    last = max(x for x, _, _ in found)
    return [end for end in found if len(found) <= NAMED or end[0] == last]


class Numbered(Protocol):
    """Something with a figure's words and numbers: an `Outline`, or a `stages.figures.plates.Plate`."""

    @property
    def name(self) -> str: ...  # noqa: D102 (as in Outline)
    @property
    def question(self) -> str: ...  # noqa: D102
    @property
    def caption(self) -> str: ...  # noqa: D102
    @property
    def panels(self) -> tuple[Panel, ...]: ...  # noqa: D102
    @property
    def listing(self) -> tuple[tuple[str, ...], ...]: ...  # noqa: D102


@dataclass(frozen=True)
class Outline:
    """A figure before it is drawn. Without panels and listing there is nothing to draw yet; the caption then states why."""

    name: str
    question: str
    caption: str
    tables: tuple[str, ...]  # names of the tables that its numbers come from
    panels: tuple[Panel, ...] = ()
    listing: tuple[tuple[str, ...], ...] = ()  # what it shows as a table with its heading, if it shows no numbers
