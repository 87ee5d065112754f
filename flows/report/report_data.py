"""The data of a report: a run's tables, condensed and joined over its generations, and what is missing."""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import pyarrow as pa

from flows.monitoring.alarms import Clock
from flows.monitoring.cost import RunCost, cost_so_far
from flows.monitoring.run_tables import RunTables
from flows.run.manifest import Json, Manifest, Ref, digest, folder_of
from flows.run.run import Run
from flows.stages import REQUIRED, STAGE_NAMES
from flows.storage import Damaged, NotStored
from stages.core import tables
from stages.core.statistics.condensed import Tables, condense, joined, numbered

_TRAINED = re.compile(r"-g(\d+)$")


@dataclass(frozen=True)
class RunData:
    """A run so far. `missing` has sentences about what is absent or cannot be read."""

    run: Run
    description: Json
    head: str
    finished: list[int]
    manifests: dict[int | None, list[Manifest]]  # of each generation that has begun, and None for start
    tables: Tables  # condensed; also `scores`
    clock: Clock
    missing: list[str]
    cost: RunCost

    @property
    def config(self) -> Json:
        """The configuration in run.json."""
        return dict(self.description["config"])

    @property
    def planned(self) -> int:
        """Planned number of generations."""
        return int(self.config.get("generations", 0))

    def refs(self, generation: int | None) -> dict[str, Ref]:
        """Tables of a generation by name."""
        refs = (ref for manifest in self.manifests.get(generation, []) for ref in manifest.outputs)
        return {ref.uri.rpartition("/")[2].removesuffix(".parquet"): ref for ref in refs if _own_table(ref, generation)}


def gather(run: Run, kept: MutableMapping[tuple[int, str], Tables] | None = None) -> RunData:
    """Read everything that a report shows, except the texts of its sample tasks. Raises NotStored for a run that never started.

    `kept` caches complete generations by the digest of their newest manifest; new ones are added.
    """
    kept = {} if kept is None else kept
    description = run.history.description()
    if description is None:
        raise NotStored(f"no run {run.run_id} in {run.store.url}")
    manifests: dict[int | None, list[Manifest]] = {None: run.history.of_generation(None)}
    manifests |= {generation: run.history.of_generation(generation) for generation in run.history.generations()}
    missing: list[str] = []
    parts = []
    for generation in (key for key in manifests if key is not None):
        newest = (generation, digest(manifests[generation][-1])) if manifests[generation] else (generation, "")
        if newest in kept:
            parts.append(kept[newest])
            continue
        found, before = {}, len(missing)
        for ref in (ref for manifest in manifests[generation] for ref in manifest.outputs if _own_table(ref, generation)):
            name = ref.uri.rpartition("/")[2].removesuffix(".parquet")
            table = _readable(run, ref, name, missing)
            if table is not None:
                found[name] = table
        parts.append(condense(generation, found))
        if len(missing) == before and len(found) == len(tables.GENERATION_TABLES):
            kept[newest] = parts[-1]
    finished = [key for key, done in manifests.items() if key is not None and any(one.stage == "evolve" for one in done)]
    planned = int(description["config"].get("generations", 0))
    missing = _gaps(manifests, planned) + missing
    whole = joined(parts)
    whole["scores"] = _scores(run, manifests, whole["offspring"], missing)
    watch = RunTables(run).look()
    return RunData(run, description, run.history.head(), finished, manifests, whole, watch.clock(), missing, cost_so_far(watch))


def clock_table(found: Clock) -> pa.Table:
    """Return seconds as a table, with stages in the order of a generation."""
    rows = [
        {"generation": generation, "stage": stage, "seconds": spent[stage]}
        for stage in STAGE_NAMES
        for generation, spent in found.items()
        if stage in spent
    ]
    return pa.Table.from_pylist(rows, pa.schema([("generation", pa.int64()), ("stage", pa.string()), ("seconds", pa.float64())]))


def _own_table(ref: Ref, generation: int | None) -> bool:
    folder, _, name = ref.uri.rpartition("/")
    return folder == folder_of(generation) and name.endswith(".parquet")


def _readable(run: Run, ref: Ref, name: str, missing: list[str]) -> pa.Table | None:
    """Return the table, or None after adding the reason to `missing`."""
    if name not in tables.GENERATION_TABLES:
        return None
    try:
        return run.read_table(ref, name)
    except (NotStored, Damaged) as error:
        missing.append(f"{ref.uri} is left out of every figure: {error}")
        return None


def _gaps(manifests: dict[int | None, list[Manifest]], planned: int) -> list[str]:
    """Return sentences about generations that are absent or not finished."""
    begun = sorted(key for key in manifests if key is not None)
    said = [] if manifests[None] else ["The run has not finished its start: there are no seeds and no population yet."]
    newest = begun[-1] if begun else -1
    if absent := [generation for generation in range(newest) if generation not in begun]:
        said.append(f"Generations {', '.join(map(str, absent))} are not stored; lines are broken there.")
    for generation in begun:
        done = {manifest.stage for manifest in manifests[generation]}
        lacking = [stage for stage in REQUIRED if stage not in done]
        if lacking and generation == newest:
            said.append(
                f"Generation {generation} is not finished: {lacking[0]} is its next stage. Figures show what it has so far."
            )
        elif lacking:
            said.append(f"Generation {generation} is missing {', '.join(lacking)}, although later generations exist.")
    if newest + 1 < planned:
        said.append(f"{newest + 1} of {planned} planned generations have begun.")
    return said


def _scores(run: Run, manifests: dict[int | None, list[Manifest]], offspring: pa.Table, missing: list[str]) -> pa.Table:
    """Return SCORES of all benchmarks with `generation` (-1 outside the chain) and `trained` (generations so far)."""
    born = dict(zip(offspring["adapter_id"].to_pylist(), offspring["generation"].to_pylist(), strict=True))
    committed = [manifest for done in manifests.values() for manifest in done if manifest.stage == "benchmark"]
    fields = [pa.field("generation", pa.int64()), *tables.SCORES, pa.field("trained", pa.int64()), pa.field("uri", pa.string())]
    parts = [pa.schema(fields).empty_table()]
    seen: set[str] = set()
    for manifest in [*committed, *run.history.benchmarks()]:
        for ref in manifest.outputs:
            if not ref.uri.endswith("scores.parquet") or ref.uri in seen:
                continue
            seen.add(ref.uri)
            try:
                scores = run.read_table(ref, "scores")
            except (NotStored, Damaged) as error:
                missing.append(f"{ref.uri} is left out: {error}")
                continue
            trained = [_trained(adapter, born) for adapter in scores["adapter_id"].to_pylist()]
            part = numbered(scores, -1 if manifest.generation is None else manifest.generation)
            part = part.append_column("trained", pa.array(trained, pa.int64()))
            parts.append(part.append_column("uri", pa.array([ref.uri] * part.num_rows, pa.string())).cast(pa.schema(fields)))
    return pa.concat_tables(parts).combine_chunks()


def _trained(adapter_id: str, born: Mapping[str, int]) -> int:
    """Return the number of generations that an adapter has trained, including its ancestors'.

    `s1-g0004` has 5. A newborn has its parents' count, so `s4-start` made after generation 9 has 10. A founder's start has 0.
    """
    found = _TRAINED.search(adapter_id)
    newest = int(found[1]) if found else born.get(adapter_id)
    return 0 if newest is None else newest + 1
