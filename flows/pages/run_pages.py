"""The content of the pages of a run, a generation, a manifest and a table."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from flows.compare.scores import MeanScore, scored_states
from flows.compare.settings_diff import flat
from flows.config import identity, with_defaults
from flows.monitoring.alarms import Alarm, summary
from flows.monitoring.cost import RunCost, cost_so_far, generation_cost
from flows.monitoring.cost_text import HEADER, point_text, remarks
from flows.monitoring.cost_text import cells as cost_cells
from flows.monitoring.players import players
from flows.monitoring.run_state import RunState, Standing, silent_text
from flows.monitoring.run_tables import RunTables
from flows.monitoring.spending import Spent, total
from flows.monitoring.start_score import unscored_start
from flows.monitoring.status import done, following, holder, upcoming
from flows.monitoring.time_left import elapsed, overlap
from flows.pages.keys import cells
from flows.pages.library import Library
from flows.pages.outlined import run_figures
from flows.pages.table_view import TableQuery, row, view
from flows.run.leaking import warning
from flows.run.manifest import Json, Manifest, Ref, digest, folder_of
from flows.run.planned import planned_generations
from flows.run.resume import is_manifest
from flows.run.run import Run
from flows.stages import REQUIRED
from flows.storage import Damaged, NotStored, StoreRefused
from stages.analysis.summary import KINDS, Values

OWN = ("diff", "choices")  # versions that describe the user's own files, by their paths and contents
GENERATIONS = 100  # the newest generations, which a run's page shows first


def run_page(library: Library, run_id: str, every: bool = False) -> Json:
    """Return the run's state, generations, alarms and configuration."""
    run = library.run(run_id)
    watch = library.watch(run)
    description = run.history.description() or {}
    alarms = watch.alarms()
    shown = watch.generations if every else watch.generations[-GENERATIONS:]
    raised, ranked = Counter(alarm.generation for alarm in alarms), _ranked(watch)
    versions = description.get("versions", {})
    return {
        "run": run_id,
        "standing": _standing(library, run, planned_generations(description, watch.newest_stages())),
        "versions": {name: value for name, value in versions.items() if name not in OWN},
        "own": {name: versions[name] for name in OWN if versions.get(name)},
        "settings": list(flat(identity(with_defaults(description.get("config", {})))).items()),
        "generations": [_generation_row(watch, one, raised[one], ranked.get(one, {})) for one in reversed(shown)],
        "hidden": len(watch.generations) - len(shown),
        "alarms": summary(alarms),
        "warning": warning(description),
        "faults": watch.faults,
        "scores": _scores(library, watch),
        "benchmarks": [_benchmark(manifest) for manifest in _benchmarks(run, watch)],
        "start_hint": unscored_start(watch),
        "kinds": KINDS,
        "started": run.manifest("start") is not None,
        "cost": _cost(cost_so_far(watch)),
        "figures": run_figures(watch) if shown else [],
    }


def generation_page(library: Library, run_id: str, generation: int | None) -> Json:
    """Return the stages, manifests, tables and numbers of one generation. Raises NotStored if it has not begun."""
    run = library.run(run_id)
    found = run.history.of_generation(generation, parts=True)
    if not found:
        begun, what = run.history.generations(), "its start" if generation is None else f"generation {generation}"
        there = f": it has begun generations {begun[0]} to {begun[-1]}" if begun else ""
        raise NotStored(f"Run {run_id} has finished no stage of {what}{there}.")
    watch = library.watch(run)
    stages = [manifest for manifest in found if ".parts/" not in manifest.stage]
    spent, alarms = elapsed(found), watch.alarms()
    return {
        "run": run_id,
        "generation": generation,
        "stages": [_stage(manifest, spent.get(manifest.stage, 0.0)) for manifest in stages],
        "parts": [_stage(manifest, float(manifest.clock.get("seconds", 0.0))) for manifest in found if manifest not in stages],
        "missing": [stage for stage in REQUIRED if generation is not None and stage not in spent],
        "tables": [ref for manifest in stages for ref in manifest.outputs if ref.uri.endswith(".parquet")],
        "seconds": sum(spent.values()) - overlap(found),
        "planned": planned_generations(run.history.description() or {}, watch.newest_stages()),
        "numbers": None if generation is None else _own_row(watch, generation, alarms),
        "statuses": [] if generation is None else _statuses(watch.numbers(generation)),
        "ratings": [] if generation is None else watch.of(generation, "ratings").to_pylist(),
        "offspring": [] if generation is None else watch.of(generation, "offspring").to_pylist(),
        "alarms": [alarm for alarm in alarms if alarm.generation == generation],
        "cost": _cost_table(generation_cost(watch, generation).stages),
        "neighbours": _neighbours(watch.generations, generation),
        "kinds": KINDS,
    }


def manifest_page(library: Library, run_id: str, uri: str) -> Json:
    """Return one manifest as stored. Raises NotStored."""
    run = library.run(run_id)
    found = run.history.manifest(uri) if is_manifest(uri) else None
    if found is None:
        raise NotStored(f"Run {run_id} has no manifest {uri}.")
    return {"run": run_id, "uri": uri, "manifest": found, "digest": digest(found), "generation": found.generation}


def table_page(library: Library, run_id: str, uri: str, asked: TableQuery) -> Json:
    """Return a page of a table. Raises NotStored if no manifest lists it."""
    run = library.run(run_id)
    ref = table_ref(run, uri)
    found = view(library.parquet(run, ref), asked)
    shown = [(number, cells(run_id, values)) for number, values in found.rows]
    return {"run": run_id, "uri": uri, "ref": ref, "view": found, "rows": shown, "asked": asked}


def complete_page(library: Library, run_id: str, uri: str, page: int) -> Json:
    """Return a page of complete rows, with token lists as their lengths. Raises NotStored, and BadRequest for a wrong page."""
    run = library.run(run_id)
    ref = table_ref(run, uri)
    file = library.parquet(run, ref)
    found = view(file, TableQuery(page=page))
    types = {field.name: str(field.type) for field in file.schema_arrow}
    shown = [(number, [(cell, types[cell["column"]]) for cell in cells(run_id, values)]) for number, values in found.rows]
    return {"run": run_id, "uri": uri, "ref": ref, "view": found, "rows": shown, "page": page}


def row_page(library: Library, run_id: str, uri: str, number: int) -> Json:
    """Return one complete row."""
    run = library.run(run_id)
    ref = table_ref(run, uri)
    file = library.parquet(run, ref)
    values = row(file, number)
    types = {field.name: str(field.type) for field in file.schema_arrow}
    shown = [(cell, types[cell["column"]]) for cell in cells(run_id, values)]
    return {"run": run_id, "uri": uri, "ref": ref, "number": number, "total": file.metadata.num_rows, "cells": shown}


def table_ref(run: Run, uri: str) -> Ref:
    """Return the reference of a table. Raises NotStored if the name is wrong or the table does not exist yet."""
    if not uri.endswith(".parquet"):
        raise NotStored(f"Run {run.run_id} has no table {uri}.")
    return artifact_ref(run, uri)


def artifact_ref(run: Run, uri: str) -> Ref:
    """Return the reference of an artifact. Raises NotStored with a sentence for the page."""
    try:
        return run.history.find(uri)
    except StoreRefused:  # a ValueError, too: the store's own fault, not a wrong name
        raise
    except (NotStored, ValueError):
        raise NotStored(f"No manifest of run {run.run_id} lists {uri}: it has not been made.") from None


def _standing(library: Library, run: Run, planned: int) -> Json:
    config = (run.history.description() or {}).get("config", {})
    stage, _ = upcoming(run, planned)
    known = library.states.standing(run.run_id, complete=not stage)
    return {
        "run": run.run_id,
        "trouble": _trouble(known, run.run_id),
        "players": players(config),
        "model": config.get("model", {}).get("name", "?"),
        "planned": planned,
        "done": done(run, planned),
        "next": following(run, planned),
        "upcoming": stage,
        "holder": holder(known),
        "head": run.history.head(),
    }


def _trouble(known: Standing, run_id: str) -> str:
    """Return what is wrong with the process that worked on a run, and what to do; empty if nothing is."""
    if known.state is RunState.CRASHED:
        return f"Crashed: its lease was {holder(known)}. Retry in Prefect or populora run --resume {run_id} resumes it."
    if known.state is RunState.STOPPED:
        return f"Stopped: no process works on this run. populora run --resume {run_id} resumes it."
    return f"There is {silent_text(known.who)}." if known.state is RunState.SILENT else ""


def _own_row(watch: RunTables, generation: int, alarms: list[Alarm]) -> Json:
    """Return the known numbers of one generation for its own page."""
    raised = sum(alarm.generation == generation for alarm in alarms)
    return _generation_row(watch, generation, raised, _ranked(watch).get(generation, {}))


def _generation_row(watch: RunTables, generation: int, alarms: int, ranked: Mapping[str, Json]) -> Json:
    """Return the known numbers of one generation: `alarms` were raised, `ranked` has its members' ratings."""
    values = watch.numbers(generation)
    stages = [manifest.stage for manifest in watch.manifests(generation)]
    best = {}
    for role in ("teacher", "student"):
        members = [row for row in ranked.values() if row["role"] == role]
        best[role] = max(members, key=lambda row: float(row["fitness"])) if members else None
    return {
        "generation": generation,
        "stages": stages,
        "whole": "evolve" in stages,
        "valid": values.get(("propose.valid_share", None, None, None)),
        "solved": values.get(("solve.rate", None, None, None)),
        "by_kind": {kind: values.get(("solve.rate", None, None, kind)) for kind in KINDS},
        "rewards": {role: values.get(("reward.mean", None, role, None)) for role in ("teacher", "student")},
        "best": best,
        "births": watch.of(generation, "offspring")["member_id"].to_pylist(),
        "seconds": watch.times(generation).get("total", 0.0),
        "alarms": alarms,
    }


def _ranked(watch: RunTables) -> dict[int, dict[str, Json]]:
    """Return the last rating of each member by generation."""
    found: dict[int, dict[str, Json]] = {}
    for rated in watch.standings().select(["generation", "member_id", "role", "mu", "fitness"]).to_pylist():
        found.setdefault(rated["generation"], {})[rated["member_id"]] = rated
    return found


def _statuses(values: Values) -> list[tuple[str, int]]:
    """Return the verdicts of proposals, the most frequent first."""
    prefix = "propose.status."
    counts = [(name.removeprefix(prefix), int(value)) for (name, *_), value in values.items() if name.startswith(prefix)]
    return sorted(counts, key=lambda one: -one[1])


def _stage(manifest: Manifest, spent: float) -> Json:
    stage, _, part = manifest.stage.partition(".parts/")
    folder = folder_of(manifest.generation)
    uri = f"{folder}/{stage}.parts/{part}.json" if part else f"{folder}/{manifest.stage}.json"
    return {
        "uri": uri,
        "stage": manifest.stage,
        "digest": digest(manifest),
        "seconds": spent,
        "memory": manifest.clock.get("peak_memory_mb"),
        "host": manifest.clock.get("host"),
        "counts": manifest.counts,
        "tables": [ref for ref in manifest.outputs if ref.uri.endswith(".parquet")],
        "others": sum(not ref.uri.endswith(".parquet") for ref in manifest.outputs),
        "from": next((ref.origin for ref in manifest.outputs if ref.origin), ""),
    }


def _cost(cost: RunCost) -> Json:
    """Return the cost of a run as texts."""
    return _cost_table(cost.stages) | {"points": [point_text(point) for point in cost.points], "remarks": remarks(cost)}


def _cost_table(stages: Mapping[str, Spent]) -> Json:
    rows = [*stages.items(), ("total", total(stages.values()))] if stages else []
    return {"header": HEADER, "rows": [(name, cost_cells(used)) for name, used in rows]}


def _benchmarks(run: Run, watch: RunTables) -> list[Manifest]:
    inside = [one for number in watch.generations for one in watch.manifests(number) if one.stage == "benchmark"]
    return inside + run.history.benchmarks() + run.history.chosen_benchmarks()


def _scores(library: Library, watch: RunTables) -> list[MeanScore]:
    """Return the mean scores of the population, by suite, the newest first. What cannot be read is left out."""
    found = []
    for state in scored_states(watch):
        with suppress(NotStored, Damaged):
            found.append(library.scores.mean(watch.run, state))
    return sorted((mean for mean in found if mean is not None), key=lambda mean: (mean.suite, -mean.trained))


def _benchmark(manifest: Manifest) -> Json:
    tables = [ref for ref in manifest.outputs if ref.uri.endswith(".parquet")]
    return {"generation": manifest.generation, "tables": tables, "folder": tables[0].uri.rpartition("/")[0] if tables else ""}


def _neighbours(begun: list[int], generation: int | None) -> tuple[int | None, int | None]:
    """Return the generations before and after, if they exist."""
    if generation is None:
        return None, begun[0] if begun else None
    earlier, later = [one for one in begun if one < generation], [one for one in begun if one > generation]
    return (earlier[-1] if earlier else None), (later[0] if later else None)
