"""The text of a generation's notes, as Markdown and tables: pure text from a run's tables.

Model-written text is fenced by more backticks than any run of them in it, with hidden characters escaped. The page that renders
the Markdown shows this text and interprets none of it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.form_links import FormLinks
from flows.monitoring.alarms import Alarm
from flows.run.addresses import Addresses
from flows.stages import STAGE_NAMES
from stages.analysis.summary import KINDS
from stages.core.highlight import markdown_line, visible
from stages.core.places import for_others

Row = dict[str, Any]
Values = Mapping[tuple[str, str | None, str | None, str | None], float]
PROGRAM, VALUE, ANSWERS, PAIRS = 2000, 200, 5, 3
BARS = "▁▂▃▄▅▆▇█"
SPARKS = 24  # of the newest generations: the width of the UI's column
PROGRAMS = ("lines", "depth", "cyclomatic", "variables")


@dataclass(frozen=True)
class Sample:
    """A task that the note shows, with the number of attempts by answer and verdict."""

    heading: str
    task: Row
    right: int
    attempts: int
    answers: list[tuple[str, str, int]]


@dataclass(frozen=True)
class NoteData:
    """Everything that a generation's note shows. `earlier` has (valid share, solve rate) of the newest SPARKS generations."""

    run_id: str
    generation: int
    planned: int
    values: Values
    ratings: list[Row]
    offspring: list[Row]
    seconds: Mapping[str, float]
    alarms: list[Alarm]
    samples: list[Sample]
    earlier: list[tuple[float | None, float | None]]
    pictures: Mapping[str, str] = field(default_factory=dict)  # address (or data URI) by what it shows
    at: Addresses | None = None
    cost: str = ""
    forms: FormLinks = field(default_factory=FormLinks)


def generation_note(told: NoteData) -> str:
    """Return the summary of one generation."""
    parts = [
        f"# {told.run_id}, generation {told.generation} ({told.generation + 1} of {told.planned})",
        _links(told),
        _forms(told),
        *(f"> **Alarm** {markdown_line(str(alarm))}" for alarm in told.alarms),
        _numbers(told),
        _refused(told.values),
        *(f"![{name}]({address})" for name, address in told.pictures.items()),
        _ratings(told),
        _births(told),
        _seconds(told.seconds),
        f"Cost: {markdown_line(told.cost)}." if told.cost else "",
        *(_sample(sample, told) for sample in told.samples),
    ]
    return "\n\n".join(part for part in parts if part)


def run_note(
    run_id: str, planned: int, lines: Sequence[str], alarms: Sequence[str], at: Addresses | None, cost: Sequence[str] = ()
) -> str:
    """Return the rolling summary of a run: its newest generations, newest first, and its alarms."""
    parts = [
        f"# {run_id}",
        f"[The run in the artifact browser]({at.run(run_id)})" if at else "",
        f"{len(lines)} of {planned} generations shown, newest first." if lines else "No generation is done yet.",
        fence("\n".join(reversed(lines))) if lines else "",
        "\n".join(f"- **Alarm** {markdown_line(alarm)}" for alarm in alarms),
        "\n".join(f"- {markdown_line(text)}" for text in cost),
    ]
    return "\n\n".join(part for part in parts if part)


def rating_rows(ratings: Sequence[Row]) -> list[Row]:
    """Return the table of ratings: one short row per member, the fittest of each role first."""
    latest = {row["member_id"]: row for row in ratings}
    first = {row["member_id"]: row for row in reversed(ratings)}
    ordered = sorted(latest.values(), key=lambda row: (row["role"] != "teacher", -row["fitness"]))
    return [
        {
            "member": row["member_id"],
            "role": row["role"],
            "mu": round(row["mu"], 2),
            "change": round(row["mu"] - first[row["member_id"]]["mu_before"], 2),
            "sigma": round(row["sigma"], 2),
            "fitness": round(row["fitness"], 2),
            "result": ", ".join(one["result"] for one in ratings if one["member_id"] == row["member_id"]),
            "weights": row["next_adapter_id"],
        }
        for row in ordered
    ]


def match_rows(matches: Sequence[Row], tasks: Sequence[Row], grades: Sequence[Row]) -> list[Row]:
    """Return the table of matches: teacher and student, how many tasks were valid, and how many attempts were correct.

    `grades` are those of valid tasks.
    """
    valid, posed = (
        Counter(row["match_id"] for row in tasks if row["status"] == "valid"),
        Counter(row["match_id"] for row in tasks),
    )
    right = Counter(row["match_id"] for row in grades if row["correct"])
    tried = Counter(row["match_id"] for row in grades)
    return [
        {
            "match": row["match_id"],
            "teacher": row["teacher_id"],
            "student": row["student_id"],
            "expected %": round(100 * row["expected"], 1),
            "solved %": round(100 * right[row["match_id"]] / tried[row["match_id"]], 1) if tried[row["match_id"]] else None,
            "valid": f"{valid[row['match_id']]} of {posed[row['match_id']]}",
            "attempts": tried[row["match_id"]],
        }
        for row in matches
    ]


def sparkline(values: Sequence[float | None]) -> str:
    """Return shares from 0 to 1 as a line of bars, with a space for a missing one."""
    return "".join(" " if one is None else BARS[min(len(BARS) - 1, max(0, int(one * len(BARS))))] for one in values[-SPARKS:])


def fence(text: str, language: str = "") -> str:
    """Return a fenced block that nothing in the text can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"


def _links(told: NoteData) -> str:
    if told.at is None:
        return ""
    pages = {
        "all of it": told.at.generation(told.run_id, told.generation),
        "tasks": told.at.generation_table(told.run_id, told.generation, "tasks"),
        "attempts": told.at.generation_table(told.run_id, told.generation, "rollouts"),
        "adapters": told.at.adapters(told.run_id),
        "figures": told.at.figures(told.run_id),
    }
    return "In the artifact browser: " + " · ".join(f"[{name}]({address})" for name, address in pages.items())


def _forms(told: NoteData) -> str:
    """Return the links that open forms of the UI, filled in with this generation, its stages and its fittest members."""
    if not told.forms:
        return ""
    run_id, number = told.run_id, told.generation
    done = [stage for stage in STAGE_NAMES if stage in told.seconds]
    ratings = rating_rows(told.ratings)
    best = {row["role"]: row["weights"] for row in reversed(ratings)}
    lines = [
        f"[Fork from here]({told.forms.fork(run_id, number, told.planned)})",
        "Restart from: " + " · ".join(f"[{stage}]({told.forms.restart(run_id, number, stage)})" for stage in done)
        if done
        else "",
        "Benchmark: " + " · ".join(f"[{one}]({told.forms.benchmark(run_id, one)})" for one in best.values()) if best else "",
        f"[Compare with other runs]({told.forms.compare([run_id])})",
    ]
    return "\n".join(f"- {line}" for line in lines if line)


def _numbers(told: NoteData) -> str:
    """Return the headline table: counts, shares, and the curve so far."""
    values = told.values
    kinds = ", ".join(
        f"{kind} {_percent(values.get(('solve.rate', None, None, kind)))}"
        for kind in KINDS
        if ("solve.rate", None, None, kind) in values
    )
    rows = [
        (
            "proposals valid",
            _percent(values.get(("propose.valid_share", None, None, None))),
            sparkline([one for one, _ in told.earlier]),
        ),
        ("attempts correct", _percent(values.get(("solve.rate", None, None, None))), sparkline([one for _, one in told.earlier])),
        ("by kind", kinds or "–", ""),
        ("cells of problem space", _cells(values), ""),
        ("mean reward", _by_role(values, "reward.mean", "{:+.3f}"), ""),
        ("groups without a signal", _over_members(values, "reward.zero_variance_share", 100, "{:.0f} %"), ""),
        ("valid program", _lines(values), ""),
        ("entropy per token", _over_members(values, "update.entropy", 1, "{:.2f} nats"), ""),
        ("drift, engine to trainer", _over_members(values, "update.drift_mean", 1, "{:.2g} nats per token"), ""),
    ]
    if any(key[0] == "update.lag_mean" for key in values):
        rows.append(("lag, samples to weights", _over_members(values, "update.lag_mean", 1, "{:.2g} nats per token"), ""))
    return "| | | so far |\n|---|---|---|\n" + "\n".join(f"| {name} | {value} | {line} |" for name, value, line in rows)


def _lines(values: Values) -> str:
    """Return the complexity of valid programs as written, and stripped if that differs."""
    shown = []
    for name in PROGRAMS:
        written, stripped = (values.get((f"program.{kind}{name}", None, None, None)) for kind in ("", "stripped_"))
        if written is not None and written == written:
            bare = f" ({stripped:.1f} stripped)" if stripped is not None and f"{stripped:.1f}" != f"{written:.1f}" else ""
            shown.append(f"{name} {written:.1f}{bare}")
    return ", ".join(shown) or "–"


def _cells(values: Values) -> str:
    """Return the coverage so far, and how much is new."""
    so_far, new = (values.get((f"coverage.{name}", None, None, None)) for name in ("cells", "new_cells"))
    return "–" if so_far is None or new is None else f"{so_far:,.0f} so far, {new:.0f} of them new"


def _by_role(values: Values, name: str, form: str) -> str:
    found = {role: values.get((name, None, role, None)) for role in ("teacher", "student")}
    return ", ".join(f"{role}s {form.format(value)}" for role, value in found.items() if value is not None) or "–"


def _over_members(values: Values, name: str, scale: float, form: str) -> str:
    """Return the mean over the members of each role."""
    shown = []
    for role in ("teacher", "student", "both"):
        own = [
            value for (metric, member, of, kind), value in values.items() if (metric, of, kind) == (name, role, None) and member
        ]
        if own:
            shown.append(f"{role}s {form.format(scale * sum(own) / len(own))}")
    return ", ".join(shown) or "–"


def _refused(values: Values) -> str:
    prefix = "propose.status."
    counts = sorted(
        ((name.removeprefix(prefix), value) for (name, *_), value in values.items() if name.startswith(prefix)),
        key=lambda one: -one[1],
    )
    total = sum(value for _, value in counts)
    return "Proposals: " + ", ".join(f"{status} {value:.0f} ({value / total:.0%})" for status, value in counts) if total else ""


def _ratings(told: NoteData) -> str:
    rows = rating_rows(told.ratings)
    if not rows:
        return ""
    lines = []
    for row in rows:
        weights = f"[{row['weights']}]({told.at.adapter(told.run_id, row['weights'])})" if told.at else row["weights"]
        rating = f"{row['mu']:.2f} ± {row['sigma']:.2f}"
        lines.append(f"| {row['member']} | {row['role']} | {rating} | {row['change']:+.2f} | {row['result']} | {weights} |")
    return "| member | role | rating | change | result | weights now |\n|---|---|---|---|---|---|\n" + "\n".join(lines)


def _births(told: NoteData) -> str:
    return "\n".join(
        f"- **{row['member_id']}** = {for_others(row['operator'])}({', '.join(row['parents'])}), replaces {row['replaces']}; "
        f"change of delta W {row['relative_change']:.3f}, cosine {row['cosine']:.3f}"
        for row in told.offspring
    )


def _seconds(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return ""
    stages = {stage: value for stage, value in seconds.items() if stage != "total"}
    spent = [*stages.values(), seconds.get("total", sum(stages.values()))]
    lines = [[*stages, "total"], ["---"] * len(spent), [f"{value:.1f} s" for value in spent]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sample(sample: Sample, told: NoteData) -> str:
    task = sample.task
    name = f"[{task['task_id']}]({told.at.task(told.run_id, task['task_id'])})" if told.at else task["task_id"]
    pairs = [
        f"f({visible(given, VALUE)}) -> {visible(got, VALUE)}"
        for given, got in zip(
            task["inputs"][:PAIRS], [*task["outputs"], *[""] * PAIRS][: len(task["inputs"][:PAIRS])], strict=True
        )
    ]
    answers = [f"{count}x {status}: {_one_line(answer)}" for answer, status, count in sample.answers[:ANSWERS]]
    code = visible(task["program"], PROGRAM)
    return "\n\n".join(
        [
            f"### {sample.heading}: {task['kind']} by {task['teacher_id']}, {sample.right} of {sample.attempts} correct ({name})",
            fence(code, "python"),
            fence("\n".join([*pairs, *([""] if answers else []), *answers]), "text"),
        ]
    )


def _one_line(text: str) -> str:
    return visible(text, VALUE).replace("\n", "\\n")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
