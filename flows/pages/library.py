"""Data access for the pages: runs of one store, and slices of their tables, verified against the manifests' digests."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from flows.compare.scores import ScoreReader
from flows.monitoring.run_state import StateReader
from flows.monitoring.run_tables import RunTables
from flows.near_names import near_or_all
from flows.pages.pedigree import Pedigree
from flows.run.manifest import Ref
from flows.run.run import Run
from flows.run.table_reader import TableFile, batches, parquet_file
from flows.run.verified import Reader, open_verified
from flows.storage import NotStored, Store, open_store
from flows.store.names import RUN_ID

KEPT_FILES = 64
KEPT_BYTES = 4 << 30  # on disk if the store is a bucket; never in memory


@dataclass(frozen=True)
class _OpenRun:
    """An opened run, its small tables, and the stamp of its run.json, which tells it from a later run of the same name."""

    run: Run
    tables: RunTables
    stamp: str


class Library:
    """Runs of a store. Verified files stay open: artifacts never change, and their bytes stay out of memory.

    Every run that has been asked for is kept with its small tables until it is gone from the store: whoever visits all runs in
    turn, such as a scrape, would read each of them again at every visit if only some were kept.
    """

    def __init__(self, store: str | Store) -> None:
        self.store = open_store(store) if isinstance(store, str) else store
        self.states = StateReader(self.store)  # one for all pages, so that they agree on when a heartbeat was last seen to change
        self.scores = ScoreReader()
        self._runs: dict[str, _OpenRun] = {}
        self._kept: OrderedDict[str, BinaryIO] = OrderedDict()
        self._lock = threading.Lock()

    def run_ids(self) -> list[str]:
        """Return the runs of the store, by name, and forget those that are gone or that another run has replaced."""
        names = (name for name in self.store.folders("") if RUN_ID.fullmatch(name))
        stamps = {name: stamp for name in names if (stamp := self._stamp(name))}
        with self._lock:
            self._runs = {name: known for name, known in self._runs.items() if stamps.get(name) == known.stamp}
        return list(stamps)

    def has_run(self, name: str) -> bool:
        """Return whether this folder of the store is a run."""
        return self.store.exists(f"{name}/run.json")

    def run(self, run_id: str) -> Run:
        """Open the run that has this name now, for reading. Raises NotStored if the store has none of that id."""
        with self._lock:
            known = self._runs.get(run_id)
        if known is None or known.stamp != self._stamp(run_id):
            found = Run(self.store, run_id)
            if found.history.description() is None:  # first: a refusal to read says why, a refused stamp does not
                raise NotStored(f"There is no run {run_id} in {self.store.url}{near_or_all(run_id, self.store.folders(''))}.")
            known = self._opened(_OpenRun(found, RunTables(found), self._stamp(run_id)))
        return known.run

    def watch(self, run: Run) -> RunTables:
        """Return the run's small tables so far."""
        with self._lock:
            known = self._runs.get(run.run_id)
        tables = known.tables if known is not None and known.run is run else RunTables(run)
        return tables.look()

    def pedigree(self, run: Run) -> Pedigree:
        """Return the ancestry of the run's adapters so far."""
        return Pedigree(self.watch(run))

    def parquet(self, run: Run, ref: Ref) -> TableFile:
        """Open the table's file after verifying its digest. Rows are decoded on request."""
        return parquet_file(self.file(run, ref), f"{run.run_id}/{ref.uri}")

    def rows(self, run: Run, uri: str, columns: Sequence[str] | None = None, **equal: object) -> list[dict]:
        """Return the rows in which each column of `equal` has that value (or one of a list); none if no stage has written any."""
        return list(self.each(run, uri, columns, None, **equal))

    def each(
        self, run: Run, uri: str, columns: Sequence[str] | None, contains: Mapping[str, str] | None = None, **equal: object
    ) -> Iterator[dict]:
        """Yield these rows one by one. `contains` as in `flows.run.table_reader.batches`."""
        try:
            ref = run.history.find(uri)
        except NotStored:
            return
        for batch in batches(self.parquet(run, ref), columns, contains, **equal):
            yield from batch.to_pylist()

    def file(self, run: Run, ref: Ref) -> Reader:
        """Open the verified artifact. An open one is reused while the store's object is the one that was verified."""
        key = f"{self.store.stamp(run.history.place(ref.uri, ref.origin))} {run.run_id}/{ref.uri} {ref.sha256}"
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return Reader(self._kept[key])
        file = open_verified(run, ref)
        with self._lock:
            self._kept[key] = file
            while len(self._kept) > 1 and (len(self._kept) > KEPT_FILES or self._bytes() > KEPT_BYTES):
                self._kept.popitem(last=False)  # closed when its last reader is done
        return Reader(file)

    def _opened(self, made: _OpenRun) -> _OpenRun:
        """Return the entry of this run.json: another request's, if one has opened the same, so that both share its tables."""
        with self._lock:
            known = self._runs.get(made.run.run_id)
            if known is None or known.stamp != made.stamp:
                known = self._runs[made.run.run_id] = made
            return known

    def _stamp(self, run_id: str) -> str:
        return self.store.stamp(f"{run_id}/run.json")

    def _bytes(self) -> int:
        return sum(os.fstat(file.fileno()).st_size for file in self._kept.values())
