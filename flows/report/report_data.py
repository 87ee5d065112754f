"""The data of a report: a run's tables, condensed and joined over its generations, and what is missing."""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from flows.monitoring.alarms import Clock
from flows.monitoring.cost import RunCost, cost_so_far
from flows.monitoring.run_tables import RunTables
from flows.report.figure_tables import FigureTables, Kept, table_refs
from flows.run.manifest import Json, Manifest, Ref
from flows.run.planned import planned_generations
from flows.run.run import Run
from flows.stages import REQUIRED, STAGE_NAMES
from flows.storage import NotStored


@dataclass(frozen=True)
class RunData:
    """A run so far. What its tables hold is read from the store when it is asked for."""

    run: Run
    description: Json
    head: str
    finished: list[int]
    manifests: dict[int | None, list[Manifest]]  # of each generation that has begun, and None for start
    tables: FigureTables
    clock: Clock
    watch: RunTables

    @property
    def config(self) -> Json:
        """The configuration in run.json."""
        return dict(self.description["config"])

    @property
    def planned(self) -> int:
        """Planned number of generations."""
        return planned_generations(self.description, self.watch.newest_stages())

    @property
    def gaps(self) -> list[str]:
        """Sentences about what is absent, from the manifests alone."""
        return _gaps(self.manifests, self.planned)

    @cached_property
    def missing(self) -> list[str]:
        """Sentences about what is absent or cannot be read. Every table is read to find out."""
        return self.gaps + self.tables.faults()

    @cached_property
    def cost(self) -> RunCost:
        """What the run has cost so far."""
        return cost_so_far(self.watch)

    @property
    def origins(self) -> dict[str, str]:
        """The run that holds an artifact, by the artifact's name, of those that a fork shares."""
        outputs = (ref for manifests in self.manifests.values() for one in manifests for ref in one.outputs)
        return {ref.uri: ref.origin for ref in outputs if ref.origin}

    def refs(self, generation: int | None) -> dict[str, Ref]:
        """Tables of a generation by name."""
        return table_refs(self.manifests.get(generation, []), generation)


def gather(run: Run, watch: RunTables | None = None, kept: Kept | None = None) -> RunData:
    """Find everything that a report shows, except its sample tasks. Raises NotStored for a run that never started.

    `watch` has the run's small tables so far, if they have been read. `kept` caches what never changes; new things are added.
    """
    description = run.history.description()
    if description is None:
        raise NotStored(f"no run {run.run_id} in {run.store.url}")
    watch = RunTables(run).look() if watch is None else watch
    manifests: dict[int | None, list[Manifest]] = {None: run.history.of_generation(None)}
    manifests |= {generation: watch.manifests(generation) for generation in watch.generations}
    finished = [key for key, done in manifests.items() if key is not None and any(one.stage == "evolve" for one in done)]
    found = FigureTables(watch, manifests, {} if kept is None else kept)
    return RunData(run, description, run.history.head(), finished, manifests, found, watch.clock(), watch)


def clock_table(found: Clock) -> pa.Table:
    """Return seconds as a table, with stages in the order of a generation."""
    rows = [
        {"generation": generation, "stage": stage, "seconds": spent[stage]}
        for stage in STAGE_NAMES
        for generation, spent in found.items()
        if stage in spent
    ]
    return pa.Table.from_pylist(rows, pa.schema([("generation", pa.int64()), ("stage", pa.string()), ("seconds", pa.float64())]))


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
