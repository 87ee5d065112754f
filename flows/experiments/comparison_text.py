"""The words and tables of a comparison page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flows.config import differences, dump
from flows.experiments.comparison import ComparedRun
from flows.experiments.spec import Experiment
from flows.report.report_page import Html, escape, joined, table, tile
from stages.figures.comparison import contrasts
from stages.figures.measures import UNITS

Row = Mapping[str, Any]


def lead(described: Experiment, found: Sequence[ComparedRun], commit: str, file: str) -> Html:
    """Return the question and the progress of the experiment."""
    done = sum(one.usable for one in found)
    codes = sorted({str(one.description.get("versions", {}).get("code", ""))[:12] for one in found if one.description} - {""})
    held = (
        f"The file {file} is unchanged since commit {commit[:12]}."
        if commit
        else f"The current content of the file {file} is not committed."
    )
    text = f"{described.question} {done} of {len(found)} runs are finished. {held} Their code: {', '.join(codes) or 'none yet'}."
    if len(codes) > 1:
        text += " Not all of them were made by the same code."
    return Html(f'<p class="lead">{escape(text)}</p>')


def primary_tiles(described: Experiment, rows: Sequence[Row], late: Sequence[str]) -> Html:
    """Return the confirmatory result in words, or why there is none."""
    rule = described.primary
    first, second = rule.contrast
    own = _primary_rows(described, rows)
    asked = (
        f"{rule.over} {rule.measure} on {rule.group} problems, {first} minus {second}, paired by seed, at equal "
        f"{UNITS[rule.budget]}; two-sided paired t test at {rule.alpha:g}."
    )
    if not own:
        return Html(f'<p>{escape(asked)}</p><p class="none">No seed has scores of both arms at an equal amount yet.</p>')
    shown = [Html(f"<p>{escape(asked)}</p>")]
    for name, row in zip(contrasts(own), own, strict=True):
        shown += [Html(f"<p>{escape(name)}</p>")] if len(own) > 1 else []
        shown.append(_primary_row(described, row))
    said, pairs, planned = _label(own, late), sum(row["n"] for row in own), _planned_pairs(described)
    if planned > pairs:
        said += f" Only {pairs} of {planned} planned pairs are available: this result is not final."
    return joined([*shown, Html(f"<p>{escape(said.strip())}</p>")] if said else shown)


def _primary_row(described: Experiment, row: Row) -> Html:
    """Return the tiles of a difference at the primary endpoint, and its verdict."""
    rule = described.primary
    first, second = rule.contrast
    tiles = [
        tile(_points(row["difference"], row["stderr"]), f"difference, {_seeds(row['n'])}", escape("percentage points ± s.e.")),
        tile(_percent(row["first_mean"]), first, escape("mean over seeds")),
        tile(_percent(row["second_mean"]), second, escape("mean over seeds")),
        tile("–" if row["p_t"] is None else f"p = {row['p_t']:.3g}", "paired t test", escape(_flip(row))),
        tile(_points(row["detectable"], None), "smallest detectable", escape(f"with power {rule.power:g}")),
    ]
    return Html(f'<div class="tiles">{joined(tiles)}</div><p>{escape(_verdict(row, described))}</p>')


def _label(own: Sequence[Row], late: Sequence[str]) -> str:
    """Return why the rows of the primary endpoint are exploratory; empty if one is confirmatory."""
    if any(row["label"] == "confirmatory" for row in own):
        return ""
    if len(own) > 1 and not late:
        return " The label is exploratory: the pairs have different base models, and each model is a test of its own."
    runs = f" ({', '.join(late[:6])}{' …' if len(late) > 6 else ''})" if late else ""
    return f" The label is exploratory: the current content of the file was not committed before these runs began{runs}."


def primary_line(described: Experiment, rows: Sequence[Row]) -> str:
    """Return the result of the primary comparison in one line of plain text."""
    rule = described.primary
    asked = f"{' minus '.join(rule.contrast)}, {rule.group} problems, at equal {UNITS[rule.budget]}"
    own = _primary_rows(described, rows)
    if not own:
        return f"{asked}: no seed has scores of both arms at an equal amount yet"
    models = [f"on {row['model'][:8]}: " if len(own) > 1 else "" for row in own]
    return f"{asked}: {'; '.join(model + _found(row) for row, model in zip(own, models, strict=True))}"


def _found(row: Row) -> str:
    error = "" if row["stderr"] is None else f" ± {100 * row['stderr']:.2f}"
    chance = "" if row["p_t"] is None else f", p = {row['p_t']:.3g}"
    return f"{100 * row['difference']:+.2f}{error} points over {_seeds(row['n'])}{chance} ({row['label']})"


def _primary_rows(described: Experiment, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the primary contrast at its own budget: one, or one for each base model of its pairs."""
    asked = (*described.primary.contrast, described.primary.budget)
    return [row for row in rows if (row["first"], row["second"], row["budget"]) == asked]


def _seeds(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"


def _planned_pairs(described: Experiment) -> int:
    """Return how many seeds both arms of the primary contrast have."""
    seeds = {arm.name: set(arm.seeds or described.seeds) for arm in described.arms}
    first, second = described.primary.contrast
    return len(seeds[first] & seeds[second])


def _verdict(row: Row, described: Experiment) -> str:
    rule = described.primary
    if row["p_t"] is None:
        which = "One pair of runs has" if row["n"] == 1 else f"The differences of all {row['n']} seeds are equal: they have"
        return f"{which} no spread between seeds, so chance cannot be estimated."
    first, second = rule.contrast
    size = f"{100 * row['detectable']:.2f} points" if row["detectable"] is not None else "unknown"
    if row["p_t"] < rule.alpha:
        better = first if row["difference"] > 0 else second
        return f"{better} scores higher; the difference is larger than chance between seeds explains."
    return f"No difference was found. One smaller than {size} would probably have been missed, so this does not show equality."


def differences_table(rows: Sequence[Row]) -> Html:
    """Return differences with everything that a reader needs to judge them."""
    if not rows:
        return Html('<p class="none">No two finished runs share a seed yet.</p>')
    header = (
        "first − second", "what", "of", "at equal", "amount", "first", "second", "difference ± s.e.", "interval", "n", "p (t)",
        "p (flip)", "detectable", "label",
    )  # fmt: skip
    cells = [
        [
            escape(name),
            escape(f"{row['over']} {row['measure']}"),
            escape(row["group"] or "–"),
            escape(UNITS[row["budget"]]),
            escape(f"{row['at']:,.0f}"),
            escape(_value(row, row["first_mean"])),
            escape(_value(row, row["second_mean"])),
            *_interval(row, "difference", _percentages if row["what"] == "score" else _figures),
            escape(_p(row["p_flip"])),
            escape("–" if row["detectable"] is None else _value(row, row["detectable"])),
            escape(row["label"]),
        ]
        for name, row in zip(contrasts(rows), rows, strict=True)
    ]
    return table(header, cells, ["changed" if row["label"] == "confirmatory" else "" for row in rows])


def gains_table(rows: Sequence[Row]) -> Html:
    """Return what arms gained in a run, by group of problems."""
    if not rows:
        return Html('<p class="none">No run with a scored start is finished yet.</p>')
    header = ("arm", "problems", "start", "end", "gain ± s.e.", "interval", "n", "p (t)")
    cells = [
        [
            escape(row["arm"]),
            escape(row["group"]),
            escape(f"{100 * row['start']:.2f}"),
            escape(f"{100 * row['end']:.2f}"),
            *_interval(row, "gain", _percentages),
        ]
        for row in rows
    ]
    return table(header, cells)


def changes_table(rows: Sequence[Row]) -> Html:
    """Return how metrics change as an arm trains, and how much they vary about their straight line."""
    if not rows:
        return Html('<p class="none">No run is finished yet.</p>')
    header = ("arm", "metric", "first third", "last third", "change ± s.e.", "interval", "n", "p (t)", "swing", "sampling")
    cells = [
        [
            escape(row["arm"]),
            escape(row["measure"]),
            escape(f"{row['early']:.4g}"),
            escape(f"{row['late']:.4g}"),
            *_interval(row, "change", _figures),
            escape(f"{row['swing']:.3g}"),
            escape("–" if row["noise"] is None else f"{row['noise']:.3g}"),
        ]
        for row in rows
    ]
    return table(header, cells)


def runs_table(found: Sequence[ComparedRun]) -> Html:
    """Every run with its state and its costs."""
    names = ("generated_tokens", "generated_tokens_per_student", "trained_tokens", "optimizer_steps", "seconds")
    rows = [
        [
            escape(one.planned.run_id),
            escape(one.state),
            escape(f"{one.generations} of {one.planned.config.generations}"),
            *(escape(f"{one.totals[name]:,.0f}" if one.totals else "–") for name in names),
            Html(f"<code>{escape(one.model[:8] or '–')}</code>"),
            Html(f"<code>{escape(one.head[:12] or '–')}</code>"),
        ]
        for one in found
    ]
    return table(("run", "state", "generations", *(UNITS[name] for name in names), "base model", "head"), rows)


def arms_table(described: Experiment, found: Sequence[ComparedRun]) -> Html:
    """Return how each arm differs from the arm that others are compared with."""
    configs = {one.planned.arm: dump(one.planned.config) for one in found}
    usual = configs[described.primary.contrast[1]]
    rows = []
    for arm in described.arms:
        keys = [key for key in differences(usual, configs[arm.name]) if key != "seed"]
        changed = ", ".join(f"{key} = {_at(configs[arm.name], key)}" for key in keys)
        seeds = " ".join(map(str, arm.seeds or described.seeds))
        cells = (arm.name, arm.about or "–", arm.config, seeds)
        rows.append([*(escape(cell) for cell in cells), Html(f"<code>{escape(changed or 'reference for the others')}</code>")])
    return table(("arm", "about", "configuration", "seeds", "different from " + described.primary.contrast[1]), rows)


def definitions(described: Experiment) -> Html:
    """Return definitions of the terms on the page."""
    rule = described.primary
    said = (
        "A single agent's step is the proposals and attempts of one teacher-student pair, so at equal generations every adapter "
        "sees as much as its counterpart, and a population of N pairs spends N times as much in all. Every contrast is therefore "
        "also computed at equal amounts of each budget: the score of both runs, interpolated linearly between their scored "
        "states, at the largest amount that both reached. A pair is left out if that amount lies before one run's first scored "
        "state after training. The best or worst member is compared only where both runs scored as many. Arms with more steps or "
        "larger batches are another way to match a population's total.",
        "Tokens generated are those of proposals and answers; tokens trained on are the responses of samples whose adapter took "
        "its step; seconds are those of all stages but benchmarks, on a machine that may have run other work. Filling the "
        "buffers at the start and scoring are not counted. Per adapter, teachers share the amount with the students, so at an "
        "equal amount a student with a teacher has written less than one whose tasks the generator draws. Per student counts "
        "only what students generated (a single agent: all that it generated), and compares students that wrote as much.",
        "First and last third are means over a finished run's generations. Metrics of the last third are compared only between "
        "runs of equally many generations. A metric's swing is the standard deviation of "
        "generations about their straight line; sampling is the part explained by the tasks of a generation, the root mean "
        "square of their standard errors. A swing much above it comes from the run itself.",
        "The unit is the seed. Runs of one seed share seed tasks, starting adapters and problems. Standard errors, intervals and "
        f"tests are over seeds; the smallest detectable difference is for power {rule.power:g} at the spread seen here. Problems "
        "are a fixed set: intervals cover other seeds, not other problems.",
    )
    return joined(Html(f"<p>{escape(text)}</p>") for text in said)


def _at(values: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def _interval(row: Row, name: str, shown: Callable[[float, str], str]) -> list[Html]:
    """Return four cells of an estimate over seeds: its value ± its error, its interval, the number of seeds, and p (t)."""
    error = "" if row["stderr"] is None else f" ± {shown(row['stderr'], '')}"
    interval = "–" if row["low"] is None else f"{shown(row['low'], '+')} to {shown(row['high'], '+')}"
    return [escape(cell) for cell in (shown(row[name], "+") + error, interval, row["n"], _p(row["p_t"]))]


def _value(row: Row, value: float) -> str:
    """Format scores in percent, metrics as they are."""
    return _percentages(value) if row["what"] == "score" else _figures(value)


def _percentages(value: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}"


def _figures(value: float, sign: str = "") -> str:
    return f"{value:{sign}.4g}"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _points(value: float | None, stderr: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.2f} ± {100 * stderr:.2f}" if stderr is not None else f"{100 * value:.2f}"


def _flip(row: Row) -> str:
    return "sign flips: –" if row["p_flip"] is None else f"sign flips: {row['p_flip']:.3g}"
