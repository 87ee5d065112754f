"""The curves on a run's own pages, from its small tables alone: no task and no attempt is read for them.

`update` has already measured the shares that these curves show, with their standard errors (`stages.analysis.measure`): they are
the numbers of the figures of the same names in the report, which computes them from every task and attempt.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.figures.measures import clusters_of
from stages.figures.panels import INK, KIND, ROLE, Line, Outline, Panel

STYLES = ("-", "--", "-.", ":")
BARS = "Bands are ±1 standard error"
Row = Mapping[str, Any]


def solve_rate(metrics: pa.Table) -> Outline:
    """Correct attempts by kind over generations. METRICS has `generation` as its first column."""
    outline = Outline("solve-rate", "How often do students solve tasks?", "No attempt has been measured yet.", ("metrics",))
    by_kind = _shares(metrics, "solve.rate")
    if None not in by_kind:
        return outline
    lines = [_curve(by_kind[kind], kind, colour, _DASHES[kind]) for kind, colour in KIND.items() if kind in by_kind]
    lines.append(_curve(by_kind[None], "all kinds", INK, ":"))
    caption = (
        f"Share of attempts that are correct, mean over all students' tasks. {BARS} over tasks; "
        f"n = {_counts(by_kind[None])} tasks per generation. "
        "Tasks differ from generation to generation: a flat line may hide harder tasks."
    )
    return _shown(outline, caption, Panel("generation", "attempts correct (%)", "", tuple(lines), (0.0, 100.0)))


def valid_share(metrics: pa.Table) -> Outline:
    """Valid proposals by kind over generations. METRICS has `generation` as its first column."""
    outline = Outline("valid-share", "How many proposals are valid?", "No proposal has been measured yet.", ("metrics",))
    by_kind = _shares(metrics, "propose.valid_share")
    if None not in by_kind:
        return outline
    lines = [_curve(by_kind[kind], kind, colour, _DASHES[kind]) for kind, colour in KIND.items() if kind in by_kind]
    counts, own = _counts(by_kind[None]), metrics.filter(pc.equal(metrics["name"], "propose.valid_share"))
    over = clusters_of(pc.drop_null(own["member_id"]).to_pylist())
    caption = f"Share of proposals that the sandbox found valid. {BARS} over {over}; n = {counts} {over} per generation."
    return _shown(outline, caption, Panel("generation", "proposals valid (%)", "", tuple(lines), (0.0, 100.0)))


def ratings(found: pa.Table) -> Outline:
    """Rating of each member with its uncertainty. RATINGS (or these columns of it) has `generation` as its first column."""
    outline = Outline("ratings", "Who is getting stronger?", "No match has been rated yet.", ("ratings",))
    latest = newest_rows(found)
    present = {rows[0]["role"] for rows in latest.values()}
    roles = [role for role in ROLE if role in present]
    if not roles:
        return outline
    panels = []
    for role in roles:
        members = {member: rows for member, rows in latest.items() if rows[0]["role"] == role}
        title = f"{role}s" if role != "both" else "single agent"
        panels.append(Panel("generation", "rating (mu)", title, _rating_lines(members, ROLE[role]), named_at_ends=True))
    matches = found["match_id"]
    caption = (
        f"TrueSkill rating of each member after each generation; bands are ±1 sigma of the belief (no sampling error). "
        f"n = {len(latest)} members, {len(matches) - matches.null_count} rated sides of matches. A match "
        "moves its two sides in opposite directions; replacing the weakest raises the mean of both roles. A single agent's "
        "rating is constant."
    )
    return _shown(outline, caption, *panels)


def member_rating(rows: Sequence[Row]) -> Outline:
    """Rating of one member, from its RATINGS rows with their generations."""
    latest = {row["generation"]: row for row in rows}
    kept = [latest[generation] for generation in sorted(latest)]
    member = str(kept[-1]["member_id"])
    lines = _rating_lines({member: kept}, ROLE[kept[-1]["role"]])
    caption = (
        f"TrueSkill rating after each generation; the band is ±1 sigma of the belief. n = {len(kept)} generations, "
        f"{sum(row['match_id'] is not None for row in rows)} matches."
    )
    panel = Panel("generation", "rating (mu)", "", lines, named_at_ends=True)
    return Outline("member-rating", f"How does {member} stand?", caption, ("ratings",), (panel,))


def newest_rows(found: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Each member's last row of every generation, in order."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for row in found.select(["generation", "member_id", "role", "mu", "sigma"]).to_pylist():
        rows.setdefault(row["member_id"], {})[row["generation"]] = row
    return {member: [own[generation] for generation in sorted(own)] for member, own in rows.items()}


_DASHES = dict(zip(KIND, STYLES, strict=False))


def _shown(outline: Outline, caption: str, *panels: Panel) -> Outline:
    return Outline(outline.name, outline.question, caption, outline.tables, panels)


def _shares(metrics: pa.Table, name: str) -> dict[str | None, list[Row]]:
    """The rows of a metric of all members together, by kind (None: all kinds), in the order of generations."""
    rows = metrics.filter(pc.and_(pc.equal(metrics["name"], name), pc.is_null(metrics["member_id"])))
    found: dict[str | None, list[Row]] = {}
    for row in rows.select(["generation", "kind", "value", "n", "stderr"]).to_pylist():
        if math.isfinite(row["value"]):
            found.setdefault(row["kind"], []).append(row)
    return found


def _curve(rows: Sequence[Row], name: str, colour: str, dashes: str) -> Line:
    """A line of shares in percent."""
    x = tuple(float(row["generation"]) for row in rows)
    y = tuple(100 * float(row["value"]) for row in rows)
    error = tuple(math.nan if row["stderr"] is None else 100 * float(row["stderr"]) for row in rows)
    n = () if any(row["n"] is None for row in rows) else tuple(int(row["n"]) for row in rows)
    return Line(name, colour, dashes, "line", x, y, error, n, broken=True)


def _counts(rows: Sequence[Row]) -> str:
    counts = [row["n"] for row in rows if row["n"] is not None]
    if not counts:
        return "an unknown number of"
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _rating_lines(members: Mapping[str, Sequence[Row]], colour: str) -> tuple[Line, ...]:
    return tuple(
        Line(
            member,
            colour,
            STYLES[number % len(STYLES)],
            "line",
            tuple(float(row["generation"]) for row in rows),
            tuple(float(row["mu"]) for row in rows),
            tuple(float(row["sigma"]) for row in rows),
        )
        for number, (member, rows) in enumerate(members.items())
    )
