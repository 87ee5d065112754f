"""A growing run's small tables, its times, and the alarms that they raise. Each generation is read once."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from flows.monitoring.alarms import Alarm, Clock, alarms
from flows.monitoring.time_left import elapsed, overlap
from flows.run.manifest import Manifest, Ref, generation_of, manifest_uri
from flows.run.run import Run
from flows.run.suite_versions import suite_version
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored
from flows.store.many_reads import read_each
from flows.store.table_bytes import decode_table
from stages.analysis.summary import Values, lookup
from stages.core import tables
from stages.core.engines.agreement import BOUNDS

SMALL = ("metrics", "ratings", "offspring")
"""Tables of a few rows per member."""
STANDING = ("member_id", "role", "match_id", "expected", "mu", "sigma", "fitness")
"""Columns of the ratings that pages read of every generation. To decode a column takes as long in a small table as its rows."""
FEW = 4  # generations that are looked for by their own listings


class RunTables:
    """Metrics, ratings and offspring of a run. `look` reads what is new. A complete generation is never read again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._parts: dict[int, dict[str, _Stored]] = {}
        self._joined: dict[str, tuple[int, pa.Table]] = {}
        self._numbers: dict[int, tuple[_Stored, Values]] = {}
        self._changes = 0
        self._steps: dict[int, list[Manifest]] = {}
        self._seconds: dict[int, dict[str, float]] = {}
        self._scored: dict[int, dict[int, pa.Table]] = {}
        self._whole: set[int] = set()
        self._faults: dict[tuple[int, str], NotStored | Damaged] = {}
        self._lock = threading.Lock()

    def look(self) -> "RunTables":
        """Read what the run has committed since the last look."""
        begun = self.run.history.generations()
        with self._lock:
            for gone in self._parts.keys() - set(begun):
                self._whole.discard(gone)
                self._scored.pop(gone, None)
                del self._parts[gone]
                self._changes += 1
            self._read([generation for generation in begun if generation not in self._whole])
        return self

    @property
    def generations(self) -> list[int]:
        """Generations that had begun at the last look."""
        return sorted(self._parts)

    @property
    def faults(self) -> list[str]:
        """Return sentences about what could not be read."""
        return [str(self._faults[key]) for key in sorted(self._faults)]

    def unread(self, name: str) -> list[str]:
        """Return the same of one small table."""
        return [str(self._faults[key]) for key in sorted(self._faults) if key[1] == name]

    def manifests(self, generation: int) -> list[Manifest]:
        """Return the finished stages of a generation, in order."""
        return [manifest for manifest in self.steps(generation) if ".parts/" not in manifest.stage]

    def steps(self, generation: int) -> list[Manifest]:
        """Return the finished stages of a generation, in order, then the finished parts of stages."""
        return self._steps.get(generation, [])

    def newest_stages(self) -> list[Manifest]:
        """Return the finished stages of the newest generation that had any at the last look; before generation 0, the start's."""
        for generation in reversed(self.generations):
            if finished := self.manifests(generation):
                return finished
        start = self.run.manifest("start")
        return [start] if start else []

    def of(self, generation: int, name: str) -> pa.Table:
        """Return a small table of one generation, empty if its stage has not run or it cannot be read."""
        found = self._decoded(generation, name, lambda stored: stored.table())
        return tables.GENERATION_TABLES[name].empty_table() if found is None else found

    def read(self, generation: int, name: str) -> pa.Table:
        """Return the same, or raise NotStored or Damaged if it cannot be read."""
        found = self.of(generation, name)
        if (error := self._faults.get((generation, name))) is not None:
            raise error
        return found

    def table(self, name: str) -> pa.Table:
        """Return a small table over all generations, with `generation` as its first column."""
        schema = tables.GENERATION_TABLES[name]
        return self._join(name, schema, lambda stored: stored.table(), name)

    def standings(self) -> pa.Table:
        """Return the columns STANDING of the ratings of all generations, with `generation` as their first column."""
        return self.columns("ratings", STANDING)

    def columns(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return these columns of a small table over all generations, with `generation` as their first column."""
        schema = pa.schema([field for field in tables.GENERATION_TABLES[name] if field.name in columns])
        return self._join(" ".join([name, *schema.names]), schema, lambda stored: stored.columns(schema.names), name)

    def numbers(self, generation: int) -> Values:
        """Return the finite metrics of a generation by (name, member, role, kind)."""
        stored = self._parts.get(generation, {}).get("metrics")
        if stored is None:
            return {}
        known = self._numbers.get(generation)
        if known is None or known[0] is not stored:
            known = self._numbers[generation] = stored, lookup(self.of(generation, "metrics"))
        return known[1]

    def seconds(self, generation: int) -> dict[str, float]:
        """Return how long each stage of a generation took. Parts that ran at the same time count once."""
        return self._seconds.get(generation, {})

    def clock(self) -> Clock:
        """Return the same by generation and stage."""
        return {generation: self._seconds[generation] for generation in self.generations}

    def times(self, generation: int) -> dict[str, float]:
        """Return the seconds of each stage of a generation, and under `total` those of all, in which an update may share time."""
        found = dict(self._seconds.get(generation, {}))
        return found | {"total": sum(found.values()) - overlap(self._steps[generation])} if found else found

    def alarms(self) -> list[Alarm]:
        """Return all alarms, in order of generations. What cannot be read raises none."""
        return alarms(self.table("metrics"), self.standings(), self.clock(), self.drift_bounds(), self.scores(), self.suites())

    def scores(self) -> dict[int, pa.Table]:
        """Return the scores on the run's own suite by generation, the start's under -1. What cannot be read is left out."""
        found: dict[int, pa.Table] = {}
        for generation in self.generations:
            done = next((one for one in self.manifests(generation) if one.stage == "benchmark"), None)
            if done is not None:
                found |= self._own_scores(generation, done)
        return found

    def suites(self) -> dict[int, str]:
        """Return the versions of the suite that they are of, as in `suite_version`. Generation 0 scores the start."""
        done = {number: one for number in self.generations for one in self.manifests(number) if one.stage == "benchmark"}
        versions = {number: suite_version(one) for number, one in done.items()}
        return versions | ({-1: versions[0]} if 0 in versions else {})

    def _own_scores(self, generation: int, done: Manifest) -> dict[int, pa.Table]:
        """Return the scores that a generation's benchmark wrote, the start's under -1. A fault is noted."""
        if generation in self._scored:
            return self._scored[generation]
        suite = self._config.get("benchmark", {}).get("suite")
        places = {f"benchmarks/{suite}/start/scores.parquet": -1}
        places[f"benchmarks/{suite}/generation={generation:04d}/scores.parquet"] = generation
        try:
            found = {places[ref.uri]: self.run.read_table(ref, "scores") for ref in done.outputs if ref.uri in places}
        except (NotStored, Damaged) as error:
            self._faults[generation, "scores"] = error
            return {}
        self._faults.pop((generation, "scores"), None)
        self._scored[generation] = found
        return found

    def drift_bounds(self) -> dict[int, float]:
        """Return the mean difference of engine and trainer at which the run stops, by generation.

        That is `engine.max_drift`, or what arithmetic explains in the type that the engine has recorded.
        """
        dtypes = {number: _dtype(self.manifests(number)) for number in self.generations}
        known = {number: BOUNDS[dtype].mean for number, dtype in dtypes.items() if dtype in BOUNDS}
        return {number: self._max_drift or bound for number, bound in known.items()}

    @cached_property
    def _config(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = (self.run.history.description() or {}).get("config", {})
        return found

    @property
    def _max_drift(self) -> float:
        return float(self._config.get("engine", {}).get("max_drift", 0.0))

    def _join(self, key: str, schema: pa.Schema, part: Callable[["_Stored"], pa.Table], name: str) -> pa.Table:
        """Return these columns of a table over all generations, as one piece: a filter takes its time for each piece."""
        changes, known = self._changes, self._joined.get(key)
        if known is not None and known[0] == changes:
            return known[1]
        decoded = ((generation, self._decoded(generation, name, part)) for generation in self.generations)
        parts = {generation: table for generation, table in decoded if table is not None}
        rows = [generation for generation, one in parts.items() for _ in range(one.num_rows)]
        whole = pa.concat_tables([schema.empty_table(), *parts.values()]).combine_chunks().replace_schema_metadata(None)
        whole = whole.add_column(0, pa.field("generation", pa.int64()), pa.array(rows, pa.int64()))
        self._joined[key] = changes, whole  # what another thread has read meanwhile makes it old
        return whole

    def _decoded(self, generation: int, name: str, part: Callable[["_Stored"], pa.Table]) -> pa.Table | None:
        """Return a table, or these columns of it; None if it is not there, or after noting why it cannot be read."""
        stored = self._parts.get(generation, {}).get(name)
        try:
            return None if stored is None else part(stored)
        except Damaged as error:  # its bytes are those of the manifest: it was written so
            self._faults[generation, name] = error
            return None

    def _read(self, generations: Sequence[int]) -> None:
        """Read generations: one or a few by their own listings, many by one listing of the run."""
        if len(generations) <= FEW:
            for generation in generations:
                self._keep(generation, self.run.history.of_generation(generation, parts=True))
            return
        prefix = f"{self.run.run_id}/"
        uris: dict[int, list[str]] = {generation: [] for generation in generations}
        for uri in self.run.store.list(f"{prefix}generation="):
            folder, _, name = uri.removeprefix(prefix).partition("/")
            if name.endswith(".json") and (number := generation_of(folder)) in uris:
                uris[number].append(f"{folder}/{name}")
        read_each(lambda generation: self._keep(generation, self._manifests(generation, uris[generation])), generations)

    def _manifests(self, generation: int, uris: Sequence[str]) -> list[Manifest]:
        """Return these manifests of a generation: its stages in order, then parts."""
        stages = [uri for stage in STAGE_NAMES if (uri := manifest_uri(stage, generation)) in uris]
        found = [*stages, *sorted(uri for uri in uris if ".parts/" in uri)]
        return [manifest for uri in found if (manifest := self.run.history.manifest(uri))]

    def _keep(self, generation: int, found: list[Manifest]) -> None:
        stages = [manifest for manifest in found if ".parts/" not in manifest.stage]
        parts = dict(self._parts.get(generation, {}))
        folder = f"generation={generation:04d}"
        refs = {ref.uri: ref for manifest in stages for ref in manifest.outputs}
        for name in SMALL:
            ref = refs.get(f"{folder}/{name}.parquet")
            if ref is None or name in parts:
                continue
            try:
                parts[name] = _Stored(self.run.read_blob(ref), name, ref)
                self._faults.pop((generation, name), None)
            except (NotStored, Damaged) as error:
                self._faults[generation, name] = error
        # Pages read without the lock: whoever sees a manifest finds its table.
        self._seconds[generation] = elapsed(found)
        self._parts[generation] = parts
        self._steps[generation] = found
        self._changes += 1
        if any(manifest.stage == "evolve" for manifest in stages) and len(parts) == len(SMALL):
            self._whole.add(generation)


def _dtype(manifests: Sequence[Manifest]) -> str:
    """Return the type in which the engine computed in a generation; empty if no stage says."""
    engines = [manifest.versions.get("engine", {}) for manifest in manifests]
    return next((str(engine["dtype"]) for engine in engines if "dtype" in engine), "")


class _Stored:
    """A small table as verified bytes, decoded when it is first asked for: a page needs one or two of the three."""

    def __init__(self, data: bytes, name: str, ref: Ref) -> None:
        schema = tables.GENERATION_TABLES[name]
        self._source, self._rows = (data, schema, ref.uri), ref.rows
        self._whole: pa.Table | None = schema.empty_table() if ref.rows == 0 else None

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return some columns. Raises Damaged."""
        return decode_table(*self._source, names, self._rows) if self._whole is None else self._whole.select(list(names))

    def table(self) -> pa.Table:
        """Return all columns. Raises Damaged."""
        if self._whole is None:
            self._whole = decode_table(*self._source, rows=self._rows)
        return self._whole


def clock(run: Run) -> Clock:
    """Return how long each stage of every generation took."""
    return RunTables(run).look().clock()
