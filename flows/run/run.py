"""One run in its store: reads that verify digests, writes that happen once, and the commit that completes a stage.

Data first, manifest last. A file at a final path that no manifest names is debris of a killed attempt: equal bytes are adopted,
other bytes are removed, but only by the holder of the run's lease. Names passed here are relative to the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from flows.config import identity
from flows.run import manifest as chain
from flows.run.history import History
from flows.run.lease import Fenced, check_epoch
from flows.run.manifest import Json, Manifest, Ref, canonical_json, digest, folder_of, manifest_uri, sha256_hex
from flows.storage import Damaged, NotStored, Store, StoreRefused, StoreUnavailable, check_run_id
from flows.store.table_bytes import decode_table, encode_table
from stages.core.tables import (
    ANSWERS,
    EARLIER_KEYS,
    EARLIER_ROWS,
    GENERATION_TABLES,
    GROUPS,
    RATINGS,
    SCORES,
    SEEDS,
    TRACES,
    conform,
)

__all__ = ["Json", "Manifest", "Overtaken", "Ref", "Retired", "Run", "canonical_json", "digest", "sha256_hex"]

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors")
SCHEMAS = GENERATION_TABLES | {
    "groups": GROUPS,
    "traces": TRACES,
    "population": RATINGS,
    "seeds": SEEDS,
    "scores": SCORES,
    "answers": ANSWERS,
}
SCHEMAS |= {"earlier_keys": EARLIER_KEYS, "earlier_rows": EARLIER_ROWS}
GRADIENTS = "gradients/"
"""Folder of what the parts of an update that is cut by rows hand to its join: `gradients/g0007/00of02/t0-g0006.safetensors`."""
LARGE = ("adapters/", GRADIENTS)
"""Folders of what is verified by whoever reads it, and not before."""
ATTEMPTS = 5


class Overtaken(StoreUnavailable):
    """A concurrent copy of this task replaced our data before we committed. Try again; its manifest will be there."""


class Retired(NotStored):
    """The artifact was removed on purpose; its digest (here `sha256`) and the reason are kept in gc/."""

    def __init__(self, message: str, sha256: str = "") -> None:
        super().__init__(message)
        self.sha256 = sha256


class Run:
    """A run's artifacts. Without an `epoch` (see flows.run.lease.hold) it can only read, and commit benchmarks."""

    def __init__(self, store: Store, run_id: str, epoch: int | None = None) -> None:
        self.store = store
        self.run_id = check_run_id(run_id)
        self.epoch = epoch
        self.history = History(store, run_id)

    # --- run.json -------------------------------------------------------------------------------------------------------------

    def describe(self, config: Json, versions: Json, clock: Json) -> Json:
        """Write run.json before anything else and return what the store now holds (an earlier start's, if there was one).

        Prices (`cost`) go to its clock: they are not part of what the run is, and no digest covers them.
        """
        clock = clock | ({"cost": config["cost"]} if any(config.get("cost", {}).values()) else {})
        values = {"schema": chain.SCHEMA, "run": self.run_id, "config": identity(config), "versions": versions, "clock": clock}
        self.store.create(self.history.place("run.json"), chain.readable_json(values))
        found = self.history.description()
        assert found is not None, self.run_id
        return found

    # --- data -----------------------------------------------------------------------------------------------------------------

    def write_blob(self, uri: str, data: bytes, rows: int | None = None) -> Ref:
        """Store bytes under `uri` once. If another copy of this task has already committed other bytes, return its reference."""
        return self._write_once(uri, data, rows)[0]

    def _write_once(self, uri: str, data: bytes, rows: int | None = None) -> tuple[Ref, bool]:
        """Return what `write_blob` does, and whether it names these bytes."""
        place = self.history.place(uri)
        with ThreadPoolExecutor(1) as hashing:  # parallel to the first write, so that large adapters are written at disk speed
            digest_of = hashing.submit(sha256_hex, data)
            stamp = self.store.create(place, data)
            ref = Ref(uri, digest_of.result(), rows)
        if stamp:
            return replace(ref, stamp=stamp), True
        for _ in range(ATTEMPTS):
            if stamp := self.store.create(place, data):
                return replace(ref, stamp=stamp), True
            if not (stamp := self.store.stamp(place)):  # removed since `create`; replacing it would go unnoticed
                continue
            try:
                found = self.store.read(place)
            except NotStored:
                continue
            if found == data:
                return replace(ref, stamp=stamp), True
            theirs = self._clear(ref, found, stamp)
            if theirs is not None:
                return theirs, False
        raise Overtaken(f"{self.run_id}/{uri}: another process keeps replacing it")

    def read_blob(self, ref: Ref | str) -> bytes:
        """Return the bytes of an artifact, verified against its digest (a name is looked up in the manifests)."""
        if isinstance(ref, str):
            ref = self.history.find(ref)
        place = self.history.place(ref.uri, ref.origin)
        try:
            for _ in range(2):  # twice, since the network may have garbled what is intact in the store
                data = self.store.read(place)
                if sha256_hex(data) == ref.sha256:
                    return data
        except NotStored:
            if tombstone := self._tombstone(ref):
                raise Retired(f"{ref.uri} was retired: {tombstone['reason']}", tombstone.get("sha256", "")) from None
            raise
        raise Damaged(place, f"its digest is not {ref.sha256[:12]}…, as its manifest states")

    def write_table(
        self,
        generation: int | None,
        name: str,
        table: pa.Table,
        stage: str | None = None,
        part: str | None = None,
        schema: pa.Schema | None = None,
    ) -> Ref:
        """Store a table of a generation (None: of `start/`), or a part of one that a parallel stage makes."""
        folder = folder_of(generation)
        uri = f"{folder}/{stage}.parts/{part}.parquet" if part else f"{folder}/{name}.parquet"
        return self.write_table_at(uri, table, schema or SCHEMAS[name])

    def write_table_at(self, uri: str, table: pa.Table, schema: pa.Schema) -> Ref:
        """Store a table anywhere in the run, such as under `benchmarks/`."""
        return self.write_blob(uri, encode_table(conform(table, schema)), table.num_rows)

    def read_table(self, place: int | str | Ref | None, name: str, schema: pa.Schema | None = None) -> pa.Table:
        """Return the table `name` of a generation (None: of `start/`), or the one that a reference or uri points to; verified."""
        ref = place if isinstance(place, str | Ref) else f"{folder_of(place)}/{name}.parquet"
        ref = self.history.find(ref) if isinstance(ref, str) else ref
        return decode_table(self.read_blob(ref), schema or SCHEMAS[name], ref.uri, rows=ref.rows)

    def write_adapter(self, adapter_id: str, files: Mapping[str, bytes]) -> list[Ref]:
        """Store the files of an adapter concurrently. Return a reference for each, in the order of their names."""
        return [ref for ref, _ in self.write_adapter_files(adapter_id, files).values()]

    def write_adapter_files(self, adapter_id: str, files: Mapping[str, bytes]) -> dict[str, tuple[Ref, bool]]:
        """Do what `write_adapter` does. Return, by name, each reference and whether it names the bytes that were given."""
        names = sorted(files)
        with ThreadPoolExecutor(len(ADAPTER_FILES)) as pool:
            found = pool.map(lambda name: self._write_once(f"adapters/{adapter_id}/{name}", files[name]), names)
            return dict(zip(names, found, strict=True))

    def read_adapter(self, adapter_id: str, names: Sequence[str] = ADAPTER_FILES, refs: Iterable[Ref] = ()) -> dict[str, bytes]:
        """Return files of an adapter by name, verified against `refs` if given, else against the manifest that names them."""
        known = {ref.uri: ref for ref in refs}
        uris = {name: f"adapters/{adapter_id}/{name}" for name in names}
        return {name: self.read_blob(known.get(uri, uri)) for name, uri in uris.items()}

    # --- manifests ------------------------------------------------------------------------------------------------------------

    def commit(
        self,
        stage: str,
        generation: int | None,
        inputs: Iterable[Ref],
        outputs: Iterable[Ref],
        counts: Json | None = None,
        versions: Json | None = None,
        clock: Json | None = None,
        part: str | None = None,
    ) -> Manifest:
        """Write the manifest of a stage or part, LAST. Return the one in effect: another copy's if that was first."""
        mine = Manifest(
            run=self.run_id,
            generation=generation,
            stage=f"{stage}.parts/{part}" if part else stage,
            previous=self.history.previous(stage, generation, part),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            counts=counts or {},
            versions=versions or {},
            clock=(clock or {}) | {"epoch": self.epoch},
        )
        return self.commit_as(manifest_uri(stage, generation, part), mine)

    def commit_as(self, uri: str, mine: Manifest) -> Manifest:
        """Write a manifest made elsewhere, by the rules of `commit`."""
        place = self.history.place(uri)
        with self.store.lock(self.run_id):
            self._check_fence(uri)
            theirs = self.history.manifest(uri)
            if theirs is None:
                self._check_as_read(mine)
                self._check_unreplaced(mine)
                if self.store.create(place, chain.readable_json(mine.to_json())):
                    self.history.keep(uri, mine)
        if theirs is None:
            self._after_commit(uri, mine)
            theirs = self.history.manifest(uri)
        if theirs is None or theirs.outputs == mine.outputs or self.holds(theirs):
            return theirs or mine
        if self.history.built_upon(theirs):
            raise Damaged(place, "its outputs are damaged, and the recomputed ones differ while later stages depend on it")
        self.remove(uri)
        return self.commit_as(uri, mine)

    def commit_benchmark(
        self, folder: str, inputs: Iterable[Ref], outputs: Iterable[Ref], counts: Json, versions: Json, clock: Json
    ) -> Manifest:
        """Commit `benchmarks/{folder}/benchmark.json`, outside the chain and the fence, so that training continues meanwhile."""
        mine = Manifest(self.run_id, None, "benchmark", "", tuple(inputs), tuple(outputs), counts, versions, clock)
        return self.commit_as(f"benchmarks/{folder}/benchmark.json", mine)

    def check_takes_scores(self) -> None:
        """Raise what the store says to a file under `benchmarks/`, before hours of scoring: one is written and removed.

        Under the run's lock, as scores are committed.
        """
        place = self.history.place("benchmarks/.check")
        with self.store.lock(self.run_id):
            self.store.replace(place, b"")
        with suppress(StoreRefused):  # whoever may not remove may still write
            self.store.delete(place)

    def manifest(self, stage: str, generation: int | None = None, part: str | None = None) -> Manifest | None:
        """Return the manifest of a stage (or part), or None if it has not committed."""
        return self.history.manifest(manifest_uri(stage, generation, part))

    def finished_generations(self) -> list[int]:
        """Return the numbers of the generations whose last stage has committed, in order."""
        return [number for number in self.history.generations() if self.manifest("evolve", number) is not None]

    def done(self, stage: str, generation: int | None = None, part: str | None = None, rehash: bool = True) -> bool:
        """Return whether the stage's manifest exists and its outputs are intact: re-hashed, or merely present."""
        manifest = self.manifest(stage, generation, part)
        return manifest is not None and self.holds(manifest, rehash)

    def finished(self, stage: str, generation: int | None = None, part: str | None = None) -> Manifest | None:
        """Return the manifest of a step that need not run again, or None.

        Its tables are hashed again. Its adapters and gradients are only looked up: what reads one verifies it, and nobody
        downloads gigabytes to learn that nothing is left to do. Only its join reads what a part wrote: a part that lost some of
        it is finished if its stage is.
        """
        manifest = self.manifest(stage, generation, part)
        if manifest is None:
            return None
        whole = all(self._intact(ref, not ref.uri.startswith(LARGE)) for ref in manifest.outputs)
        if part is None:
            return manifest if whole else None
        gradients = [self.history.place(ref.uri, ref.origin) for ref in manifest.outputs if ref.uri.startswith(GRADIENTS)]
        readable = whole and all(map(self.store.exists, gradients))  # else retired, which counts as present
        return manifest if readable or self.finished(stage, generation) is not None else None

    def holds(self, manifest: Manifest, rehash: bool = True) -> bool:
        """Return whether every output matches the manifest. Retired outputs count as present."""
        return all(self._intact(ref, rehash) for ref in manifest.outputs)

    def remove(self, uri: str) -> None:
        """Remove an artifact that is retired or damaged. Only for the holder of the lease, after noting why."""
        with self.store.lock(self.run_id):
            self._check_fence(uri)
            self.store.delete(self.history.place(uri))
        self.history.forget(uri)

    # --- inside ---------------------------------------------------------------------------------------------------------------

    def _intact(self, ref: Ref, rehash: bool) -> bool:
        """Return whether an artifact matches its reference, or merely exists. A retired one counts."""
        try:
            if not rehash:
                return self.store.exists(self.history.place(ref.uri, ref.origin)) or self._tombstone(ref) is not None
            self.read_blob(ref)
        except Retired:
            return True
        except (NotStored, Damaged):
            return False
        return True

    def _tombstone(self, ref: Ref) -> Json | None:
        """Return the tombstone of the artifact in the run that holds it, or None."""
        holder = History(self.store, ref.origin) if ref.origin else self.history
        return holder.tombstone(ref.uri)

    def _check_fence(self, uri: str) -> None:
        """Raise unless we may write here: any process may write benchmarks, only the owner of the newest epoch anything else.

        A benchmark may take hours. By then, the run that it scores may have been removed, and another begun under the id.
        """
        if uri.startswith("benchmarks/"):
            if self.history.is_another_run():
                what = "removed, and started again, since this process began; it commits nothing more"
                raise Fenced(f"run {self.run_id} was {what}")
            return
        if self.epoch is None:
            raise StoreRefused(f"run {self.run_id}: {uri} requires the run's lease; see flows.run.lease.hold")
        check_epoch(self.store, self.run_id, self.epoch)

    def _after_commit(self, uri: str, mine: Manifest) -> None:
        """Withdraw our manifest if, on a store without locks, a copy replaced our data just before it was written."""
        try:
            self._check_unreplaced(mine)
        except Overtaken:
            if self.history.manifest(uri) is mine:
                self.store.delete(self.history.place(uri))
                self.history.forget(uri)
            raise

    def _check_as_read(self, mine: Manifest) -> None:
        """Raise Damaged if a manifest that was lost is made anew with other outputs than later stages read."""
        if self.history.built_upon(mine):
            for ref in mine.outputs:
                self._check_read(ref)

    def _check_read(self, ref: Ref) -> None:
        if any(read.sha256 != ref.sha256 for read in self.history.reading(ref.uri)):
            raise Damaged(
                self.history.place(ref.uri),
                "its manifest is lost, and the recomputed bytes differ from those that later stages read",
            )

    def _check_unreplaced(self, mine: Manifest) -> None:
        for ref in mine.outputs:
            if ref.stamp and self.store.stamp(self.history.place(ref.uri)) != ref.stamp:
                raise Overtaken(f"{self.run_id}/{ref.uri}: a concurrent copy of this task replaced it")

    def _clear(self, ref: Ref, found: bytes, stamp: str) -> Ref | None:
        """Remove other bytes, which have this stamp, if they are debris; otherwise return the reference that commits them."""
        place, seen = self.history.place(ref.uri), sha256_hex(found)
        with self.store.lock(self.run_id):
            self._check_fence(ref.uri)
            theirs = self._committed(ref, seen)
            if theirs is not None:
                return replace(theirs, stamp=stamp)
            if self.store.stamp(place) != stamp:  # others have replaced it
                return None
            self.store.delete(place)
        theirs = self._committed(ref, seen)
        if theirs is None:
            return None
        # On a store without locks what we removed may have been committed meanwhile: put it back.
        restored = self.store.create(place, found)
        return replace(theirs, stamp=restored) if restored else None

    def _committed(self, ref: Ref, seen: str) -> Ref | None:
        """Return the reference that a manifest holds for bytes of digest `seen` at this place; None if they may be replaced."""
        manifest, named = next(self.history.naming(ref.uri), (None, None))
        if manifest is None or named is None:
            self._check_read(ref)
            return None
        if named.sha256 == seen:
            return named
        if named.sha256 != ref.sha256 and self.history.built_upon(manifest):
            raise Damaged(
                self.history.place(ref.uri), "it is damaged, and the recomputed bytes differ while later stages depend on it"
            )
        return None
