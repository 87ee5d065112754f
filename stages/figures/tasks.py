"""Figures of the tasks and of the machine: what teachers write, the sandbox's verdicts, and where the time goes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.ticker import MaxNLocator

from stages.core.judging.shapes import cell
from stages.core.statistics.estimates import only, series
from stages.figures.measures import clusters_of
from stages.figures.panels import INK, KIND, MANY, ROLE, SERIES
from stages.figures.plates import Plate, canvas, curve, label, legend, note

USUAL = ("unparsed", "error", "timeout", "nondeterministic", "banned", "too_long")
REASONS = 7  # the most frequent ones; others are drawn together
MEASURES = {
    "lines": "lines",
    "depth": "syntax tree depth",
    "cyclomatic": "cyclomatic complexity",
    "variables": "variables",
}


def valid_share(tasks: pa.Table) -> Plate:
    """Valid proposals by kind over generations."""
    plate = Plate("valid-share", "How many proposals are valid?", "No proposal has been verified yet.", ("tasks", "proposals"))
    if not tasks.num_rows:
        return plate
    figure, (ax,) = canvas(plate.question)
    marked = tasks.append_column("valid", pc.equal(tasks["status"], "valid"))
    for kind, colour in KIND.items():
        curve(ax, series(only(marked, kind=kind), "valid", ["teacher_id", "group_id"]), colour, kind, kind, scale=100)
    ax.set_ylim(0, 100)
    label(ax, "proposals valid (%)")
    legend(ax)
    groups = series(marked, "valid", ["teacher_id", "group_id"]).clusters_text()
    over = clusters_of(tasks["teacher_id"].to_pylist())
    caption = (
        f"Share of proposals that the sandbox found valid. Bands are ±1 standard error over {over}; n = {groups} {over} a "
        f"generation, {tasks.num_rows:,} proposals in all."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def reasons(tasks: pa.Table) -> Plate:
    """Why proposals are not valid, over generations."""
    plate = Plate("reasons", "Why are proposals refused?", "No proposal has been refused yet.", ("tasks",))
    refused = tasks.filter(pc.not_equal(tasks["status"], "valid"))
    if not refused.num_rows:
        return plate
    figure, (ax,) = canvas(plate.question, height=3.1)
    totals = Counter(tasks["generation"].to_pylist())
    frequent = [status for status, _ in Counter(refused["status"].to_pylist()).most_common(REASONS)]
    colours = _colours(frequent)
    generations = np.array(sorted(totals))
    bottom = np.zeros(len(generations))
    named = [status if status in frequent else "others" for status in refused["status"].to_pylist()]
    counted = Counter(zip(refused["generation"].to_pylist(), named, strict=True))
    for status in [*frequent, *(["others"] if "others" in named else [])]:
        colour = colours[status]
        share = np.array([100 * counted[generation, status] / totals[generation] for generation in generations.tolist()])
        _stacked(ax, generations, share, bottom, colour, status)
        note(ax, status, colour, generations, share, n=[totals[generation] for generation in generations.tolist()], drawn="bars")
        bottom += share
    label(ax, "proposals (%)")
    legend(ax, 3)
    caption = (
        "Share of all proposals by what the sandbox or the reader said. Counts of everything proposed, so there is no sampling "
        f"error; n = {refused.num_rows:,} refused of {tasks.num_rows:,}."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def _colours(statuses: Sequence[str]) -> dict[str, str]:
    """Return a colour for each status and `others`: the usual ones have the same in every run."""
    usual = dict(zip((*USUAL, "others"), SERIES, strict=False))
    free = iter(
        [colour for colour in SERIES if colour not in usual.values()] + [usual[one] for one in USUAL if one not in statuses]
    )
    return {status: usual.get(status) or next(free) for status in (*statuses, "others")}


def _stacked(ax: Any, generations: np.ndarray, height: np.ndarray, bottom: np.ndarray, colour: str, name: str) -> None:
    """Bars on those below them; of many generations one area in steps, since thousands of bars take seconds to draw."""
    if len(generations) <= MANY:
        ax.bar(generations, height, 0.85, bottom=bottom, color=colour, label=name)
        return
    every = np.arange(generations[0], generations[-1] + 1)
    low, high = np.zeros(len(every)), np.zeros(len(every))  # nothing where a generation is missing
    places = generations - generations[0]
    low[places], high[places] = bottom, bottom + height
    ax.fill_between(every, low, high, step="mid", color=colour, linewidth=0, label=name)


def program_complexity(tasks: pa.Table) -> Plate:
    """Four measures of how complex valid programs are."""
    plate = Plate("complexity", "Do teachers write more complex code?", "No valid program has been measured yet.", ("tasks",))
    valid = tasks.filter(pc.is_valid(tasks["depth"]))
    if not valid.num_rows:
        return plate
    figure, axes = canvas(plate.question, 2, 2, 4.0)
    for ax, (column, unit) in zip(axes, MEASURES.items(), strict=True):
        curve(ax, series(valid, column, ["teacher_id", "group_id"]), ROLE["teacher"], "as written", "teacher")
        curve(ax, series(valid, f"stripped_{column}", ["teacher_id", "group_id"]), INK, "stripped", dashes="--")
        label(ax, unit)
        ax.yaxis.label.set_fontsize(8)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))  # two panels share the width
    axes[0].set_xlabel("")
    axes[1].set_xlabel("")
    legend(axes[0], 2)
    groups = series(valid, "depth", ["teacher_id", "group_id"]).clusters_text()
    over = clusters_of(tasks["teacher_id"].to_pylist())
    caption = (
        "Means over valid programs, as written and stripped of comments, docstrings and dead code. Bands are ±1 standard error "
        f"over {over}; n = {groups} {over} per generation with a valid program, {valid.num_rows:,} programs in all. "
        "A longer program is not necessarily harder: see the solve rate."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def coverage(tasks: pa.Table) -> Plate:
    """Distinct programs so far, and how many proposals repeat one."""
    plate = Plate("coverage", "Is the space of problems still explored?", "No program has been valid yet.", ("tasks",))
    valid = tasks.filter(pc.equal(tasks["status"], "valid"))
    if not valid.num_rows:
        return plate
    figure, (above, below) = canvas(plate.question, 2, 1, 3.6)
    keys = pc.coalesce(valid["program_key"], valid["program"]).to_pylist()
    seen: set[str] = set()
    fresh: Counter[int] = Counter()
    posed: Counter[int] = Counter()
    for generation, key in zip(valid["generation"].to_pylist(), keys, strict=True):
        posed[generation] += 1
        fresh[generation] += key not in seen
        seen.add(key)
    x = np.array(sorted(posed))
    tasks_so_far, programs_so_far = (np.cumsum([counted[g] for g in x.tolist()]) for counted in (posed, fresh))
    above.plot(x, tasks_so_far, color=INK, linewidth=1, linestyle=":", label="valid tasks")
    above.plot(x, programs_so_far, color=ROLE["teacher"], linewidth=1.6, label="distinct programs")
    note(above, "valid tasks", INK, x, tasks_so_far, dashes=":")
    note(above, "distinct programs", ROLE["teacher"], x, programs_so_far)
    cells = _cells_so_far(valid)
    if max(cells.values(), default=0):
        above.plot(list(cells), list(cells.values()), color=ROLE["student"], linewidth=1.4, linestyle="--", label="cells")
        note(above, "cells", ROLE["student"], list(cells), list(cells.values()), dashes="--")
    curve(below, series(valid, "duplicate", ["teacher_id", "group_id"]), ROLE["teacher"], "repeated", "teacher", scale=100)
    label(above, "so far")
    above.set_xlabel("")
    label(below, "repeated tasks (%)")
    below.set_ylim(0, max(5.0, below.get_ylim()[1]))
    legend(above)
    caption = (
        "Above: valid tasks, distinct programs (normalised syntax tree) and distinct cells of the problem space (kind of syntax "
        "tree, types of values) so far, counts without sampling error. Below: valid tasks that repeat an "
        f"earlier one, program and inputs; band ±1 standard error over {clusters_of(tasks['teacher_id'].to_pylist())}. "
        f"n = {valid.num_rows:,} valid tasks, {len(seen):,} distinct programs. "
        "Induction tasks take their program from an earlier task."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def _cells_so_far(valid: pa.Table) -> dict[int, int]:
    """Distinct cells up to each generation."""
    seen: set[str | None] = {None}
    found: dict[int, int] = {}
    for row in valid.select(["generation", "syntax", "value_types", "executed_lines"]).to_pylist():
        seen.add(cell(row))
        found[row["generation"]] = len(seen) - 1
    return found


def seconds(clock: pa.Table) -> Plate:
    """Seconds of each stage, stacked over generations. `clock` has generation, stage and seconds, stages in their order."""
    plate = Plate("seconds", "Where does the time go?", "No stage has finished yet.", ("manifests",))
    if not clock.num_rows:
        return plate
    stages = list(dict.fromkeys(clock["stage"].to_pylist()))
    generations = np.array(sorted(set(clock["generation"].to_pylist())))
    figure, (ax,) = canvas(plate.question, height=3.1)
    bottom = np.zeros(len(generations))
    spent = {(row["generation"], row["stage"]): row["seconds"] for row in clock.to_pylist()}
    for colour, stage in zip(SERIES, stages, strict=False):
        height = np.array([spent.get((generation, stage), 0.0) for generation in generations.tolist()])
        _stacked(ax, generations, height, bottom, colour, stage)
        note(ax, stage, colour, generations, height, drawn="bars")
        bottom += height
    label(ax, "seconds")
    legend(ax, 4)
    caption = (
        "Seconds of each stage by the manifests' clocks; parts of a stage that ran at the same time count once, an update beside "
        f"other stages by itself. n = {len(generations)} generations, median {np.median(bottom):,.1f} s for the stages of one. "
        "Measured once each, so there are no error bars."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def drift(metrics: pa.Table) -> Plate:
    """Difference between the log-probabilities of engine and trainer."""
    plate = Plate("drift", "Do engine and trainer agree?", "No update has measured its drift yet.", ("metrics",))
    measured = only(metrics, name="update.drift_mean")
    if not measured.num_rows:
        return plate
    figure, (ax,) = canvas(plate.question)
    counts = []
    for role, colour in ROLE.items():
        found = series(only(measured, role=role), "value", "member_id")
        curve(ax, found, colour, f"{role}s" if role != "both" else "single agent", role)
        counts += [f"{found.clusters_text()} in role {role}"] if found else []
    ax.set_ylim(bottom=0)
    label(ax, "drift (nats per token)")
    ax.yaxis.set_major_formatter("{x:.2g}")
    legend(ax)
    caption = (
        "Mean absolute difference between the log-probabilities that engine and trainer give the same tokens, mean over members. "
        f"Bands are ±1 standard error over members; n = {', '.join(counts)}."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)
