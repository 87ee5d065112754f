"""`populora inspect`: a run, a generation, an adapter or a task, as text for people or as JSON."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.run.leaking import paid_with, warning
from flows.run.lineage import Json, Lineage, adapters_made, generation_of_row, replays_tasks
from flows.run.manifest import Manifest
from flows.run.planned import planned_generations
from flows.run.run import Run
from flows.storage import NotStored, StoreRefused
from stages.core.highlight import visible
from stages.core.method.leak import admitted, paid

WIDTH = 110
SHOWN = 12


def inspect(
    run: Run, generation: int | None = None, adapter: str | None = None, task: str | None = None, as_json: bool = False
) -> str:
    """Return what the store holds about a task (or rollout), an adapter, a generation, or the whole run.

    Raises NotStored if there is no such run, StoreRefused if the run has nothing with that id.
    """
    if run.history.description() is None:
        raise NotStored(f"there is no run {run.run_id} in {run.store.url}")
    lineage = Lineage(run)
    values: Json
    if task is not None:
        values = lineage.task(task)
    elif adapter is not None:
        values = lineage.adapter(adapter)
    elif generation is not None:
        values = generation_summary(run, lineage, generation)
    else:
        values = run_summary(run)
    return json.dumps(values, indent=1, ensure_ascii=True) if as_json else "\n".join(_text(values))


def run_summary(run: Run) -> Json:
    """Return what the run is and how far it has progressed."""
    description = run.history.description() or {}
    manifests = list(run.history.walk())
    places = (None, *run.history.generations())
    timed = [one for place in places for one in run.history.of_generation(place, parts=True)]
    config = description.get("config", {})
    leak = {"warning": text} if (text := warning(description)) else {}
    adapters = list(adapters_made(run).values())[-1:]
    return {
        "run": run.run_id,
        **leak,
        "store": run.store.url,
        "mode": config.get("mode"),
        "model": config.get("model", {}).get("name"),
        "generations": f"{len(run.history.generations())} begun of {planned_generations(description, manifests)}",
        "last_stage": f"{manifests[-1].stage} of generation {manifests[-1].generation}" if manifests else "none",
        "stages_committed": len(manifests),
        "artifacts": sum(len(manifest.outputs) for manifest in manifests),
        "seconds": round(sum(float(manifest.clock.get("seconds", 0.0)) for manifest in timed), 1),
        "benchmarks": _benchmarks(run, manifests),
        "newest_adapters": ", ".join(adapters[0]) if adapters else "none",
        "head": run.history.head(),
    }


def _benchmarks(run: Run, manifests: list[Manifest]) -> list[str]:
    """Return the tables of every benchmark: those that the run made itself, then those that were asked for."""
    own = [manifest for manifest in manifests if manifest.stage == "benchmark"]
    return [
        ref.uri for manifest in [*own, *run.history.benchmarks(), *run.history.chosen_benchmarks()] for ref in manifest.outputs
    ]


def generation_summary(run: Run, lineage: Lineage, generation: int) -> Json:
    """Return the generation's stages, matches, tasks by status, ratings and offspring. A stage's seconds include its parts'."""
    manifests, spent = run.history.of_generation(generation), dict[str, float]()
    for step in run.history.of_generation(generation, parts=True):
        if "seconds" in step.clock:
            spent[step.whole_stage] = round(spent.get(step.whole_stage, 0.0) + float(step.clock["seconds"]), 3)
    if not manifests:
        begun = run.history.generations()
        there = f"its generations are 0 to {begun[-1]}" if begun else "it has none yet"
        raise StoreRefused(f"run {run.run_id} has no generation {generation}; {there}")
    return {
        "run": run.run_id,
        "generation": generation,
        "stages": [
            {
                "stage": manifest.stage,
                "seconds": spent.get(manifest.stage),
                "outputs": len(manifest.outputs),
                "rows": {ref.uri.rpartition("/")[2]: ref.rows for ref in manifest.outputs if ref.rows is not None},
            }
            for manifest in manifests
        ],
        "matches": [
            {key: row[key] for key in ("match_id", "teacher_adapter_id", "student_adapter_id", "expected")}
            for row in lineage.rows(generation, "matches")
        ],
        "tasks": _counts(lineage.rows(generation, "tasks"), "status"),
        "grades": _counts(lineage.rows(generation, "grades"), "status"),
        **_replayed(run, lineage, generation),
        **_leaked(run, generation),
        "ratings": [
            {key: row[key] for key in ("member_id", "adapter_id", "result", "mu", "sigma", "next_adapter_id")}
            for row in lineage.rows(generation, "ratings")
        ],
        "offspring": lineage.rows(generation, "offspring"),
        "task_ids": [row["task_id"] for row in lineage.rows(generation, "tasks") if row["status"] == "valid"],
    }


def _replayed(run: Run, lineage: Lineage, generation: int) -> Json:
    """Return the stored tasks that filled short batches; empty in a run without top-up."""
    own = {row["task_id"] for row in lineage.rows(generation, "tasks")}
    replays = {(row["match_id"], row["task_id"]) for row in lineage.rows(generation, "grades") if row["task_id"] not in own}
    return {"replayed": [{"match_id": match, "task_id": task} for match, task in sorted(replays)]} if replays_tasks(run) else {}


def _leaked(run: Run, generation: int) -> Json:
    """Return how many wrong verdicts of the generation passed; empty in an ordinary run."""
    share, seed = paid_with(run, generation)
    if not share or run.manifest("grade", generation) is None:
        return {}
    tasks, grades = run.read_table(generation, "tasks"), run.read_table(generation, "grades")
    before, after = (sum(some["correct"].to_pylist()) for some in (grades, paid(grades, share, seed, generation)))
    return {"leak": {"share": share, "invalid tasks posed": sum(admitted(tasks)), "answers paid though rejected": after - before}}


def rows(run: Run, name: str, generations: list[int] | None = None, **equal: Any) -> pa.Table:
    """Return a slice of one table over generations (default: all), verified, as an Arrow table that can be written as Parquet.

    `equal` keeps the rows in which a column has that value: `rows(run, "rollouts", task_id="g0003-m00-p001")`.
    """
    wanted = generations if generations is not None else _generations_for(run, name, equal)
    slices = []
    for generation in wanted:
        table = run.read_table(generation, name)
        for column, value in equal.items():
            table = table.filter(pc.equal(table[column], value))
        slices.append(table.append_column("generation", pa.array([generation] * table.num_rows, pa.int64())))
    if not slices:
        raise StoreRefused(f"run {run.run_id} has no generation with a table {name}")
    return pa.concat_tables(slices).combine_chunks()


def _generations_for(run: Run, name: str, equal: Json) -> list[int]:
    """Return all generations, or the one that an id in the condition belongs to; a task may also have rows in later ones."""
    named = {
        place for key, value in equal.items() if key.endswith("_id") and (place := generation_of_row(str(value))) is not None
    }
    begun = run.history.generations()
    if named and name in ("rollouts", "grades", "samples") and {"task_id", "group_id"} & set(equal) and replays_tasks(run):
        return [number for number in begun if number >= min(named)]
    return [number for number in begun if not named or number in named]


def _counts(found: list[Json], column: str) -> dict[str, int]:
    values = [row[column] for row in found]
    return {value: values.count(value) for value in sorted(set(values))}


def _text(values: Json, indent: str = "") -> Iterator[str]:
    """Yield one `name  value` line per entry, nested ones indented, long lists truncated with their length stated."""
    width = max((len(key) for key in values), default=0)
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{visible(key)}"
            yield from _text(value, indent + "  ")
        elif isinstance(value, list) and value:
            yield f"{indent}{visible(key)} ({len(value)})"
            yield from _items(value, indent + "  ")
        elif isinstance(value, str) and "\n" in value:
            yield f"{indent}{visible(key)}"
            yield from (f"{indent}  | {visible(line)}" for line in value.rstrip("\n").split("\n"))
        else:
            yield f"{indent}{visible(key):<{width}}  {_short(value)}".rstrip()


def _items(values: list[Any], indent: str) -> Iterator[str]:
    """Yield list items, one per line while they are flat."""
    for value in values[:SHOWN]:
        if isinstance(value, dict) and any("\n" in str(inner) for inner in value.values()):
            yield from _text(value, indent)
            yield ""
        else:
            yield indent + (_line(value) if isinstance(value, dict) else _short(value))
    if len(values) > SHOWN:
        yield f"{indent}… and {len(values) - SHOWN} more (all with --json)"


def _line(values: Json) -> str:
    show: Callable[[Any], str] = lambda value: "{" + _line(value) + "}" if isinstance(value, dict) else _short(value)  # noqa: E731
    return "  ".join(f"{visible(key)}={show(value)}" for key, value in values.items() if value not in (None, "", [], {}))


def _short(value: Any) -> str:
    """Return one line of at most WIDTH characters that no terminal obeys; floats to four digits, empty values as a dash."""
    if value in (None, "", [], {}):
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else visible(" ".join(str(value).split()))
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
