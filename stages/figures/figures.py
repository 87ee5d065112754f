"""Figures of learning: how well students solve, the rewards of each role, and whether members keep exploring.

Each function answers one question from condensed tables (`stages.core.statistics.condensed`) of all generations so far. Bands
and bars are one standard error; attempts at one task and proposals from one prompt count as one observation
(`stages.core.statistics.estimates`).
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.lines import Line2D

from stages.core.statistics.estimates import estimate, only, series
from stages.core.statistics.metric_rows import ZERO_VARIANCE_LIMIT
from stages.core.training.still_groups import still_groups
from stages.figures.panels import DASHES, INK, KIND, MANY, MUTED, ROLE, SMALL
from stages.figures.plates import Plate, canvas, curve, end_labels, label, legend, note

ROLES = ("teacher", "student")
BARS = "Bands are ±1 standard error"


def solve_rate(grades: pa.Table) -> Plate:
    """Correct attempts by kind over generations."""
    plate = Plate("solve-rate", "How often do students solve tasks?", "No attempt has been graded yet.", ("grades",))
    if not grades.num_rows:
        return plate
    figure, (ax,) = canvas(plate.question)
    for kind, colour in KIND.items():
        curve(ax, series(only(grades, kind=kind), "correct", "task_id"), colour, kind, kind, scale=100)
    overall = series(grades, "correct", "task_id")
    ax.plot(overall.generations, 100 * overall.mean, color=INK, linewidth=1, linestyle=":", label="all kinds")
    note(ax, "all kinds", INK, overall.generations, 100 * overall.mean, 100 * overall.stderr, overall.clusters, ":")
    ax.set_ylim(0, 100)
    label(ax, "attempts correct (%)")
    legend(ax, 4)
    caption = (
        f"Share of attempts that are correct, mean over all students' tasks. {BARS} over tasks; "
        f"n = {overall.clusters_text()} tasks per generation, {grades.num_rows:,} attempts in all. "
        "Tasks differ from generation to generation: a flat line may hide harder tasks."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def rewards(samples: pa.Table) -> Plate:
    """Mean reward by role over generations."""
    plate = Plate("rewards", "What do teachers and students earn?", "No sample has been rewarded yet.", ("samples",))
    if not samples.num_rows:
        return plate
    figure, (ax,) = canvas(plate.question)
    counts = []
    for role in ROLES:
        found = series(only(samples, role=role), "reward", "cluster")
        curve(ax, found, ROLE[role], f"{role}s", role)
        counts += [f"{found.clusters_text()} {'prompts' if role == 'teacher' else 'tasks'}"] if found else []
    label(ax, "mean reward")
    legend(ax)
    caption = (
        f"Mean reward of a sample. {BARS} over prompts of teachers and tasks of students; "
        f"n = {' and '.join(counts)} per generation."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def reward_distribution(samples: pa.Table) -> Plate:
    """Shares of samples by reward, early and late."""
    plate = Plate("reward-distribution", "How are rewards distributed?", "No sample has been rewarded yet.", ("samples",))
    if not samples.num_rows:
        return plate
    generations = np.unique(samples["generation"].to_numpy())
    third = max(1, len(generations) // 3)
    roles = [role for role in ROLES if only(samples, role=role).num_rows]
    figure, axes = canvas(plate.question, len(roles), 1, 0.6 + 1.8 * len(roles))
    counts = []
    for ax, role in zip(axes, roles, strict=True):
        own = only(samples, role=role)
        for place, chosen in enumerate((generations[:third], generations[-third:])[: 1 + (len(generations) > 1)]):
            rows = own.filter(pc.is_in(own["generation"], pa.array(chosen)))
            name = f"generations {chosen[0]} to {chosen[-1]}" if len(chosen) > 1 else f"generation {chosen[0]}"
            clusters = _reward_bars(ax, rows, place, ROLE[role], name)
            counts.append(f"{clusters:,} {'prompts' if role == 'teacher' else 'tasks'} ({rows.num_rows:,} samples)")
        label(ax, "mean share of samples (%)", "reward")
        ax.set_title(f"{role}s", fontsize=SMALL, color=INK, loc="right")
        legend(ax, 2)
    caption = (
        "Mean over prompts (teachers) or tasks (students) of the share of their samples by reward, first and last third of the "
        "run, in bins 0.25 wide; rewards outside the axis are counted in the end bins. Bars are ±1 standard error over prompts "
        f"or tasks; n = {', '.join(counts)}."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def _reward_bars(ax: Any, samples: pa.Table, place: int, colour: str, name: str) -> int:
    """Draw the share of samples in each bin of rewards, and return the number of clusters that it is over."""
    edges = np.arange(-1.125, 1.2, 0.25)
    bins_of = np.digitize(np.clip(samples["reward"].to_numpy(), -1, 1), edges) - 1
    keys = samples.select(["generation", "cluster"])
    found = [
        estimate(keys.append_column("inside", pa.array(bins_of == one)), "inside", ["generation", "cluster"])
        for one in range(len(edges) - 1)
    ]
    share, error = np.array([one.mean for one in found]), np.array([one.stderr for one in found])
    middle = (edges[:-1] + edges[1:]) / 2 + (place - 0.5) * 0.1
    look = {"color": colour} if place else {"facecolor": "none", "edgecolor": colour, "hatch": "////"}
    ax.bar(middle, 100 * share, 0.1, label=name, linewidth=0.8, **look)
    ax.errorbar(middle, 100 * share, 100 * np.nan_to_num(error), fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5)
    bins = (edges[:-1] + edges[1:]) / 2
    note(ax, name, colour, bins, 100 * share, 100 * error, [one.clusters for one in found], drawn="bars")
    return found[0].clusters


def zero_variance(samples: pa.Table) -> Plate:
    """Share of groups in which every sample earned the same, or whose estimator gives them no gradient."""
    plate = Plate("zero-variance", "How many groups have no signal?", "No sample has been rewarded yet.", ("samples",))
    if not samples.num_rows:
        return plate
    still = still_groups(samples, ("generation", "role", "member_id", "group_id"))
    figure, (ax,) = canvas(plate.question)
    counts = []
    for role in ROLES:
        found = series(only(still, role=role), "still", ["member_id", "group_id"])
        curve(ax, found, ROLE[role], f"{role}s' groups", role, scale=100)
        counts += [f"{found.clusters_text()} {role} groups"] if found else []
    ax.axhline(100 * ZERO_VARIANCE_LIMIT, color=MUTED, linewidth=0.8, linestyle=":")
    ax.set_ylim(0, 100)
    label(ax, "groups without a signal (%)")
    legend(ax)
    caption = (
        "Groups in which every sample earned the same reward, or whose centred rewards are 0. Above the dotted line an alarm is "
        "raised. "
        f"{BARS} over groups; n = {' and '.join(counts)} per generation."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def exploration(completions: pa.Table) -> Plate:
    """Token entropy by role, estimated from sampled log-probabilities."""
    caption = (
        "Mean of −log p over the sampled tokens of a completion. It follows the entropy per token, but is no "
        "unbiased estimate of it, since the length depends on what was drawn. Near 0 a member writes the same every time."
    )
    return _by_role(completions, "exploration", "Do members keep exploring?", "surprise", "entropy (nats per token)", caption)


def lengths(completions: pa.Table) -> Plate:
    """Completion lengths by role."""
    caption = "Tokens of a completion: a teacher's proposal, a student's answer."
    return _by_role(completions, "lengths", "Do completions grow longer?", "tokens", "completion (tokens)", caption)


def _by_role(completions: pa.Table, name: str, question: str, column: str, unit: str, caption: str) -> Plate:
    tables = ("proposals", "rollouts")
    if not completions.num_rows:
        return Plate(name, question, "No completion has been stored yet.", tables)
    figure, (ax,) = canvas(question)
    counts = []
    for role in ROLES:
        found = series(only(completions, role=role), column, ["member_id", "group_id"])
        curve(ax, found, ROLE[role], f"{role}s", role)
        counts += [f"{found.clusters_text()} {role} prompts"] if found else []
    ax.set_ylim(bottom=0)
    label(ax, unit)
    legend(ax)
    caption = f"{caption} {BARS} over prompts; n = {' and '.join(counts)} per generation."
    return Plate(name, question, caption, tables, figure)


def benchmark(scores: pa.Table) -> Plate:
    """Scores of each member on fixed problems, as trained. Scores that were asked for in other ways have panels of their own."""
    plate = Plate("benchmark", "Do members get better on fixed problems?", "No benchmark has been scored yet.", ("scores",))
    scores = only(scores, group="all")
    if not scores.num_rows:
        return plate
    sets = _problem_sets(scores)
    figure, axes = canvas(plate.question, len(sets), 1, 0.7 + 2.4 * len(sets))
    measures = sorted(set(scores["measure"].to_pylist()), key=lambda name: (name != "pass@1 greedy", name))
    for ax, (suite, problems, question) in zip(axes, sets, strict=True):
        own = only(scores, suite=suite, problems=problems, question=question)
        for style, measure in zip(DASHES_OF, measures, strict=False):
            _score_lines(ax, only(own, measure=measure), style)
        label(ax, f"{suite}: solved of {problems:,} (%)", "generations trained")
        ax.set_title(question, fontsize=SMALL, color=INK, loc="right")
    named = [
        Line2D([], [], color=INK, linestyle=style, label=measure) for style, measure in zip(DASHES_OF, measures, strict=False)
    ]
    legend(axes[0], 4, named)
    counts = ", ".join(f"{problems:,} ({'; '.join(filter(None, (suite, question)))})" for suite, problems, question in sets)
    caption = (
        f"Problems that no generation trains on, scored with the members as trained. Bars are ±1 standard error over problems; "
        f"n = {counts}. Members share the problems of a panel, so that differences between them are surer than the bars suggest."
    )
    return Plate(plate.name, plate.question, caption, plate.tables, figure)


def _problem_sets(scores: pa.Table) -> list[tuple[str, int, str]]:
    """Suites, numbers of problems and ways of asking them: scores compare only within one of them.

    Those scored at most points of training come first. A set that was scored at one point only shows no change, and is left out
    beside one that does.
    """
    points: dict[tuple[str, int, str], set[int]] = {}
    for row in scores.select(["suite", "problems", "question", "trained"]).to_pylist():
        points.setdefault((row["suite"], row["problems"], row["question"]), set()).add(row["trained"])
    ordered = sorted(points, key=lambda one: (-len(points[one]), -one[1], one[0], one[2]))
    return ([one for one in ordered if len(points[one]) > 1] or ordered)[:PANELS]


PANELS = 3
DASHES_OF = ("-", "--", ":", "-.")


def _score_lines(ax: Any, scores: pa.Table, style: str) -> None:
    ends: dict[str, list[tuple[float, float, str]]] = {}
    for member in sorted(set(scores["member_id"].to_pylist())):
        rows = sorted(only(scores, member_id=member).to_pylist(), key=lambda row: row["trained"])
        role = rows[0]["role"] if rows[0]["role"] in ROLE else "both"
        x, y = [row["trained"] for row in rows], [100 * row["score"] for row in rows]
        errors = [100 * (row["stderr"] or 0.0) for row in rows]
        marker = "o" if len(x) <= MANY else ""
        ax.errorbar(
            x,
            y,
            errors,
            color=ROLE[role],
            linestyle=style,
            marker=marker,
            markersize=3,
            linewidth=1.2,
            elinewidth=0.8,
            capsize=1.5,
        )
        measured = [100 * (math.nan if row["stderr"] is None else row["stderr"]) for row in rows]
        name = f"{member}, {rows[0]['measure']}"
        note(ax, name, ROLE[role], x, y, measured, [row["problems"] for row in rows], style)
        ends.setdefault(role, []).append((x[-1], y[-1], member))
    if style == "-":
        for role, points in ends.items():
            end_labels(ax, points, ROLE[role])


def overall(grades: pa.Table, generation: int) -> tuple[float, float, int]:
    """Solve rate of one generation, its standard error and the number of tasks, for a headline."""
    found = estimate(only(grades, generation=generation), "correct", "task_id")
    return found.mean, found.stderr, found.clusters


__all__ = [
    "DASHES",
    "benchmark",
    "exploration",
    "lengths",
    "overall",
    "reward_distribution",
    "rewards",
    "solve_rate",
    "zero_variance",
]
