"""A comparison for the terminal, as tables. Texts from a store are shown with their hidden characters written out."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flows.compare.best_members import BestMember, descent, rank_text
from flows.compare.costs import CostRow
from flows.compare.scores import MeanScore, PairedScores
from flows.compare.settings_diff import SettingsDiff
from flows.compare.side_by_side import CURVES, Side, SideBySide
from flows.monitoring.meter import duration
from flows.monitoring.run_state import RunState
from stages.core.highlight import visible
from stages.core.number_text import signed

BARS = "▁▂▃▄▅▆▇█"
POINTS = 16  # of a curve
CUT = 60


def blocks(found: SideBySide, named: Callable[[str], str]) -> Iterator[RenderableType]:
    """Yield the parts of a comparison, each with its heading. `named` writes commands in sentences as the user calls them."""
    names = [run.run_id for run in found.runs]
    if found.notes:
        yield from (_heading("Notes"), *(Text(f"  {visible(named(line), 600)}") for line in found.notes))
    yield Group(_heading("Runs"), _runs(found))
    equal = f"Configuration: settings that differ: {len(found.settings.differing)}, equal: {found.settings.equal}"
    yield Group(_heading(equal), *_differing(names, found.settings, "setting"))
    if found.versions.differing:
        yield Group(_heading("Versions that differ"), *_differing(names, found.versions, "version"))
    yield Group(_heading("Curves, from the first generation to the newest (± s.e.)"), _curves(found))
    if found.suites():
        yield Group(_heading("Newest benchmark scores, % (mean over members)"), _scores(found))
    for pair in found.pairs:
        yield _pair(pair)
    yield Group(
        _heading("Costs (of what each run computed itself, as the command cost counts them; times are machine time)"),
        _costs(names, found.costs),
    )
    if any(run.best for run in found.runs):
        yield Group(_heading("Best members, by fitness in the newest rated generation"), _best(found))


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _table(*header: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for place, name in enumerate(header):
        made.add_column(Text(name), overflow="fold", no_wrap=not place and len(name) < CUT)
    return made


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(visible(cell, 600)) for cell in cells))


def _runs(found: SideBySide) -> Table:
    table = _table("", *(run.run_id for run in found.runs))
    _row(table, "state", *(f"{run.state}{f', {run.who}' if run.who else ''}" for run in found.runs))
    _row(table, "done", *(f"{run.done} of {run.planned} generations" for run in found.runs))
    _row(table, "next", *("–" if run.state == RunState.FINISHED else run.upcoming for run in found.runs))
    _row(table, "population", *(run.population for run in found.runs))
    _row(table, "model", *(f"{run.model} {run.base_model[:8]}" for run in found.runs))
    _row(table, "head", *(run.head[:12] for run in found.runs))
    return table


def _differing(names: Sequence[str], found: SettingsDiff, what: str) -> Iterator[Table]:
    if not found.differing:
        return
    table = _table(what, *names)
    for one in found.differing:
        _row(table, one.key, *("not set" if value is None else value or "–" for value in one.values))
    yield table


def _curves(found: SideBySide) -> Table:
    table = _table("metric", *(run.run_id for run in found.runs))
    for name in CURVES:
        cells = [_curve(run, name) for run in found.runs]
        if any(cell != "–" for cell in cells):
            _row(table, name, *cells)
    return table


def _curve(run: Side, name: str) -> str:
    rows = [row for row in run.curves if row["name"] == name]
    if not rows:
        return "–"
    first, last = rows[0]["value"], rows[-1]["value"]
    error = "" if rows[-1]["stderr"] is None else f" ± {rows[-1]['stderr']:.2g}"
    return f"{bars([row['value'] for row in rows])} {first:.3g} → {last:.3g}{error}"


def bars(values: Sequence[float]) -> str:
    """Return a curve as a few bars, each the mean of the values that it stands for, between the lowest and the highest."""
    count = min(POINTS, len(values))
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    low, spread = min(means), max(means) - min(means)
    return "".join(BARS[round((mean - low) / spread * (len(BARS) - 1)) if spread else 0] for mean in means)


def _scores(found: SideBySide) -> Table:
    table = _table("suite", *(run.run_id for run in found.runs))
    for suite in found.suites():
        newest = [max((one for one in run.scores if one.suite == suite), key=_trained, default=None) for run in found.runs]
        _row(table, suite, *("–" if one is None else _score(one) for one in newest))
    return table


def _trained(score: MeanScore) -> int:
    return score.trained


def _score(one: MeanScore) -> str:
    error = "" if one.stderr is None else f" ± {100 * one.stderr:.1f}"
    known = f"generations trained: {one.trained}, members: {one.members}, n = {one.problems:,}"
    known += f"; {one.question}" if one.question else ""
    return f"{100 * one.score:.1f}{error}, {one.measure}, {known}"


def _pair(pair: PairedScores) -> Group:
    asked = f" ({pair.question})" if pair.question and pair.changes else ""
    heading = _heading(
        f"{pair.suite}{asked}, paired by problem: {pair.second} ({pair.second_trained} trained) − "
        f"{pair.first} ({pair.first_trained} trained), percentage points"
    )
    if not pair.changes:
        return Group(heading, Text(f"  {visible(pair.said or 'not paired: no measure in common', 300)}"))
    table = _table("problems", "measure", pair.first, pair.second, "difference ± s.e.", "wins", "losses", "ties", "n")
    for one in pair.changes:
        found = one.found
        error = "" if found.stderr is None else f" ± {100 * found.stderr:.2f}"
        ties = found.problems - found.better - found.worse
        counts = (f"{found.better:,}", f"{found.worse:,}", f"{ties:,}", f"{found.problems:,}")
        means = (f"{100 * one.before:.2f}", f"{100 * one.after:.2f}", f"{signed(100 * found.difference, 2)}{error}")
        _row(table, one.group, one.measure, *means, *counts)
    return Group(heading, table)


def _costs(names: Sequence[str], rows: Sequence[CostRow]) -> Table:
    table = _table("", *names)
    for row in rows:
        _row(table, row.name, *(_amount(row, value) for value in row.values))
    return table


def _amount(row: CostRow, value: float | None) -> str:
    if value is None:
        return "–"
    return duration(value) if row.unit == "s" else f"{value:,.0f} {row.unit}".strip()


def _best(found: SideBySide) -> Table:
    table = _table("", *(run.run_id for run in found.runs))
    roles = list(dict.fromkeys(best.role for run in found.runs for best in run.best))
    for role in roles:
        own = [next((best for best in run.best if best.role == role), None) for run in found.runs]
        _row(table, role, *("–" if best is None else _member(best) for best in own))
    return table


def _member(best: BestMember) -> str:
    """Return the rating of a member and its line of descent."""
    rating = f"{best.mu:.1f} ± {best.sigma:.1f}, {rank_text(best)}"
    return f"{best.member_id}: {rating}; {descent(best)}"
