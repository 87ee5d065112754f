"""What a process knows of the tasks before a generation: read from a few segments at first, then extended by what is new."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from flows.run.earlier_index import Segment, segments, verified
from flows.run.manifest import Ref, digest
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import NotStored
from stages.core.earlier_tasks import SeenTasks, StoredTasks


class EarlierReader:
    """Holds the earlier tasks of one run and extends them by generations. Each half is read when a stage asks for it."""

    def __init__(self) -> None:
        self._seen = _Half(SeenTasks, Segment.keys)
        self._stored = _Half(StoredTasks, Segment.rows)

    def seen(self, io: StageIO, seeds: bool = True) -> SeenTasks:
        """Return what the tasks of the generation of `io` are compared with. Its tables become inputs, the seeds only if used."""
        known = self._seen.before(io.run, io.generation)
        io.use(([known.seeds] if seeds else []) + [segment.keys_ref for segment in known.segments])
        return known.index

    def stored(self, io: StageIO) -> StoredTasks:
        """Return the tasks that the generation of `io` may show or repeat. Its tables become inputs of the stage."""
        known = self._stored.before(io.run, io.generation)
        io.use([known.seeds, *(segment.rows_ref for segment in known.segments)])
        return known.index


class _Grows(Protocol):
    def add(self, segment: pa.Table, /) -> None: ...


Index = TypeVar("Index", bound=_Grows)


@dataclass
class _Known(Generic[Index]):
    """The index before `generation`, what it was read from, and the digest of the manifest that ends it."""

    generation: int
    mark: str
    seeds: Ref
    segments: Sequence[Segment]
    index: Index


class _Half(Generic[Index]):
    """One half of the index in memory.

    The chain of manifests identifies what was read: a digest covers everything before it. With another run, a fork or an earlier
    generation the digest differs, and the index is read again from the start.
    """

    def __init__(self, empty: Callable[[pa.Table], Index], read: Callable[[Segment, Run], pa.Table]) -> None:
        self._empty, self._read = empty, read
        self._known: _Known[Index] | None = None

    def before(self, run: Run, generation: int) -> _Known[Index]:
        """Return the index of all tasks before the generation."""
        known = self._known
        if known is None or known.generation > generation or known.mark != _mark(run, known.generation):
            start = run.manifest("start")
            if start is None:
                raise NotStored(f"{run.run_id}/start/seeds.parquet: no manifest names it")
            seeds = start.output("seeds.parquet")
            known = _Known(0, "", seeds, (), self._empty(run.read_table(seeds, "seeds")))
        self._known = None  # an index that was extended halfway must not be used
        for segment in segments(run, known.generation, generation):
            known.index.add(self._read(segment, run))
        known.segments = segments(run, 0, generation, known.segments)
        known.generation, known.mark = generation, _mark(run, generation)
        self._known = known
        return known


def _mark(run: Run, generation: int) -> str:
    """Return the digest of the manifest that ends what comes before a generation's first question."""
    if generation:
        return digest(verified(run, generation - 1))
    start = run.manifest("start")
    return digest(start) if start else ""
