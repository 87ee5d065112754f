"""What one stage reads and writes: every read becomes an input of its manifest, every write an output."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from safetensors.numpy import load

from flows.run.held_adapters import HeldAdapters
from flows.run.run import GRADIENTS, Manifest, Ref, Run
from flows.store import local_copies
from stages.core import tables
from stages.core.lora.adapter import Adapter, Gradient, Weights
from stages.core.lora.adapter_files import (
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    StoredWeights,
    adapter_bytes,
    adapter_from,
    gradient_bytes,
    optimizer_state,
    read_gradient,
)
from stages.core.population import Member, population_after

ADAPTERS_AT_ONCE = 4
"""Adapters read or written at the same time: hashing uses several cores, and the disk need not wait. Each is in memory twice."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class StageIO:
    """The storage of one stage (or one of its parts) of one generation; `generation` is -1 for `start`.

    `verdicts` is a folder of this machine for early verdicts (flows.steps.early_verdicts), if there is one; `held` has the
    adapters that this process holds in memory between its stages.
    """

    def __init__(
        self,
        run: Run,
        stage: str,
        generation: int | None,
        part: str | None,
        base_model: str,
        alpha: float,
        verdicts: Path | None = None,
        held: HeldAdapters | None = None,
    ) -> None:
        self.run, self.stage, self.part, self.verdicts = run, stage, part, verdicts
        self.generation = -1 if generation is None else generation
        self._place = generation
        self._base_model, self._alpha = base_model, alpha
        self._copies = local_copies.of_store(run.store.url)
        self._held = held or HeldAdapters(0)
        self._inputs: dict[str, Ref] = {}
        self._outputs: dict[str, Ref] = {}
        self._counts: dict[str, Any] = {}
        self._versions: dict[str, Any] = {}

    # reading -------------------------------------------------------------------------------------------------------------

    def table(self, name: str, generation: int | None = None) -> pa.Table:
        """Read a table of this generation, or of an earlier one."""
        return self._read_table(self.generation if generation is None else generation, name)

    def has(self, name: str) -> bool:
        """Return whether a stage of this generation has stored the table."""
        return next(self.run.history.naming(f"generation={self.generation:04d}/{name}.parquet"), None) is not None

    def start_table(self, name: str) -> pa.Table:
        """Read a table of `start/`."""
        return self._read_table(None, name)

    def use(self, refs: Iterable[Ref]) -> None:
        """Record tables that were read before in this process, such as those of earlier generations, as inputs of the stage."""
        self._inputs |= {ref.uri: _plain(ref) for ref in refs}

    def population(self) -> list[Member]:
        """Return the members as they are before this generation."""
        if self.generation == 0:
            return population_after(self.start_table("population"), tables.OFFSPRING.empty_table(), -1)
        before = self.generation - 1
        return population_after(self.table("ratings", before), self.table("offspring", before), before)

    def trained_population(self) -> list[Member]:
        """Return the members after this generation's update and ratings, before any of them is replaced."""
        return population_after(self.table("ratings"), tables.OFFSPRING.empty_table(), self.generation)

    def adapters(self, adapter_ids: Iterable[str], moments: bool = False) -> dict[str, Adapter]:
        """Return adapters by id, each read once; optimizer moments only if `moments` is set."""
        names = (WEIGHTS_FILE, OPTIMIZER_FILE) if moments else (WEIGHTS_FILE,)
        found = {one: [self._adapter_file(one, name) for name in names] for one in dict.fromkeys(adapter_ids)}
        return dict(zip(found, _side_by_side(self._read_adapter, found.values()), strict=True))

    def updated_adapters(self) -> dict[str, tuple[str, str]]:
        """Return (adapter id, sha256) of the weights that this generation's update made, by member id."""
        manifest = self.run.manifest("update", self._place)
        assert manifest is not None, "rate runs after update"
        made = {}
        for ref in manifest.outputs:
            folder, _, name = ref.uri.rpartition("/")
            if name == WEIGHTS_FILE:
                self._inputs[ref.uri] = _plain(ref)
                adapter_id = folder.removeprefix("adapters/")
                made[adapter_id.rpartition("-")[0]] = (adapter_id, ref.sha256)
        return made

    def parts(self, names: Iterable[str], schema: pa.Schema) -> list[pa.Table]:
        """Return the tables that this stage's parts wrote, in order; the adapters that they wrote become this stage's."""
        found = []
        for name in names:
            manifest = self.run.manifest(self.stage, self._place, name)
            assert manifest is not None, f"part {name} of {self.stage} is not done"
            self._versions |= manifest.versions
            for ref in manifest.outputs:
                if ref.uri.endswith(".parquet"):
                    self._inputs[ref.uri] = _plain(ref)
                    found.append(self.run.read_table(ref, self.stage, schema))
                elif not ref.uri.startswith(GRADIENTS):
                    self._outputs[ref.uri] = _plain(ref)
        return found

    def gradients(self, adapter_id: str, names: Iterable[str]) -> Iterator[Gradient]:
        """Yield the gradients of an adapter that these parts of the stage wrote, in order; each is read when it is asked for."""
        for name in names:
            manifest = self.run.manifest(self.stage, self._place, name)
            assert manifest is not None, f"part {name} of {self.stage} is not done"
            ref = _plain(manifest.output(f"{adapter_id}.safetensors"))
            self._inputs[ref.uri] = ref
            yield read_gradient(self.run.read_blob(ref))

    # writing -------------------------------------------------------------------------------------------------------------

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a table of this generation (or of `start/`)."""
        self._output(self.run.write_table(self._place, name, table))

    def write_own(self, name: str, table: pa.Table) -> None:
        """Write the stage's table, or this part's share of it."""
        if self.part is None:
            self.write_table(name, table)
        else:
            self.write_part(table, table.schema)

    def write_part(self, table: pa.Table, schema: pa.Schema) -> None:
        """Write the table of this part."""
        self._output(self.run.write_table(self._place, self.stage, table, stage=self.stage, part=self.part, schema=schema))

    def write_at(self, uri: str, table: pa.Table, schema: pa.Schema) -> None:
        """Write a table elsewhere in the run, such as under `benchmarks/`."""
        self._output(self.run.write_table_at(uri, table, schema))

    def write_adapters(self, adapters: Mapping[str, Adapter]) -> dict[str, str]:
        """Store adapters by id and return the sha256 of the weights of each."""
        digests = {}
        for adapter_id, refs in zip(adapters, _side_by_side(self._store_adapter, adapters.items()), strict=True):
            for ref in refs:
                self._output(ref)
            digests[adapter_id] = next(ref.sha256 for ref in refs if ref.uri.endswith(WEIGHTS_FILE))
        return digests

    def write_gradient(self, adapter_id: str, gradient: Gradient) -> None:
        """Store the gradient of an adapter that this part computed. Retention removes it once the generation is complete."""
        place = f"{GRADIENTS}g{self.generation:04d}/{self.part}/{adapter_id}.safetensors"
        self._output(self.run.write_blob(place, gradient_bytes(gradient)))

    def count(self, **numbers: int) -> None:
        """Record numbers for the manifest, equal in equal runs."""
        self._counts |= numbers

    def version(self, **versions: Any) -> None:
        """Record what was used from outside the run, with its digest."""
        self._versions |= versions

    def inputs(self) -> list[Ref]:
        """Return everything read so far."""
        return [ref for ref in self._inputs.values() if ref.uri not in self._outputs]

    def commit(self, clock: Mapping[str, Any]) -> Manifest:
        """Write the manifest, after everything else."""
        counts = self._counts | {_name(ref.uri): ref.rows for ref in self._outputs.values() if ref.rows is not None}
        outputs = list(self._outputs.values())
        return self.run.commit(self.stage, self._place, self.inputs(), outputs, counts, self._versions, dict(clock), self.part)

    # inside --------------------------------------------------------------------------------------------------------------

    def _read_table(self, place: int | None, name: str) -> pa.Table:
        folder = "start" if place is None else f"generation={place:04d}"
        ref = self.run.history.find(f"{folder}/{name}.parquet")
        self._inputs[ref.uri] = _plain(ref)
        return self.run.read_table(ref, name)

    def _read_adapter(self, files: list[Ref]) -> Adapter:
        """Return the adapter of these files: its weights and, where they are wanted, its moments."""
        stored, *states = files
        weights = self._arrays(stored, self._read_weights)
        return adapter_from(weights, self._arrays(states[0], self._read_state)) if states else Adapter(weights, {}, 0)

    def _arrays(self, ref: Ref, read: Callable[[Ref], Weights]) -> Weights:
        """Return the arrays of a file: those that this process holds, or what `read` returns."""
        found = self._held.find(ref, self.generation)
        if found is None:
            found = read(ref)
            self._held.hold(ref, found, self.generation)
        return found

    def _read_weights(self, ref: Ref) -> Weights:
        return StoredWeights(load(self._copies.read(ref.sha256, lambda: self.run.read_blob(ref))), ref.sha256)

    def _read_state(self, ref: Ref) -> Weights:
        return load(self.run.read_blob(ref))

    def _store_adapter(self, named: tuple[str, Adapter]) -> list[Ref]:
        """Write the files of an adapter, copy its weights to this machine, and hold what a step has made.

        Not what an operator has made: its arrays may be memory that it uses again.
        """
        adapter_id, adapter = named
        files = adapter_bytes(adapter, self._base_model, self._alpha)
        written = self.run.write_adapter_files(adapter_id, files)
        weights, ours = written[WEIGHTS_FILE]
        if ours:
            self._copies.keep(weights.sha256, files[WEIGHTS_FILE])
        state, ours_too = written[OPTIMIZER_FILE]
        if adapter.moments and ours and ours_too:
            self._held.hold(weights, StoredWeights(adapter.weights, weights.sha256), self.generation)
            self._held.hold(state, optimizer_state(adapter), self.generation)
        return [ref for ref, _ in written.values()]

    def _adapter_file(self, adapter_id: str, name: str) -> Ref:
        ref = self.run.history.find(f"adapters/{adapter_id}/{name}")
        self._inputs[ref.uri] = _plain(ref)
        return ref

    def _output(self, ref: Ref) -> None:
        self._outputs[ref.uri] = ref


def _side_by_side(do: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what `do` returns for each item, in their order. Raises what it raises."""
    with ThreadPoolExecutor(ADAPTERS_AT_ONCE) as pool:
        return list(pool.map(do, items))


def _plain(ref: Ref) -> Ref:
    """Return the reference as others name it, without the row count and the writer's stamp."""
    return replace(ref, stamp="")


def _name(uri: str) -> str:
    return uri.rpartition("/")[2].removesuffix(".parquet")
