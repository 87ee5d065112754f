"""Figures of the population: ratings, matches, descent, and the performance of offspring."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.colors import Normalize

from stages.core.statistics.estimates import Estimate, cluster_means, estimate, only, series
from stages.figures import outlines
from stages.figures.family import QUESTION, Birth, family_of
from stages.figures.panels import GRID, INK, MUTED, ROLE, SMALL, Panel, ends
from stages.figures.plates import Plate, canvas, curve, end_labels, label, legend, note

SHOWN = 12  # newest members per role in the heat map


def rating_curves(ratings: pa.Table) -> Plate:
    """Rating of each member with its uncertainty."""
    outline = outlines.ratings(ratings)
    plate = Plate(outline.name, outline.question, outline.caption, outline.tables)
    if not outline.panels:
        return plate
    figure, axes = canvas(plate.question, len(outline.panels), 1, 0.6 + 1.9 * len(outline.panels))
    for ax, panel in zip(axes, outline.panels, strict=True):
        _rating_lines(ax, panel)
        label(ax, panel.y, panel=panel.title)
    axes[0].sharex(axes[-1])
    return replace(plate, figure=figure)


def _rating_lines(ax: Any, panel: Panel) -> None:
    for line in panel.lines:
        x, mu, sigma = (np.array(values) for values in (line.x, line.y, line.error))
        ax.fill_between(x, mu - sigma, mu + sigma, color=line.colour, alpha=0.08, linewidth=0)
        ax.plot(x, mu, color=line.colour, linewidth=1.3, linestyle=line.dashes, marker="o" if len(x) == 1 else "")
        note(ax, line.name, line.colour, x, mu, sigma, dashes=line.dashes)
    end_labels(ax, ends(panel), panel.lines[0].colour)
    ax.margins(x=0.08)


def heat_map(matches: pa.Table, grades: pa.Table) -> Plate:
    """Solve rate of every student on every teacher's tasks."""
    plate = Plate("pairs", "Which pairs find tasks hard?", "No attempt has been graded yet.", ("matches", "grades"))
    if not grades.num_rows:
        return plate
    played = matches.select(["generation", "match_id", "teacher_id"])
    met = grades.join(played, ["generation", "match_id"], join_type="inner")
    if not met.num_rows:
        return replace(plate, caption="The matches of the graded attempts cannot be read.")
    teachers, students = _newest(met["teacher_id"]), _newest(met["student_id"])
    figure, (ax,) = canvas(plate.question, height=1.3 + 0.42 * len(teachers))
    cells = [
        [
            estimate(only(met, teacher_id=teacher, student_id=student), "correct", ["generation", "task_id"])
            for student in students
        ]
        for teacher in teachers
    ]
    rates = np.array([[100 * cell.mean for cell in row] for row in cells])
    norm = Normalize(np.nanmin(rates), max(np.nanmax(rates), np.nanmin(rates) + 1))
    for row, column in np.argwhere(np.isfinite(rates)).tolist():
        _cell(ax, row, column, cells[row][column], float(norm(rates[row, column])), len(students))
    ax.pcolormesh(rates, cmap="cividis", norm=norm, edgecolors="none")
    for teacher, met_by in zip(teachers, cells, strict=True):
        means, errors = [100 * cell.mean for cell in met_by], [100 * cell.stderr for cell in met_by]
        note(ax, teacher, ROLE["teacher"], students, means, errors, [cell.clusters for cell in met_by], drawn="cells")
    _name_cells(ax, teachers, students)
    tasks = met.group_by(["generation", "teacher_id", "student_id", "task_id"]).aggregate([]).num_rows
    caption = (
        f"Attempts correct (%) over the whole run, ± standard error over tasks where there is room; brighter is easier, and the "
        f"colours span what is shown. n = {tasks:,} tasks "
        f"that a student met, {met.num_rows:,} attempts. Empty pairs never met; at "
        f"most the {SHOWN} newest members of a role are shown."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def _newest(members: pa.ChunkedArray) -> list[str]:
    found = [member for member in pc.unique(members).to_pylist() if member]
    return sorted(found, key=lambda member: int(member[1:]) if member[1:].isdecimal() else 0)[-SHOWN:]


def _cell(ax: Any, row: int, column: int, found: Estimate, shade: float, columns: int) -> None:
    error = "" if np.isnan(found.stderr) or columns > 8 else f"\n±{100 * found.stderr:.0f}"
    colour = "#ffffff" if shade < 0.55 else "#000000"
    ax.text(column + 0.5, row + 0.5, f"{100 * found.mean:.0f}{error}", ha="center", va="center", fontsize=SMALL - 1, color=colour)


def _name_cells(ax: Any, teachers: list[str], students: list[str]) -> None:
    ax.grid(False)
    ax.set_xticks(np.arange(len(students)) + 0.5, students)
    ax.set_yticks(np.arange(len(teachers)) + 0.5, teachers)
    ax.tick_params(axis="x", labelcolor=ROLE["student"], length=0)
    ax.tick_params(axis="y", labelcolor=ROLE["teacher"], length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.invert_yaxis()
    ax.set_xlabel("student", fontsize=SMALL, color=INK)
    ax.set_ylabel("teacher", fontsize=SMALL, color=INK)


def calibration(ratings: pa.Table) -> Plate:
    """Observed solve rates against those that ratings predicted."""
    plate = Plate("calibration", "Do ratings foretell solve rates?", "No match between rated members yet.", ("ratings",))
    rated = ratings.filter(pc.and_(pc.equal(ratings["role"], "student"), pc.is_valid(ratings["observed"])))
    if not rated.num_rows:
        return plate
    figure, (ax,) = canvas(plate.question, height=3.0)
    expected, observed = rated["expected"].to_numpy(), rated["observed"].to_numpy()
    ax.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8, linestyle=":")
    ax.plot(100 * expected, 100 * observed, ".", color=ROLE["student"], markersize=3, alpha=0.35, label="one match")
    groups = np.array_split(np.argsort(expected, kind="stable"), min(6, max(1, len(expected) // 5)))
    errors = []
    for group in groups:
        y, n = 100 * observed[group], len(group)
        error = y.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
        ax.errorbar(100 * expected[group].mean(), y.mean(), error, fmt="s", color=INK, markersize=4, capsize=2, elinewidth=1)
        errors.append(error if n > 1 else np.nan)
    x, y = ([100 * values[group].mean() for group in groups] for values in (expected, observed))
    note(ax, "mean of neighbours", INK, x, y, errors, [len(group) for group in groups], drawn="points")
    ax.plot([], [], "s", color=INK, markersize=4, label="mean of neighbours")
    ax.set_ylim(-3, 103)
    label(ax, "observed: attempts correct (%)", "expected: student's chance by rating (%)")
    legend(ax)
    caption = (
        "A match is won where the observed rate beats the expected one. Squares are means of equally many matches, ±1 standard "
        f"error over matches; n = {rated.num_rows:,} matches. On the dotted line ratings would be calibrated."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def family_tree(ratings: pa.Table, offspring: pa.Table) -> Plate:
    """Members as lines in their slots, births as arrows from the parents."""
    family = family_of(ratings, offspring)
    plate = Plate("family", QUESTION, "No generation has been rated yet.", ("ratings", "offspring"))
    if family is None:
        return plate
    figure, (ax,) = canvas(plate.question, height=1.0 + 0.42 * family.rows)
    for life in family.lives:
        ax.barh(life.slot, life.last - life.first + 1, 0.5, life.first - 0.5, color=ROLE[life.role], alpha=0.4, linewidth=0)
        if life.named:
            ax.text(life.first - 0.5 + family.shift, life.slot, life.member, fontsize=SMALL, color=INK, va="center")
    for birth in family.births:
        _birth(ax, birth, family.shift)
    ax.set_yticks([])
    ax.set_ylim(family.rows - 0.5, -0.8)
    ax.grid(axis="x", color=GRID)
    ax.spines["left"].set_visible(False)
    label(ax, "", "generation")
    return replace(plate, caption=family.caption, figure=figure, listing=family.listing)


def _birth(ax: Any, birth: Birth, shift: float) -> None:
    ax.plot([birth.x, birth.x], [birth.slot - 0.34, birth.slot + 0.34], color=INK, linewidth=1.2)
    for parent in birth.parents:
        look = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.9, "shrinkA": 1, "shrinkB": 1, "mutation_scale": 7}
        ax.annotate("", xy=(birth.x, birth.slot), xytext=(birth.x - shift, parent), arrowprops=look)
    if birth.text:
        ax.text(birth.x + 0.3 * shift, birth.slot - 0.29, birth.text, fontsize=SMALL - 1, color=INK, va="bottom")


def recovery(samples: pa.Table, offspring: pa.Table) -> Plate:
    """Rewards of offspring compared with the rest of their role, by age."""
    plate = Plate("recovery", "How do offspring fare after birth?", "No offspring has played yet.", ("samples", "offspring"))
    played = set(pc.unique(samples["member_id"]).to_pylist())
    births = [row for row in offspring.to_pylist() if row["member_id"] in played]
    if not births:
        return plate
    figure, (ax,) = canvas(plate.question, height=3.0)
    for role in ("teacher", "student"):
        born = [birth for birth in births if birth["role"] == role]
        children = pa.Table.from_pylist(list(_against_peers(samples, born)) if born else [], _AGES)
        for kind, dashes in (("mutation", "-"), ("crossover", "--")):
            chosen = only(children, operator_kind=kind)
            for member in pc.unique(chosen["member_id"]).to_pylist():
                rows = only(chosen, member_id=member)
                ax.plot(rows["generation"], rows["above"], color=ROLE[role], linewidth=0.6, alpha=0.45, linestyle=dashes)
            curve(ax, series(chosen, "above", "member_id"), ROLE[role], f"{role}, {kind}", dashes=dashes)
    ax.axhline(0, color=MUTED, linewidth=0.8, linestyle=":")
    label(ax, "reward above role's mean", "generations since birth")
    legend(ax, 2)
    caption = (
        "Mean reward of a child less that of all others of its role in the same generation; below the dotted line it earns less. "
        f"Thin lines are children, thick ones their mean with ±1 standard error over children (none where a single child "
        f"is that old); n = {len(births)} offspring."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


_AGES = pa.schema(
    [
        ("generation", pa.int64()),  # since birth
        ("member_id", pa.string()),
        ("role", pa.string()),
        ("operator_kind", pa.string()),
        ("above", pa.float64()),
    ]
)


def _against_peers(samples: pa.Table, births: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of _AGES for these births of one role."""
    means = cluster_means(only(samples, role=births[0]["role"]), "reward", ["generation", "member_id", "group_id"])
    generations, places = np.unique(means["generation"].to_numpy(), return_inverse=True)
    members, rewards = np.array(means["member_id"].to_pylist(), dtype=object), means["mean"].to_numpy()

    def totals(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at, length = places[chosen], len(generations)
        return np.bincount(at, weights=rewards[chosen], minlength=length), np.bincount(at, minlength=length)

    for birth in births:
        own = members == birth["member_id"]
        (sums, counts), (other_sums, other_counts) = totals(own), totals(~own)
        shared = np.flatnonzero((counts > 0) & (other_counts > 0))
        above = sums[shared] / counts[shared] - other_sums[shared] / other_counts[shared]
        ages = generations[shared] - birth["generation"]
        child = {name: birth[name] for name in ("member_id", "role", "operator_kind")}
        for age, value in zip(ages.tolist(), above.tolist(), strict=True):
            yield child | {"generation": age, "above": value}
