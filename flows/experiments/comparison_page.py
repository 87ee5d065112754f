"""The comparison of an experiment's runs: one self-contained HTML page, with tables (CSV, Parquet) and figures next to it."""

import io
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from flows.experiments.comparison import ComparedRun, gather, is_fine, problems
from flows.experiments.comparison_text import (
    arms_table,
    changes_table,
    definitions,
    differences_table,
    gains_table,
    lead,
    primary_line,
    primary_tiles,
    runs_table,
)
from flows.experiments.leak_curve import Curve, leak_curves, leak_table
from flows.experiments.spec import BUDGETS, Experiment, Planned
from flows.report.report import write_whole
from flows.report.report_page import Html, details, escape, joined, note, page
from flows.storage import Store
from stages.analysis.comparison import changes, differences, gains
from stages.figures import comparison as figures
from stages.figures.difficulty import difficulty_of_arms
from stages.figures.measures import CURVES
from stages.figures.plates import Plate, svg


@dataclass(frozen=True)
class Registered:
    """When the current content of the experiment's file was committed; empty if it was not."""

    commit: str
    time: float


@dataclass(frozen=True)
class _Made:
    """The data of a page. Tables and figures name arms as `arms_by_model` does."""

    described: Experiment
    file: Path
    found: Sequence[ComparedRun]
    registered: Registered
    late: Sequence[str]
    arms: Sequence[str]
    compared: pa.Table
    gained: pa.Table
    moved: pa.Table
    plates: Mapping[str, Sequence[Plate]]  # by section
    leaks: Sequence[Curve]  # none in an experiment without a leak


def write_comparison(described: Experiment, file: Path, runs: Sequence[Planned], store: Store, out: Path) -> dict[str, Any]:
    """Write the page to `out`, the tables and the figures to the folder of its name.

    Return their paths, and the result of the primary comparison in words.
    """
    found = gather(store, runs)
    rule, registered = described.primary, registration(file)
    late = _began_before(found, registered)
    points = [point for one in found if one.usable for point in one.points]
    fine = [point for point in points if is_fine(point["group"]) and point["measure"] == rule.measure]
    wide = [point for point in points if not is_fine(point["group"])]
    contrasts = described.compared()
    primary = _primary(described, found, {one.planned.arm for one in found if one.planned.run_id in late})
    compared = pa.concat_tables(
        differences(some, contrasts, budgets, primary, rule.alpha, rule.power)
        for some, budgets in ((wide, BUDGETS), (fine, (rule.budget,)))
    )
    named = arms_by_model(found)
    scored = [{**point, "arm": named[one.planned.run_id]} for one in found if one.usable for point in one.points]
    gained = gains([point for point in scored if point["what"] == "score"], rule.alpha)
    curves = [{**row, "arm": named[one.planned.run_id], "usable": one.usable} for one in found for row in one.curves]
    moved = changes([row for row in curves if row["usable"]], rule.alpha)
    arms = list(dict.fromkeys(named[one.planned.run_id] for one in found))
    leaks = leak_curves(described, found)
    graded = [point for point in scored if is_fine(point["group"]) and point["measure"] == rule.measure]
    plates = _drawn(described, found, named, arms, compared, curves) | _leak_plates(described, leaks)
    plates |= {"depths": [difficulty_of_arms(graded, arms)]}
    text = _page(_Made(described, file, found, registered, late, arms, compared, gained, moved, plates, leaks))
    written = write_whole(out, text.encode())
    folder = written.with_suffix("")
    tables = _tables(found, compared, gained, moved, folder)
    said = primary_line(described, [row for row in compared.to_pylist() if _is_endpoint(row, described)])
    return {"page": str(written), "tables": tables, "figures": _figures(plates, folder), "primary": said}


def registration(file: Path) -> Registered:
    """Return the commit that contains the file as it is; empty outside a repository, or for a file with changes."""
    try:
        where = ["git", "-C", str(file.absolute().parent)]
        changed = subprocess.run([*where, "status", "--porcelain", "--", file.name], capture_output=True, text=True, timeout=20)
        logged = subprocess.run(
            [*where, "log", "-1", "--format=%H %ct", "--", file.name], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return Registered("", 0.0)
    commit, _, time = logged.stdout.strip().partition(" ")
    clean = changed.returncode == logged.returncode == 0 and not changed.stdout.strip() and commit
    return Registered(commit, float(time)) if clean else Registered("", 0.0)


def _began_before(found: Sequence[ComparedRun], registered: Registered) -> list[str]:
    """Return the runs that began before the file was committed and may therefore have shaped it."""
    if not registered.commit:
        return [one.planned.run_id for one in found if one.description]
    started = {one.planned.run_id: float(one.description["clock"].get("started", 0)) for one in found if one.description}
    return [run_id for run_id, time in started.items() if time < registered.time]


def _primary(described: Experiment, found: Sequence[ComparedRun], late: Collection[str]) -> dict[str, Any]:
    """Return the keys of the confirmatory row.

    None can match if a run of its arms began before the file was committed, or if they began on several base models.
    """
    rule = described.primary
    first, second = rule.contrast
    models = {one.model for one in found if one.planned.arm in rule.contrast and one.model}
    if set(rule.contrast) & set(late) or len(models) > 1:
        return {"first": ""}
    scope = {"first": first, "second": second, "what": "score", "measure": rule.measure, "group": rule.group}
    return scope | {"over": rule.over, "budget": rule.budget}


def _drawn(
    described: Experiment,
    found: Sequence[ComparedRun],
    named: Mapping[str, str],
    arms: Sequence[str],
    compared: pa.Table,
    curves: Sequence[Mapping[str, Any]],
) -> dict[str, list[Plate]]:
    rule = described.primary
    points = [
        {**point, "arm": named[one.planned.run_id]} for one in found for point in one.points if _is_endpoint(point, described)
    ]
    what = f"{rule.over} {rule.measure}, {rule.group} problems"
    main = [row for row in compared.to_pylist() if _is_endpoint(row, described) and row["budget"] == rule.budget]
    return {
        "differences": [figures.forest(_table(main, compared), rule.alpha)],
        "budgets": [figures.scores(points, arms, one, what, rule.alpha) for one in BUDGETS],
        "training": [figures.training(curves, arms, name, rule.alpha) for name in CURVES],
    }


def _leak_plates(described: Experiment, curves: Sequence[Curve]) -> dict[str, list[Plate]]:
    """Return the figure of the gate experiment, for a page that has one."""
    rule = described.primary
    both = ("skill", "propose.valid_share")
    drawn = {one.name: {at: (own[both[0]], own[both[1]]) for at, own in one.values.items()} for one in curves}
    return {"leak": [figures.leak(drawn, f"{rule.over} {rule.measure}, {rule.group}", rule.alpha)]} if curves else {}


def _page(made: _Made) -> str:
    described, found = made.described, made.found
    rows = [row for row in made.compared.to_pylist() if _is_endpoint(row, described)]
    sections = [
        ("primary", "The primary comparison", primary_tiles(described, rows, made.late)),
        ("differences", "All contrasts at the primary endpoint", _plates(made.plates["differences"])),
        *_leak_section(made),
        ("budgets", "Scores against their cost", _plates(made.plates["budgets"])),
        ("matched", "Contrasts at equal amounts of each budget", differences_table(rows)),
        ("depths", "By kind and band or depth", _fine(made)),
        ("training", "Training", _plates(made.plates["training"])),
        ("changes", "From the first third of a run to the last", _changes(made.moved, made.arms)),
        ("exploratory", "Everything else", _everything(made.compared, rows)),
        ("runs", "Runs", runs_table(found)),
        ("arms", "Arms", arms_table(described, found)),
        ("definitions", "What is compared", definitions(described)),
    ]
    missing = problems(found)
    said = lead(described, found, made.registered.commit, made.file.name)
    head = joined([said, *([note("Incomplete data", missing)] if missing else [])])
    return page(f"Experiment {described.name}", head, sections)


def _leak_section(made: _Made) -> list[tuple[str, str, Html]]:
    if not made.leaks:
        return []
    content = joined([_plates(made.plates["leak"]), leak_table(made.leaks, made.described.primary.alpha)])
    return [("leak", "Skill and validity against the leak", content)]


def arms_by_model(found: Sequence[ComparedRun]) -> dict[str, str]:
    """Return the arm of each run as named in figures. An arm on several base models is split, so that these are not averaged."""
    models: dict[str, set[str]] = {}
    for one in found:
        models.setdefault(one.planned.arm, set()).update({one.model} - {""})
    return {
        one.planned.run_id: one.planned.arm + (f" on {one.model[:8] or '?'}" if len(models[one.planned.arm]) > 1 else "")
        for one in found
    }


def _is_endpoint(row: Mapping[str, Any], described: Experiment) -> bool:
    rule = described.primary
    return (row["what"], row["measure"], row["group"], row["over"]) == ("score", rule.measure, rule.group, rule.over)


def _everything(compared: pa.Table, shown: Sequence[Mapping[str, Any]]) -> Html:
    rest = [row for row in compared.to_pylist() if row not in shown and row["budget"] == "generations"]
    rest = [row for row in rest if not is_fine(row["group"])]
    scores = [row for row in rest if row["what"] == "score"]
    metrics = [row for row in rest if row["what"] == "metric"]
    text = escape(
        f"{compared.num_rows} differences were computed; all but the confirmatory one are exploratory, and their p values "
        "are not corrected for their number. The tables next to this page contain all of them; this page shows those at equal "
        "generations."
    )
    folds = [details(f"{len(scores)} differences of scores", differences_table(scores))]
    folds.append(details(f"{len(metrics)} differences of training metrics, last third of the runs", differences_table(metrics)))
    return joined([Html(f"<p>{text}</p>"), *folds])


def _fine(made: _Made) -> Html:
    """What each arm gained at each kind and band or depth, and the contrasts there at the primary budget."""
    rule = made.described.primary
    gained = [row for row in made.gained.to_pylist() if is_fine(row["group"]) and row["measure"] == rule.measure]
    compared = [row for row in made.compared.to_pylist() if is_fine(row["group"]) and row["budget"] == rule.budget]
    said = f"{rule.measure}, mean over the members, from the base model to the last scored state. Exploratory."
    folds = [details(f"{len(compared)} contrasts by kind and band or depth", differences_table(compared))]
    return joined([Html(f"<p>{escape(said)}</p>"), _plates(made.plates["depths"]), gains_table(gained), *folds])


def _changes(moved: pa.Table, arms: Sequence[str]) -> Html:
    rows = sorted(moved.to_pylist(), key=lambda row: (row["measure"], arms.index(row["arm"])))
    drawn = [row for row in rows if row["measure"] in CURVES]
    rest = [row for row in rows if row["measure"] not in CURVES]
    return joined([changes_table(drawn), details(f"{len(rest)} changes of other metrics", changes_table(rest))])


def _plates(plates: Sequence[Plate]) -> Html:
    return Html(f'<div class="plates">{joined(_figure(plate) for plate in plates)}</div>')


def _figure(plate: Plate) -> Html:
    question, caption = escape(plate.question), escape(plate.caption)
    if plate.figure is None:
        return Html(f'<figure class="card" id="{plate.name}"><h3>{question}</h3><p class="none">{caption}</p></figure>')
    picture = svg(plate.figure, plate.name, themed=True).replace("<svg ", f'<svg role="img" aria-label="{question}" ', 1)
    return Html(f'<figure class="card" id="{plate.name}">{picture}<figcaption>{caption}</figcaption></figure>')


def _figures(plates: Mapping[str, Sequence[Plate]], folder: Path) -> list[str]:
    """Write every figure as SVG and return the paths."""
    return [
        str(write_whole(folder / f"{plate.name}.svg", svg(plate.figure, plate.name).encode()))
        for some in plates.values()
        for plate in some
        if plate.figure is not None
    ]


def _table(rows: Sequence[Mapping[str, Any]], like: pa.Table) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=like.schema)


def _tables(found: Sequence[ComparedRun], compared: pa.Table, gained: pa.Table, moved: pa.Table, folder: Path) -> list[str]:
    """Write runs, scores, curves, differences, gains and changes as Parquet and CSV, and return the paths."""
    runs = [
        {"run": one.planned.run_id, "arm": one.planned.arm, "seed": one.planned.seed, "state": one.state}
        | {"done": one.generations, "planned": one.planned.config.generations, "model": one.model, "head": one.head}
        | one.totals
        for one in found
    ]
    known = dict.fromkeys(name for row in runs for name in row)  # a run that has not started has no totals
    kept = {
        "runs": pa.Table.from_pylist([{name: row.get(name) for name in known} for row in runs]),
        "scores": pa.Table.from_pylist([point for one in found for point in one.points if point["what"] == "score"]),
        "curves": pa.Table.from_pylist([row for one in found for row in one.curves]),
        "differences": compared,
        "gains": gained,
        "changes": moved,
    }
    written = []
    for name, table in kept.items():
        sink = io.BytesIO()
        pq.write_table(table, sink)
        written.append(write_whole(folder / f"{name}.parquet", sink.getvalue()))
        text = io.BytesIO()
        flat = [
            pa.array([" ".join(map(str, value)) for value in column.to_pylist()]) if pa.types.is_list(column.type) else column
            for column in table.columns
        ]
        csv.write_csv(pa.table(dict(zip(table.column_names, flat, strict=True))), text)
        written.append(write_whole(folder / f"{name}.csv", text.getvalue()))
    return [str(path) for path in written]
