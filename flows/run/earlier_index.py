"""The index of earlier tasks: segments in the store, so that a process that knows nothing reads the past in a few requests.

`verify` of generation g writes one segment next to its tasks: two tables, `earlier_keys` (what new tasks are compared with) and
`earlier_rows` (what prompts show). With n = g + 1, the segment covers generations b to g, where b is n without its lowest binary
one: the tree of Fenwick (1994). Generations before n are then covered by as many segments as n has ones, at most 8 in 255
generations, and a generation's rows are written about once for every doubling of the run.

A segment is a function of the tables of its generations and is an artifact like them: named by the manifest of `verify` with its
digest, written whole and once, adopted or replaced after a kill, borrowed by forks, kept by retention, checked by fsck. A run
that an older version began has generations without one. Their tables are read one by one, until the first generation that this
version verifies writes a segment of them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from flows.run.manifest import Manifest, Ref, folder_of
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import NotStored
from stages.core.earlier_tasks import joined_keys, joined_rows, keys_of, rows_of
from stages.core.method.leak import believed

KEYS, ROWS, TASKS = "earlier_keys", "earlier_rows", "tasks"
BEGIN = "earlier_from"
"""The count in a manifest of `verify` that tells the first generation of its segment."""


@dataclass(frozen=True)
class Segment:
    """Where the tasks of generations `begin` to `end` - 1 are: in two index tables, or in the TASKS of one generation."""

    begin: int
    end: int
    tasks: Ref
    indexed: tuple[Ref, Ref] | None

    def keys(self, run: Run) -> pa.Table:
        """Return its EARLIER_KEYS."""
        return run.read_table(self.indexed[0], KEYS) if self.indexed else keys_of(self._read(run))

    def rows(self, run: Run) -> pa.Table:
        """Return its EARLIER_ROWS."""
        return run.read_table(self.indexed[1], ROWS) if self.indexed else rows_of(self._read(run))

    def _read(self, run: Run) -> pa.Table:
        return believed(run.read_table(self.tasks, TASKS))

    @property
    def keys_ref(self) -> Ref:
        """The table that `keys` reads."""
        return self.indexed[0] if self.indexed else self.tasks

    @property
    def rows_ref(self) -> Ref:
        """The table that `rows` reads."""
        return self.indexed[1] if self.indexed else self.tasks


def verified(run: Run, generation: int) -> Manifest:
    """Return the manifest of the stage that wrote the generation's tasks. Raises NotStored."""
    manifest = run.manifest("verify", generation)
    if manifest is None:
        raise NotStored(f"{run.run_id}/{folder_of(generation)}/tasks.parquet: no manifest names it")
    return manifest


def segment_before(run: Run, end: int) -> Segment:
    """Return the segment that ends before generation `end`: one generation's tasks if no index was written there."""
    manifest = verified(run, end - 1)
    tasks, begin = manifest.output(f"{TASKS}.parquet"), manifest.counts.get(BEGIN)
    if begin is None:
        return Segment(end - 1, end, tasks, None)
    return Segment(int(begin), end, tasks, (manifest.output(f"{KEYS}.parquet"), manifest.output(f"{ROWS}.parquet")))


def segments(run: Run, begin: int, end: int, known: Sequence[Segment] = ()) -> list[Segment]:
    """Return segments that cover generations `begin` to `end` - 1, oldest first. `known` are those of an earlier answer for 0."""
    ends = {segment.end: number for number, segment in enumerate(known)} if begin == 0 else {}
    found: list[Segment] = []
    at = end
    while at > begin:
        if at in ends:
            return [*known[: ends[at] + 1], *reversed(found)]
        segment = segment_before(run, at)
        if segment.begin < begin:  # it holds more than is asked for
            segment = Segment(at - 1, at, segment.tasks, None)
        found.append(segment)
        at = segment.begin
    return found[::-1]


def natural_begin(end: int) -> int:
    """Return the first generation of the segment that ends before generation `end`, in a run that has an index from its start."""
    return end & (end - 1)


def write_segment(io: StageIO, tasks: pa.Table) -> None:
    """Write the segment of the generation of `io`, whose TASKS were just verified, from those before it and these tasks."""
    run, end = io.run, io.generation + 1
    if _began_without(run, io.generation):
        return
    before, begin = segments(run, 0, io.generation), natural_begin(end)
    if begin and (segment_before(run, begin).indexed is None or begin not in {io.generation, *(one.begin for one in before)}):
        begin = 0  # an older version verified some of these generations: what it left without an index is covered here
    parts = [segment for segment in before if segment.begin >= begin]
    io.use(ref for segment in parts for ref in dict.fromkeys((segment.keys_ref, segment.rows_ref)))
    io.write_table(KEYS, joined_keys([*(segment.keys(run) for segment in parts), keys_of(tasks)]))
    io.write_table(ROWS, joined_rows([*(segment.rows(run) for segment in parts), rows_of(tasks)]))
    io.count(**{BEGIN: begin})


def _began_without(run: Run, generation: int) -> bool:
    """Return whether a version without an index verified this generation or built on it: what it wrote must come out the same."""
    own, later = run.manifest("verify", generation), run.manifest("verify", generation + 1)
    if own is not None:
        return BEGIN not in own.counts
    return later is not None and any(ref.uri == f"{folder_of(generation)}/{TASKS}.parquet" for ref in later.inputs)
