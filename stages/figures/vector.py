"""Curves and family trees as SVG for a page, written directly: a page with four of them opens before a plotting library loads.

They look as the report's, which matplotlib draws from the same numbers: width, letters, colours, dashes and bands. Nothing refers
outside, and no element needs an id, so that any number of them fits on a page.
"""

import html
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stages.core.highlight import visible
from stages.core.number_text import minus
from stages.figures.family import QUESTION, Family
from stages.figures.panels import GRID, INK, MANY, MUTED, ROLE, SMALL, TEXT, TITLE, VARIABLES, WIDTH, Line, Outline, Panel, ends

ACROSS = 72 * WIDTH  # in points, as all lengths here
LEFT, RIGHT, NAMES = 48.0, 10.0, 34.0
TOP, PANEL, BELOW, ROW, FAMILY_ROW = 22.0, 118.0, 34.0, 12.0, 30.0
LETTER = 0.55  # mean width of a letter of DejaVu Sans, in its size
STROKES = {"-": "", "--": "5.5,2.4", "-.": "9.6,2.4,1.5,2.4", ":": "1.5,2.5"}
TICKS = 6


@dataclass(frozen=True)
class Scale:
    """A linear scale: from `low` at `start` points to `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return where the value is drawn."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def curves_svg(outline: Outline) -> str:
    """The panels of an outline below one another; empty if there are none."""
    if not outline.panels:
        return ""
    parts, at = [_title(outline.question)], TOP
    for number, panel in enumerate(outline.panels):
        keys = [] if panel.named_at_ends else _legend([line for line in panel.lines if line.x])
        at += ROW * len(keys) + (ROW if panel.title else 0)
        parts += [_key(line, x, at - 5 - ROW * (len(keys) - 1 - row)) for row, placed in enumerate(keys) for line, x in placed]
        if panel.title:
            parts.append(_text(panel.title, LEFT, at - 4, TEXT))
        last = number == len(outline.panels) - 1
        parts += _panel(panel, at, panel.x if last else "")
        at += PANEL + (BELOW if last else 0.55 * BELOW)
    return _whole(outline.question, at, parts)


def family_svg(family: Family) -> str:
    """A family tree: a row for each slot, a bar for each life, a line for each birth and an arrow from each parent."""
    top, bottom = TOP + 8, TOP + 8 + FAMILY_ROW * family.rows
    first, last = min(life.first for life in family.lives), max(life.last for life in family.lives)
    x = Scale(first - 0.5, last + 0.5, 8.0, ACROSS - RIGHT)
    y = Scale(-0.5, family.rows - 0.5, top, bottom)
    parts = [_title(QUESTION), *_across(Panel("generation", "", "", ()), x, top, bottom, "generation")]
    for life in family.lives:
        wide, high = x(life.last + 0.5) - x(life.first - 0.5), y(0.5) - y(0)
        place = f'x="{x(life.first - 0.5):.1f}" y="{y(life.slot - 0.25):.1f}" width="{wide:.1f}" height="{high:.1f}"'
        parts.append(f'<rect {place} style="fill:{_paint(ROLE[life.role])};fill-opacity:.4"/>')
    lines = [f"M{x(one.x):.1f} {y(one.slot - 0.34):.1f}V{y(one.slot + 0.34):.1f}" for one in family.births]
    pairs = [(one, parent) for one in family.births for parent in one.parents]
    arrows = [piece for one, parent in pairs for piece in _arrow((x(one.x - family.shift), y(parent)), (x(one.x), y(one.slot)))]
    parts.append(f'<path d="{"".join([*lines, *arrows])}" style="fill:none;stroke:{_paint(INK)}"/>')
    for life in family.lives:
        if life.named:
            parts.append(_text(life.member, x(life.first - 0.5 + family.shift), y(life.slot) + 3, SMALL))
    for one in family.births:
        if one.text:
            parts.append(_text(one.text, x(one.x + 0.3 * family.shift), y(one.slot - 0.29), SMALL - 1))
    return _whole(QUESTION, bottom + BELOW, parts)


# One panel ----------------------------------------------------------------------------------------------------------------------


def _panel(panel: Panel, top: float, below: str) -> Iterator[str]:
    """Grid, ticks, labels, bands, lines, and the names at their ends."""
    every = [x for line in panel.lines for x in line.x if not isinstance(x, str)]
    names = NAMES if panel.named_at_ends else 0.0
    x = Scale(*_wide(min(every), max(every), 0.03), LEFT, ACROSS - RIGHT - names)
    y = Scale(*(panel.limits or _wide(*_reach(panel.lines), 0.06)), top + PANEL, top)
    yield from _across(panel, x, top, top + PANEL, below)
    yield from _upwards(panel, y, x.start, x.end, top)
    for line in panel.lines:
        yield _band(line, x, y, 0.08 if panel.named_at_ends else 0.2)
    marked = len(set(every)) <= MANY and not panel.named_at_ends
    for line in panel.lines:
        yield _curve(line, x, y, marked)
    if panel.named_at_ends:
        yield from _names(panel, x, y)


def _across(panel: Panel, x: Scale, top: float, bottom: float, label: str) -> Iterator[str]:
    """The lower axis: grid, ticks with their numbers, and the label."""
    whole = panel.x.startswith("generation")
    most = TICKS if x.high < 1e5 else 4  # long numbers need room
    found = [at for at in _ticks(x.low, x.high, most) if not whole or at == round(at)]
    yield _lines("".join(f"M{x(at):.1f} {top:.1f}V{bottom:.1f}" for at in found), GRID, 0.6)
    yield _lines(f"M{x.start:.1f} {bottom:.1f}H{x.end:.1f}" + "".join(f"M{x(at):.1f} {bottom:.1f}v3" for at in found), MUTED, 0.8)
    for at in found:
        yield _text(_number(at), x(at), bottom + 12, SMALL, "middle")
    if label:
        yield _text(label, (x.start + x.end) / 2, bottom + 25, TEXT, "middle")


def _upwards(panel: Panel, y: Scale, left: float, right: float, top: float) -> Iterator[str]:
    """The left axis."""
    found = _ticks(y.low, y.high, TICKS)
    yield _lines("".join(f"M{left:.1f} {y(at):.1f}H{right:.1f}" for at in found), GRID, 0.6)
    yield _lines(f"M{left:.1f} {y.end:.1f}V{y.start:.1f}" + "".join(f"M{left:.1f} {y(at):.1f}h-3" for at in found), MUTED, 0.8)
    for at in found:
        yield _text(_number(at), left - 5, y(at) + 3, SMALL, "end")
    fitting = PANEL / (LETTER * TEXT)  # letters
    words = textwrap.wrap(panel.y, max(int(fitting), len(panel.y) // 2 + 4))
    size = TEXT * min(1.0, fitting / max(map(len, words), default=1))
    for number, part in enumerate(words):
        place = f'transform="translate({10 + 10 * number - 3 * (len(words) - 1):.1f} {top + PANEL / 2:.1f}) rotate(-90)"'
        yield f'<text {place} style="font-size:{size:.1f}px;text-anchor:middle">{_escaped(part)}</text>'


def _curve(line: Line, x: Scale, y: Scale, marked: bool) -> str:
    """The line, marked at its points if they are few, with error bars if there is only one."""
    pieces = list(_pieces(line))
    path = "".join("M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value, _ in piece) for piece in pieces)
    dash = f";stroke-dasharray:{STROKES[line.dashes]}" if STROKES[line.dashes] else ""
    drawn = [f'<path d="{path}" style="fill:none;stroke:{_paint(line.colour)};stroke-width:1.5{dash}"/>']
    points = [point for piece in pieces for point in piece]
    if marked or len(points) == 1:
        marks = "".join(f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="1.7"/>' for at, value, _ in points)
        drawn.append(f'<g style="fill:{_paint(line.colour)}">{marks}</g>')
    if len(points) == 1 and points[0][2]:
        at, value, error = points[0]
        drawn.append(_lines(f"M{x(at):.1f} {y(value - error):.1f}V{y(value + error):.1f}", line.colour, 1.2))
    return "".join(drawn)


def _band(line: Line, x: Scale, y: Scale, opacity: float) -> str:
    """One error on either side of the line."""
    path = ""
    for piece in _pieces(line):
        if any(error for _, _, error in piece):
            above = [f"{x(at):.1f} {y(min(value + error, y.high)):.1f}" for at, value, error in piece]
            beneath = [f"{x(at):.1f} {y(max(value - error, y.low)):.1f}" for at, value, error in reversed(piece)]
            path += f"M{'L'.join([*above, *beneath])}Z"
    return f'<path d="{path}" style="fill:{_paint(line.colour)};fill-opacity:{opacity}"/>' if path else ""


def _names(panel: Panel, x: Scale, y: Scale) -> Iterator[str]:
    """The names of lines at their ends, moved apart where they would overlap."""
    found = ends(panel)
    for end in sorted({at for at, _, _ in found}):
        below = -math.inf
        for at, value, name in sorted((at, value, name) for at, value, name in found if at == end):
            place = max(ACROSS - y(value), below + 8)  # upwards
            below = place
            yield _text(name, x(at) + 3, ACROSS - place + 3, SMALL - 1, colour=panel.lines[0].colour)


def _pieces(line: Line) -> Iterator[list[tuple[float, float, float]]]:
    """The points (x, y, error) of a line in pieces: it breaks where a number or, for some lines, a generation is missing."""
    piece: list[tuple[float, float, float]] = []
    errors: Sequence[float] = line.error or [0.0] * len(line.x)
    for at, value, error in zip(line.x, line.y, errors, strict=True):
        assert not isinstance(at, str), line
        known = math.isfinite(value)
        if piece and (not known or (line.broken and at - piece[-1][0] > 1)):
            yield piece
            piece = []
        if known:
            piece.append((at, value, error if math.isfinite(error) else 0.0))
    if piece:
        yield piece


def _legend(lines: Sequence[Line]) -> list[list[tuple[Line, float]]]:
    """The rows of a legend: each line with its place from the left."""
    rows: list[list[tuple[Line, float]]] = []
    at = ACROSS
    for line in lines:
        width = 28 + LETTER * SMALL * len(line.name)
        if at + width > ACROSS - RIGHT or not rows:
            rows.append([])
            at = LEFT / 2
        rows[-1].append((line, at))
        at += width
    return rows


def _key(line: Line, x: float, y: float) -> str:
    dash = f";stroke-dasharray:{STROKES[line.dashes]}" if STROKES[line.dashes] else ""
    sample = f'<path d="M{x:.1f} {y - 3:.1f}h18" style="fill:none;stroke:{_paint(line.colour)};stroke-width:1.5{dash}"/>'
    return sample + _text(line.name, x + 22, y, SMALL)


# Scales and elements ------------------------------------------------------------------------------------------------------------


def _reach(lines: Iterable[Line]) -> tuple[float, float]:
    """The least and the greatest value, with errors."""
    points = [point for line in lines for piece in _pieces(line) for point in piece] or [(0.0, 0.0, 0.0)]
    return min(value - error for _, value, error in points), max(value + error for _, value, error in points)


def _wide(low: float, high: float, share: float) -> tuple[float, float]:
    """The limits with room on both sides; a scale has some extent even if all values are equal."""
    room = share * (high - low) or max(abs(low) * share, 0.5)
    return low - room, high + room


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from low to high, at most so many (and one)."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    text = f"{value:,.0f}" if value == round(value) else f"{value:.6g}"
    return minus(text)


def _lines(path: str, colour: str, width: float) -> str:
    return f'<path d="{path}" style="fill:none;stroke:{_paint(colour)};stroke-width:{width}"/>'


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> Iterator[str]:
    """An arrow from a parent's row to a birth."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    along = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    tip = end[0] - along[0], end[1] - along[1]
    yield f"M{start[0]:.1f} {start[1]:.1f}L{tip[0]:.1f} {tip[1]:.1f}"
    for side in (1, -1):
        back = tip[0] - 3.5 * along[0] + side * 1.8 * along[1], tip[1] - 3.5 * along[1] - side * 1.8 * along[0]
        yield f"M{back[0]:.1f} {back[1]:.1f}L{tip[0]:.1f} {tip[1]:.1f}"


def _title(question: str) -> str:
    shown = min(TITLE, (ACROSS - 6) / (1.16 * LETTER * max(len(question), 1)))  # bold letters are wider
    return f'<text x="3" y="14" style="font-size:{shown:.1f}px;font-weight:bold">{_escaped(question)}</text>'


def _text(text: str, x: float, y: float, size: float, anchor: str = "start", colour: str = INK) -> str:
    paint = "" if colour == INK else f";fill:{_paint(colour)}"
    style = f"font-size:{size}px{f';text-anchor:{anchor}' if anchor != 'start' else ''}{paint}"
    return f'<text x="{x:.1f}" y="{y:.1f}" style="{style}">{_escaped(text)}</text>'


def _whole(question: str, height: float, parts: Iterable[str]) -> str:
    head = f'<svg role="img" aria-label="{_escaped(question)}" viewBox="0 0 {ACROSS:.1f} {height:.1f}">'
    letters = f"<g style=\"font-family:'DejaVu Sans',Verdana,sans-serif;fill:{_paint(INK)}\">"
    return f"{head}{letters}{''.join(parts)}</g></svg>"


def _paint(colour: str) -> str:
    return f"var(--{VARIABLES[colour]})" if colour in VARIABLES else colour


def _escaped(text: str) -> str:
    return html.escape(visible(text))
