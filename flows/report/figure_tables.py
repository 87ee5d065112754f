"""The condensed tables that figures are drawn from. Each is read when it is first asked for, and only the columns it needs."""

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence

import pyarrow as pa

from flows.monitoring.run_tables import SMALL, RunTables
from flows.run.history import population_age, question_of
from flows.run.manifest import Manifest, Ref, digest, folder_of
from flows.run.suite_versions import own_suites_with_versions, suite_version, version_text
from flows.storage import Damaged, NotStored
from flows.store.table_bytes import decode_table
from stages.core import tables
from stages.core.statistics.condensed import MADE_FROM, Tables, condense, joined, numbered, sources

SCORES = "scores"
Kept = MutableMapping[tuple[str, int, str], pa.Table]
"""Condensed tables of complete generations, by name, generation and digest of its newest manifest."""
_TRAINED = re.compile(r"-g(\d+)$")


class FigureTables(Mapping[str, pa.Table]):
    """Condensed tables of a run by name, joined over generations, and `scores`. `kept` is used and added to."""

    def __init__(self, watch: RunTables, manifests: Mapping[int | None, list[Manifest]], kept: Kept) -> None:
        self._watch, self._kept = watch, kept
        self._manifests = {number: found for number, found in manifests.items() if number is not None}
        self._found: Tables = {}
        self._faults: dict[tuple[int, str], str] = {}
        self._score_faults: list[str] = []
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[str]:
        return iter((*MADE_FROM, SCORES))

    def __len__(self) -> int:
        return len(MADE_FROM) + 1

    def __getitem__(self, name: str) -> pa.Table:
        with self._lock:
            if name not in self._found and name == SCORES:
                self._found[SCORES] = self._scores()
            elif name not in self._found:
                self._load([name])
            return self._found[name]

    def faults(self) -> list[str]:
        """Read what has not been read, and return sentences about what cannot be."""
        with self._lock:
            self._load([name for name in MADE_FROM if name not in self._found])
            if SCORES not in self._found:
                self._found[SCORES] = self._scores()
            return [*(self._faults[key] for key in sorted(self._faults)), *self._score_faults]

    def faults_of(self, names: Collection[str]) -> list[str]:
        """Return sentences about what could not be read of these tables, which have been asked for."""
        with self._lock:
            wanted = {*names, *sources(name for name in names if name in MADE_FROM)}
            said = [self._faults[key] for key in sorted(self._faults) if key[1] in wanted]
            return said + (self._score_faults if SCORES in names else [])

    def _load(self, names: Sequence[str]) -> None:
        parts = [self._part(number, manifests, names) for number, manifests in self._manifests.items()]
        self._found |= joined(parts, names)

    def _part(self, generation: int, manifests: list[Manifest], names: Sequence[str]) -> Tables:
        """Return the condensed tables of one generation."""
        mark = digest(manifests[-1]) if manifests else ""
        known = {name: self._kept[name, generation, mark] for name in names if (name, generation, mark) in self._kept}
        lacking = [name for name in names if name not in known]
        refs = table_refs(manifests, generation)
        wanted = {source: columns for source, columns in sources(lacking).items() if source in refs}
        read = {source: self._read(generation, refs[source], source, columns) for source, columns in wanted.items()}
        found = {source: table for source, table in read.items() if table is not None}
        made = condense(generation, found, lacking)
        if all(name in refs for name in tables.GENERATION_TABLES):
            whole = [name for name in lacking if all(source in found for source in MADE_FROM[name])]
            self._kept.update({(name, generation, mark): made[name] for name in whole})
        return known | made

    def _read(self, generation: int, ref: Ref, name: str, columns: Collection[str]) -> pa.Table | None:
        """Return columns of a table, or None after noting why it cannot be read."""
        try:
            if name in SMALL:
                return self._watch.read(generation, name)
            return decode_table(self._watch.run.read_blob(ref), tables.GENERATION_TABLES[name], ref.uri, columns, ref.rows)
        except (NotStored, Damaged) as error:
            self._faults[generation, name] = f"{ref.uri} is left out of every figure: {error}"
            return None

    def _scores(self) -> pa.Table:
        """Return SCORES of all benchmarks with `generation` (-1 outside the chain) and `trained` (generations so far).

        `question`: how they were asked, as in `question_of`; of one of the project's own suites, its version, if the run was
        scored on several. `population`: whether they are those of the population as trained,
        not of newborns or of adapters that somebody chose.
        """
        offspring = self["offspring"]
        born = dict(zip(offspring["adapter_id"].to_pylist(), offspring["generation"].to_pylist(), strict=True))
        committed = [manifest for done in self._manifests.values() for manifest in done if manifest.stage == "benchmark"]
        more = [pa.field("trained", pa.int64()), pa.field("population", pa.bool_())]
        more += [pa.field("question", pa.string()), pa.field("uri", pa.string())]
        schema = pa.schema([pa.field("generation", pa.int64()), *tables.SCORES, *more])
        parts = [schema.empty_table()]
        seen: set[str] = set()
        scored = [*committed, *self._watch.run.history.benchmarks()]
        changed = own_suites_with_versions(scored)
        for manifest in scored:
            for ref in manifest.outputs:
                if not ref.uri.endswith("scores.parquet") or ref.uri in seen:
                    continue
                seen.add(ref.uri)
                try:
                    scores = self._watch.run.read_table(ref, SCORES)
                except (NotStored, Damaged) as error:
                    self._score_faults.append(f"{ref.uri} is left out: {error}")
                    continue
                trained = [_trained(adapter, born) for adapter in scores["adapter_id"].to_pylist()]
                part = numbered(scores, -1 if manifest.generation is None else manifest.generation)
                part = part.append_column("trained", pa.array(trained, pa.int64()))
                whole = population_age(ref.uri, manifest.generation) is not None
                part = part.append_column("population", pa.array([whole] * part.num_rows, pa.bool_()))
                version = version_text(suite_version(manifest)) if ref.uri.split("/")[1] in changed else ""
                part = part.append_column("question", pa.array([question_of(manifest) or version] * part.num_rows, pa.string()))
                parts.append(part.append_column("uri", pa.array([ref.uri] * part.num_rows, pa.string())).cast(schema))
        return pa.concat_tables(parts).combine_chunks()


def table_refs(manifests: Iterable[Manifest], generation: int | None) -> dict[str, Ref]:
    """Return the tables in the folder of a generation, by name."""
    found = {}
    for ref in (ref for manifest in manifests for ref in manifest.outputs):
        folder, _, name = ref.uri.rpartition("/")
        if folder == folder_of(generation) and name.endswith(".parquet"):
            found[name.removesuffix(".parquet")] = ref
    return found


def _trained(adapter_id: str, born: Mapping[str, int]) -> int:
    """Return the number of generations that an adapter has trained, including its ancestors'.

    `s1-g0004` has 5. A newborn has its parents' count, so `s4-start` made after generation 9 has 10. A founder's start has 0.
    """
    found = _TRAINED.search(adapter_id)
    newest = int(found[1]) if found else born.get(adapter_id)
    return 0 if newest is None else newest + 1
