"""The style of every figure: one colour for teachers, one for students, one per kind; axes with units; a caption that states n.

Figures are drawn 4.6 inches wide with letters that stay readable when a phone shows them at that width. Colours and dashes are
those of `panels.py`. In an SVG made for a page each colour becomes a CSS variable.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stages.core.statistics.estimates import Series
from stages.figures.panels import (
    DASHES,
    GRID,
    INK,
    MANY,
    MARK,
    MUTED,
    SMALL,
    TEXT,
    TITLE,
    VARIABLES,
    WIDTH,
    Drawn,
    Line,
    Panel,
)  # fmt: skip


@dataclass(frozen=True)
class Plate:
    """A figure that answers a question. `figure` is None if there is nothing to draw yet; the caption then states why."""

    name: str
    question: str
    caption: str
    tables: tuple[str, ...]  # names of the tables that it was drawn from
    figure: Figure | None = None
    listing: tuple[tuple[str, ...], ...] = ()  # what it shows as a table with its heading, if it shows no numbers

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The numbers that were drawn."""
        axes: list[Any] = [] if self.figure is None else self.figure.axes
        return tuple(_panel(ax, axes) for ax in axes if hasattr(ax, _NUMBERS))


Y_LETTERS = 32  # of a line beside the axes: a longer one reaches into the title
HANDLE, PAD, SPACING = 2.2, 0.4, 0.8  # of a legend: its key, and what is between key, name and next column, in letters' heights
LETTER = 0.57  # mean width of a letter, in letters' heights
LEGEND_SHARE = 0.97  # of the width, which a legend below the axes may take
ABOVE_SHARE = 0.86  # of the width that is the axes'
LEGEND_LETTERS = 56  # of a line of a name, alone in its row
LINE_INCHES = 0.17
POINTS = 72  # in an inch
_NUMBERS = "populora_lines"  # they stay with the axes that show them, so that a page's numbers cannot differ from its picture


def note(
    ax: Any,
    name: str,
    colour: str,
    x: Sequence[float | str] | np.ndarray,
    y: Sequence[float] | np.ndarray,
    error: Sequence[float] | np.ndarray = (),
    n: Sequence[int] | np.ndarray = (),
    dashes: str = "-",
    drawn: Drawn = "line",
    broken: bool = False,
) -> None:
    """Keep the numbers of a line that was drawn on the axes, for hovering and for the figure's table."""
    plain_x = tuple(value if isinstance(value, str) else float(value) for value in x)
    numbers = tuple(float(value) for value in y), tuple(float(value) for value in error), tuple(int(value) for value in n)
    setattr(ax, _NUMBERS, (*getattr(ax, _NUMBERS, ()), Line(name, colour, dashes, drawn, plain_x, *numbers, broken)))


def _panel(ax: Any, axes: Sequence[Any]) -> Panel:
    x = ax.get_xlabel() or next((one.get_xlabel() for one in reversed(axes) if one.get_xlabel()), "")
    title = ax.get_title(loc="left") or ax.get_title(loc="right")
    limits = tuple(ax.get_ylim())
    y = ax.get_ylabel().replace("\n", " ")
    return Panel(x, y, title, getattr(ax, _NUMBERS), (0.0, 100.0) if limits == (0.0, 100.0) else None)


def canvas(question: str, rows: int = 1, columns: int = 1, height: float = 2.7) -> tuple[Figure, list[Any]]:
    """An empty figure with its title, and its axes row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(question, x=0.01, ha="left", fontsize=TITLE, color=INK, fontweight="bold")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]
    for ax in axes:
        plain(ax)
    return figure, axes


def plain(ax: Any) -> None:
    """Thin axes below and at the left, a light grid."""
    ax.set_facecolor("none")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(labelsize=SMALL, colors=MUTED, labelcolor=INK, length=3)
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)


def label(ax: Any, y: str, x: str = "generation", panel: str = "") -> None:
    """Set axis labels with units, and the panel's name if there are several panels."""
    ax.set_xlabel(x, fontsize=TEXT, color=INK)
    ax.set_ylabel(fill(y, Y_LETTERS), fontsize=TEXT, color=INK)
    if x.startswith("generation"):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if panel:
        ax.set_title(panel, fontsize=TEXT, color=INK, loc="left")


def legend(ax: Any, columns: int = 3, handles: Sequence[Any] | None = None) -> None:
    """A legend above the axes, where it hides nothing; below all axes of the figure if its names are too long for that."""
    drawn, names = ax.get_legend_handles_labels() if handles is None else (handles, [one.get_label() for one in handles])
    if not names:
        return
    looks = {"frameon": False, "fontsize": SMALL, "labelcolor": INK, "borderaxespad": 0.1, "handlelength": HANDLE}
    looks |= {"columnspacing": SPACING, "handletextpad": PAD}
    if _fits(names, columns, ABOVE_SHARE / ax.get_gridspec().ncols):
        ax.legend(drawn, names, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, **looks)
    else:
        _legend_below(ax.figure, drawn, names, columns, looks)


def _legend_below(figure: Figure, drawn: Sequence[Any], names: Sequence[str], columns: int, looks: Mapping[str, Any]) -> None:
    """Write long names below the axes, in as many columns as fit, and make the figure taller by what they take."""
    across = next((count for count in range(columns, 1, -1) if _fits(names, count)), 1)
    wrapped = [fill(name, LEGEND_LETTERS) for name in names]
    lines = max(sum(name.count("\n") + 1 for name in some) for some in np.array_split(wrapped, across))
    figure.set_figheight(figure.get_figheight() + lines * LINE_INCHES)
    figure.legend(drawn, wrapped, loc="outside lower left", ncols=across, **looks)


def _fits(names: Sequence[str], columns: int, share: float = 1.0) -> bool:
    """Return whether a legend is narrow enough for a share of the figure's width."""
    letters = [max(map(len, some)) for some in np.array_split(names, min(columns, len(names)))]
    points = SMALL * (sum(LETTER * count + HANDLE + PAD for count in letters) + SPACING * (len(letters) - 1))
    return points < LEGEND_SHARE * share * WIDTH * POINTS


def curve(ax: Any, values: Series, colour: str, name: str, style: str = "", scale: float = 1.0, dashes: str = "") -> None:
    """Means over generations with a band of one standard error on either side; broken where generations are missing."""
    if not values:
        return
    x, mean, stderr = _with_gaps(values.generations, scale * values.mean, scale * np.nan_to_num(values.stderr))
    marker = MARK.get(style, "o") if len(x) <= MANY else ""
    line = dashes or DASHES.get(style, "-")
    ax.fill_between(x, mean - stderr, mean + stderr, color=colour, alpha=0.2, linewidth=0)
    if len(x) == 1:
        ax.errorbar(x, mean, stderr, color=colour, linewidth=1.2, capsize=2)
    ax.plot(x, mean, color=colour, linestyle=line, marker=marker, markersize=3.2, linewidth=1.5, label=name)
    note(ax, name, colour, values.generations, scale * values.mean, scale * values.stderr, values.clusters, line, broken=True)


def _with_gaps(generations: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """Generations and columns with NaN after each generation that no direct successor follows."""
    places = np.flatnonzero(np.diff(generations) > 1) + 1
    return [np.insert(column.astype(np.float64), places, np.nan) for column in (generations, *columns)]


def end_labels(ax: Any, points: Sequence[tuple[float, float, str]], colour: str) -> None:
    """Write names next to the ends of lines; move names apart where they would overlap."""
    low, high = ax.get_ylim()
    gap = (high - low) * 0.09
    for end in sorted({x for x, _, _ in points}):
        together = sorted((y, text) for x, y, text in points if x == end)
        places = np.array([y for y, _ in together])
        apart = np.maximum.accumulate(places - gap * np.arange(len(places))) + gap * np.arange(len(places))
        apart -= (apart - places).mean()
        for place, (_, text) in zip(apart, together, strict=True):
            ax.annotate(text, (end, place), xytext=(4, 0), textcoords="offset points", fontsize=SMALL, color=colour, va="center")


def svg(figure: Figure, name: str, themed: bool = False) -> str:
    """The figure as SVG text; `themed` for a page: colours are CSS variables, the background is clear, nothing refers outside."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(out, format="svg", facecolor="none" if themed else "white", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return _themed(text, name) if themed else text


def _themed(text: str, name: str) -> str:
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\s(xmlns(:xlink)?="[^"]*"|width="[\d.]+pt"|height="[\d.]+pt")', "", text)
    text = text.replace('id="', f'id="{name}-').replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    text = re.sub(r"'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text
