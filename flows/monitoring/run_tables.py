"""A growing run's small tables, its times, and the alarms that they raise. Each generation is read once."""

import threading

import pyarrow as pa

from flows.monitoring.alarms import Alarm, Clock, alarms
from flows.run.manifest import Manifest
from flows.run.run import Run
from flows.storage import Damaged, NotStored
from stages.core import tables
from stages.core.statistics.condensed import numbered

SMALL = ("metrics", "ratings", "offspring")
"""Tables of a few rows per member."""


class RunTables:
    """Metrics, ratings and offspring of a run. `look` reads what is new. A complete generation is never read again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._parts: dict[int, dict[str, pa.Table]] = {}
        self._steps: dict[int, list[Manifest]] = {}
        self._seconds: dict[int, dict[str, float]] = {}
        self._whole: set[int] = set()
        self._faults: dict[tuple[int, str], str] = {}
        self._lock = threading.Lock()

    def look(self) -> "RunTables":
        """Read what the run has committed since the last look."""
        begun = self.run.history.generations()
        with self._lock:
            for gone in self._parts.keys() - set(begun):
                self._whole.discard(gone)
                del self._parts[gone]
            for generation in begun:
                if generation not in self._whole:
                    self._read(generation)
        return self

    @property
    def generations(self) -> list[int]:
        """Generations that had begun at the last look."""
        return sorted(self._parts)

    @property
    def faults(self) -> list[str]:
        """Return sentences about what could not be read."""
        return [self._faults[key] for key in sorted(self._faults)]

    def manifests(self, generation: int) -> list[Manifest]:
        """Return the finished stages of a generation, in order."""
        return [manifest for manifest in self.steps(generation) if ".parts/" not in manifest.stage]

    def steps(self, generation: int) -> list[Manifest]:
        """Return the finished stages of a generation, in order, then the finished parts of stages."""
        return self._steps.get(generation, [])

    def of(self, generation: int, name: str) -> pa.Table:
        """Return a small table of one generation, empty if its stage has not run or it cannot be read."""
        found = self._parts.get(generation, {}).get(name)
        return tables.GENERATION_TABLES[name].empty_table() if found is None else found

    def table(self, name: str) -> pa.Table:
        """Return a small table over all generations, with `generation` as its first column."""
        parts = [numbered(self.of(generation, name), generation) for generation in self.generations]
        return pa.concat_tables([numbered(tables.GENERATION_TABLES[name].empty_table(), 0), *parts])

    def clock(self) -> Clock:
        """Return seconds by generation and stage."""
        return {generation: self._seconds[generation] for generation in self.generations}

    def alarms(self) -> list[Alarm]:
        """Return all alarms, in order of generations."""
        return alarms(self.table("metrics"), self.table("ratings"), self.clock())

    def _read(self, generation: int) -> None:
        found = self.run.history.of_generation(generation, parts=True)
        stages = [manifest for manifest in found if ".parts/" not in manifest.stage]
        self._steps[generation], self._seconds[generation] = found, seconds_of(found)
        parts = self._parts.setdefault(generation, {})
        folder = f"generation={generation:04d}"
        refs = {ref.uri: ref for manifest in stages for ref in manifest.outputs}
        for name in SMALL:
            ref = refs.get(f"{folder}/{name}.parquet")
            if ref is None or name in parts:
                continue
            try:
                parts[name] = self.run.read_table(ref, name)
                self._faults.pop((generation, name), None)
            except (NotStored, Damaged) as error:
                self._faults[generation, name] = str(error)
        if any(manifest.stage == "evolve" for manifest in stages) and len(parts) == len(SMALL):
            self._whole.add(generation)


def seconds_of(manifests: list[Manifest]) -> dict[str, float]:
    """Return the seconds of each stage of a generation in chain order, its parts added."""
    spent = {manifest.stage: 0.0 for manifest in manifests if ".parts/" not in manifest.stage}
    for manifest in manifests:
        stage = manifest.whole_stage
        spent[stage] = spent.get(stage, 0.0) + float(manifest.clock.get("seconds", 0.0))
    return spent


def health(run: Run) -> list[Alarm]:
    """Return the alarms of a run so far. What cannot be read raises none."""
    return RunTables(run).look().alarms()


def clock(run: Run) -> Clock:
    """Return the seconds of each stage of every generation."""
    return RunTables(run).look().clock()
