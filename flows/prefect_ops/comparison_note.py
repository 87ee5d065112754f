"""A short comparison of runs as a Markdown note: where each stands, its newest numbers, and the settings in which they differ."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from flows.config import differences, with_defaults
from flows.monitoring.run_tables import RunTables
from flows.run.addresses import Addresses
from flows.run.manifest import Json
from flows.run.planned import planned_generations
from flows.run.run import Run
from stages.analysis.summary import lookup

NUMBERS = {"proposals valid": "propose.valid_share", "attempts correct": "solve.rate"}
LONGEST_VALUE = 80


def comparison_note(runs: Sequence[Run], at: Addresses | None = None) -> str:
    """Return the note; `at` makes the runs' names links into the artifact browser."""
    names = [f"[{run.run_id}]({at.run(run.run_id)})" if at else run.run_id for run in runs]
    rows = [_standing(run) for run in runs]
    lines = [_line("", names), _line("---", ["---"] * len(runs))]
    lines += [_line(name, [row.get(name, "–") for row in rows]) for name in dict.fromkeys(key for row in rows for key in row)]
    query = urlencode([("run", run.run_id) for run in runs])
    whole = [f"[Curves, scores and costs in the artifact browser]({at.runs()}compare?{query})"] if at else []
    heading = f"# {', '.join(run.run_id for run in runs)}"
    return "\n\n".join([heading, *whole, "\n".join(lines), "## Settings that differ", _settings(runs, names)])


def _standing(run: Run) -> dict[str, str]:
    """Return where a run stands, by what is said of it."""
    watch = RunTables(run).look()
    planned = planned_generations(run.history.description() or {}, watch.newest_stages())
    rated = [number for number in watch.generations if watch.of(number, "ratings").num_rows]
    whole = [number for number in watch.generations if any(one.stage == "evolve" for one in watch.manifests(number))]
    found = {"generations": f"{len(whole)} of {planned}", "head": run.history.head()[:12]}
    if not rated:
        return found
    values, ratings = lookup(watch.of(rated[-1], "metrics")), watch.of(rated[-1], "ratings").to_pylist()
    for said, name in NUMBERS.items():
        share = values.get((name, None, None, None))
        found[f"{said}, newest"] = "–" if share is None or share != share else f"{100 * share:.1f} %"
    members = {row["member_id"]: row for row in ratings}  # a row per match: the last has the rating that a member ends with
    for role in sorted({row["role"] for row in ratings} - {"both"}):
        best = max((row for row in members.values() if row["role"] == role), key=lambda row: row["fitness"])
        found[f"best {role}"] = f"{best['next_adapter_id']}: {best['mu']:.1f} ± {best['sigma']:.1f}"
    found["seconds of all stages"] = f"{sum(sum(spent.values()) for spent in watch.clock().values()):,.0f}"
    return found


def _settings(runs: Sequence[Run], names: Sequence[str]) -> str:
    configs = [_config(run) for run in runs]
    keys = sorted({key for config in configs[1:] for key in differences(configs[0], config)})
    if not keys:
        return "None."
    lines = [_line("setting", names), _line("---", ["---"] * len(runs))]
    return "\n".join(lines + [_line(f"`{key}`", [_value(config, key) for config in configs]) for key in keys])


def _config(run: Run) -> Json:
    description = run.history.description()
    return with_defaults(description["config"]) if description is not None else {}


def _value(config: Json, key: str) -> str:
    """Return a setting as code, without what would end a cell of the table."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part, "–") if isinstance(value, dict) else "–"
    text = str(value).replace("|", "/").replace("`", "'").replace("\n", " ")
    return f"`{text[:LONGEST_VALUE] or '–'}`"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"
