"""The report of a run: one self-contained HTML file with the paper's figures and this project's."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.config import RunConfig, dump
from flows.monitoring.alarms import alarms, summary
from flows.monitoring.cost import PointCost
from flows.monitoring.cost_text import change_text, changed_text, span_text
from flows.monitoring.players import players
from flows.monitoring.start_score import unscored_start
from flows.report.report_cost import cost_section
from flows.report.report_data import RunData, gather
from flows.report.report_figures import EVERY, LEARNING, MACHINE, POPULATION, TASKS, Draw, picture
from flows.report.report_page import ArtifactLinks, Html, details, escape, joined, note, page, table, tile
from flows.report.report_tasks import samples
from flows.run.history import OWN_WAY
from flows.run.leaking import warning
from flows.run.manifest import folder_of
from flows.run.run import Run
from flows.stages import STAGE_NAMES
from flows.storage import StoreRefused
from stages.core.places import for_others
from stages.core.statistics.estimates import estimate, only
from stages.figures import figures
from stages.figures.plates import Plate, svg


def report(run: Run, out: Path) -> Path:
    """Write the report of a run, finished or not, to `out` and return its absolute path."""
    out = _place(out)  # before the work, so that a refusal comes immediately
    gathered = gather(run)
    links = ArtifactLinks(run.store, run.run_id, out, gathered.origins)
    text = page(f"Run {run.run_id}", _lead(gathered, links), _sections(gathered, links))
    return write_whole(out, text.encode())


def export_figures(run: Run, folder: Path) -> list[Path]:
    """Write each figure of the report to `folder` as SVG and PNG, and return the paths."""
    gathered, written = gather(run), []
    for draw in EVERY.values():
        plate = draw(gathered)
        if plate.figure is not None:
            written.append(write_whole(folder / f"{plate.name}.svg", svg(plate.figure, plate.name).encode()))
            plate.figure.savefig(folder / f"{plate.name}.png", dpi=200, facecolor="white")
            written.append(folder / f"{plate.name}.png")
    return written


def write_whole(out: Path, data: bytes) -> Path:
    """Write the file atomically. Raises StoreRefused if the user may not write there."""
    out = _place(out)
    temporary = out.with_name(f".{secrets.token_hex(8)}.new")  # two may write the same report
    try:
        temporary.write_bytes(data)
        temporary.replace(out)
    except OSError as error:
        raise StoreRefused(f"{out}: {error.strerror}") from error
    finally:
        with suppress(OSError):  # on a file system that takes no writes, this fails, too
            temporary.unlink(missing_ok=True)
    return out


def _place(out: Path) -> Path:
    """Return the absolute path and create its folder. Raises StoreRefused if that is not possible."""
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = out.is_dir()
    except OSError as error:
        raise StoreRefused(f"{out}: {error.strerror}") from error
    if folder:
        raise StoreRefused(f"{out} is a folder; name a file")
    return out


def _sections(run: RunData, links: ArtifactLinks) -> list[tuple[str, str, Html]]:
    """Return the sections. An alarm counts once in each generation that raised it, as in `populora status`."""
    bounds, scores, suites = run.watch.drift_bounds(), run.watch.scores(), run.watch.suites()
    found = alarms(run.tables["metrics"], run.tables["ratings"], run.clock, bounds, scores, suites)
    return [
        ("headline", "State of the run", _headline(run, links)),
        ("alarms", f"Alarms ({len(found)})", _alarms(summary(found))),
        ("learning", "Learning", _plates(run, links, LEARNING)),
        ("population", "Population", joined([_plates(run, links, POPULATION), _births(run, links)])),
        ("tasks", "Tasks", _plates(run, links, TASKS)),
        ("samples", "Sample tasks", samples(run, links)),
        ("machine", "Time", _plates(run, links, MACHINE)),
        ("cost", "Cost", cost_section(run.cost)),
        ("scores", "Benchmark scores", _scores(run, links)),
        ("configuration", "Configuration", _configuration(run, links)),
        ("artifacts", "Artifacts", _artifacts(run, links)),
    ]


def _alarms(found: Sequence[str]) -> Html:
    """Return the alarms, and what they were computed from."""
    where = Html('<p class="small">From <a href="#artifacts"><code>metrics</code>, <code>ratings</code> and manifests</a>.</p>')
    return joined([note("Alarms", found) if found else Html("<p>None.</p>"), where])


def _lead(run: RunData, links: ArtifactLinks) -> Html:
    config, code = run.config, str(run.description.get("versions", {}).get("code", ""))
    model = for_others(str(config.get("model", {}).get("name", "?")))
    who = players(config)
    text = escape(f"{who[0].upper()}{who[1:]} on {model}, seed {config.get('seed')}, code {code[:12] or 'unknown'}. ")
    head = Html(f"Head of the chain: <code>{escape(run.head)}</code>. Described by {links('run.json')}.")
    missing = [note("This report is incomplete", run.missing)] if run.missing else []
    leak = [note("Not an ordinary run", [said])] if (said := warning(run.description)) else []
    return joined([Html(f'<p class="lead">{text}{head}</p>'), *leak, *missing])


def _headline(run: RunData, links: ArtifactLinks) -> Html:
    """Return tiles for the newest generation that has the numbers."""
    tiles = [tile(f"{len(run.finished)} of {run.planned}", "generations done", links("run.json"))]
    graded = _newest(run.tables["grades"])
    if graded is not None:
        own = only(run.tables["tasks"], generation=graded)
        if own.num_rows:  # otherwise they cannot be read
            valid = own.append_column("valid", pa.array([one == "valid" for one in own["status"].to_pylist()], pa.bool_()))
            found = estimate(valid, "valid", ["teacher_id", "group_id"])
            shown = _percent(found.mean, found.stderr)
            tiles.append(tile(shown, f"valid, generation {graded}", _source(links, graded, "tasks")))
        mean, stderr, _ = figures.overall(run.tables["grades"], graded)
        tiles.append(tile(_percent(mean, stderr), f"solved, generation {graded}", _source(links, graded, "grades")))
    rated = _newest(run.tables["ratings"])
    if rated is not None:
        latest = {row["member_id"]: row for row in only(run.tables["ratings"], generation=rated).to_pylist()}
        for role in ("teacher", "student"):
            members = [row for row in latest.values() if row["role"] == role]
            if members:
                best = max(members, key=lambda row: row["fitness"])
                value = f"{best['member_id']}: {best['mu']:.1f} ± {best['sigma']:.1f}"
                tiles.append(tile(value, f"best {role} by fitness", _source(links, rated, "ratings")))
    tiles += _benchmark_tiles(run.tables["scores"], links)
    return Html(f'<div class="tiles">{joined(tiles)}</div><p class="small">± is one standard error; for ratings one sigma.</p>')


def _benchmark_tiles(scores: pa.Table, links: ArtifactLinks) -> list[Html]:
    rows = [row for row in only(scores, group="all", measure="pass@1 greedy").to_pylist() if row["role"] != "teacher"]
    if not rows:
        return []
    best = max(rows, key=lambda row: (row["trained"], row["score"]))
    value = _percent(best["score"], float("nan") if best["stderr"] is None else best["stderr"])
    suite = best["suite"] + (f" ({best['question']})" if best["question"] else "")
    return [tile(value, f"best on {suite}: {best['member_id']}", links(best["uri"], "scores.parquet"))]


def _newest(condensed: pa.Table) -> int | None:
    return max(condensed["generation"].to_pylist(), default=None)


def _percent(mean: float, stderr: float) -> str:
    return f"{100 * mean:.0f} %" if stderr != stderr else f"{100 * mean:.0f} ± {100 * stderr:.0f} %"


def _source(links: ArtifactLinks, generation: int, name: str) -> Html:
    return links(f"{folder_of(generation)}/{name}.parquet", f"{name}.parquet")


def _plates(run: RunData, links: ArtifactLinks, draws: Mapping[str, Draw]) -> Html:
    return Html(f'<div class="plates">{joined(_figure(run, draw(run), links) for draw in draws.values())}</div>')


def _figure(run: RunData, plate: Plate, links: ArtifactLinks) -> Html:
    generations = sorted(key for key in run.manifests if key is not None)
    where = f"generations {generations[0]} to {generations[-1]}" if len(generations) > 1 else "the run"
    names = ", ".join(f"<code>{escape(name)}</code>" for name in plate.tables)
    source = f'From <a href="#artifacts">{names}</a> of {where}.'
    question, caption = escape(plate.question), escape(plate.caption)
    if plate.figure is None:
        return Html(f'<figure class="card" id="{plate.name}"><h3>{question}</h3><p class="none">{caption}</p></figure>')
    return Html(f'<figure class="card" id="{plate.name}">{picture(plate)}<figcaption>{caption} {source}</figcaption></figure>')


def _births(run: RunData, links: ArtifactLinks) -> Html:
    rows = [
        [
            links(f"{folder_of(row['generation'])}/offspring.parquet", str(row["generation"])),
            escape(row["member_id"]),
            escape(for_others(row["operator"])),
            escape(" + ".join(row["parents"])),
            escape(row["replaces"]),
            escape(f"{row['relative_change']:.3f}"),
            escape(f"{row['cosine']:.3f}"),
            escape(row["note"] or "–"),
        ]
        for row in run.tables["offspring"].to_pylist()
    ]
    if not rows:
        return Html("")
    header = ("generation", "child", "operator", "parents", "replaces", "change of delta W", "cosine to parent", "note")
    return details(f"All {len(rows)} offspring", table(header, rows))


def _scores(run: RunData, links: ArtifactLinks) -> Html:
    """Return the scores of every benchmark, without the finest slices. The project's own suites are asked as the run trains."""
    kept = [row for row in run.tables["scores"].to_pylist() if " band " not in row["group"]]
    changes = changes_table(run.cost.points)
    if not kept:
        return Html('<p class="none">No benchmark has been scored yet.</p>')
    rows = [
        [
            links(row["uri"], row["suite"]),
            escape(row["question"] or OWN_WAY),
            escape(row["trained"]),
            escape(row["member_id"]),
            escape(row["measure"]),
            escape(row["group"]),
            escape(f"{100 * row['score']:.1f} %" + (f" ± {100 * row['stderr']:.1f}" if row["stderr"] is not None else "")),
            escape(f"{row['problems']:,}"),
        ]
        for row in sorted(
            kept,
            key=lambda row: (row["suite"], row["question"], -row["trained"], row["measure"] != "pass@1 greedy", row["member_id"]),
        )
    ]
    header = ("suite", "asked", "generations trained", "member", "measure", "problems of", "score ± standard error", "n")
    shown = details(f"{len(rows)} scores", table(header, rows)) if len(rows) > 60 else table(header, rows)
    hint = unscored_start(run.watch)
    unlike = [note("Not compared", [changed_text(one) for one in run.cost.changed])] if run.cost.changed else []
    return joined([changes, *unlike, shown, *([Html(f'<p class="small">{escape(hint)}</p>')] if hint else [])])


def changes_table(points: Sequence[PointCost]) -> Html:
    """Return the change from the first to the last scored state of each suite and way of asking, as `populora cost` has it."""
    rows = [
        [
            escape(point.suite),
            escape(point.question or OWN_WAY),
            escape(span_text(point).removeprefix("from ")),
            escape(f"{change_text(point)} points"),
            escape(f"{point.problems:,}"),
        ]
        for point in points
    ]
    if not rows:
        return Html("")
    said = "Greedy pass@1, all problems, members averaged within each; the error is that of the differences by problem."
    header = ("suite", "asked", "from", "paired change ± standard error", "n")
    return Html(f'{table(header, rows)}<p class="small">{escape(said)}</p>')


def _configuration(run: RunData, links: ArtifactLinks) -> Html:
    """Return all settings, in bold if they differ from the defaults, which are the paper's."""
    usual: dict[str, Any] = dump(RunConfig.model_validate({}))
    single = {key: value for key, value in run.config.items() if not isinstance(value, dict)}
    groups = {"run": single} | {key: value for key, value in run.config.items() if isinstance(value, dict)}
    tables = []
    for group, settings in groups.items():
        known = usual if group == "run" else usual.get(group, {})
        rows = [[escape(key), Html(f"<code>{escape(_plain(value))}</code>")] for key, value in settings.items()]
        changed = ["changed" if known.get(key) != value else "" for key, value in settings.items()]
        tables.append(table((group, ""), rows, changed))
    return Html(f'<p>From {links("run.json")}. Bold: differs from the paper.</p><div class="card columns">{joined(tables)}</div>')


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(for_others(str(one)) for one in value) or "none"
    return for_others(str(value)) if value != "" else "–"


def _artifacts(run: RunData, links: ArtifactLinks) -> Html:
    """Return all tables and manifests by generation."""
    names = list(dict.fromkeys(name for key in run.manifests if key is not None for name in run.refs(key)))
    rows = []
    for generation, manifests in sorted(run.manifests.items(), key=lambda item: -1 if item[0] is None else item[0]):
        folder, refs = folder_of(generation), run.refs(generation)
        cells = [links(refs[name].uri, f"{refs[name].rows} rows") if name in refs else Html("–") for name in names]
        if generation is None:
            cells = [joined([links(ref.uri, name) for name, ref in refs.items()], " ")] + [Html("")] * (len(names) - 1)
        by_stage = {manifest.stage: manifest for manifest in manifests}
        order = [stage for stage in ("start", *STAGE_NAMES) if stage in by_stage]
        done = joined([links(f"{folder}/{stage}.json", stage) for stage in order], " ")
        rows.append([escape(folder), *cells, done])
    return joined(
        [
            Html("<p>Tables with their row counts, and manifests with the digests. Adapters are in <code>adapters/</code>.</p>"),
            table(("folder", *names, "manifests"), rows),
        ]
    )
