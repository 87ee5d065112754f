"""Retention: which adapter files a run keeps, and the tombstones of those that it lets go.

8 members at 7B shapes write about 10 GB a generation. Kept are the optimizer states of the newest generations and of every 20th,
the weights of every 5th, of births, deaths and benchmarks, and whatever a fork stands on; tables are always kept. A tombstone
(`gc/0001.json`) is written before anything is removed, so that fsck, lineage and resume read *retired*, never *missing*.

A fork may begin at any moment, without this run's lease. It pins what it stands on, and only then looks whether it is there and
has no tombstone; retention writes the tombstone, and only then looks for pins, before each removal. So one sees the other.
What was pinned in between stays, and a later `gc/` file takes its tombstone back (`kept`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flows.run.manifest import SCHEMA, Manifest, Ref, readable_json
from flows.run.run import Run
from flows.run.scan import RunScan
from flows.storage import NotStored, Store, StoreRefused
from stages.core.lora.adapter_files import CONFIG_FILE, OPTIMIZER_FILE
from stages.core.population import population_after

GIGABYTE = 1e9
NOTE = ".fork-"  # a dotted note per fork in the run that it borrows from


@dataclass(frozen=True)
class RetentionPolicy:
    """What is kept; `every` counts generations as evolution does: every 5th are numbers 4, 9, 14, …"""

    newest: int = 2
    optimizer_every: int = 20
    adapter_every: int = 5


@dataclass(frozen=True)
class Retirement:
    """A file that goes, why, and how many bytes that frees."""

    ref: Ref
    reason: str
    size: int


def retire(run: Run, policy: RetentionPolicy, clock: Mapping[str, Any], generation: int | None = None) -> list[Retirement]:
    """Notes and removes what the policy lets go once `generation` (default: the newest whole one) is done. Needs the lease."""
    present = set(run.store.list(run.history.place("adapters/")))
    rest = [uri for uri in run.history.retired() if run.history.place(uri) in present]
    _remove_unpinned(run, rest, clock)  # of an attempt that was killed after its tombstone
    going = plan(run, policy, generation)
    if not going:
        return []
    entries = [{"uri": one.ref.uri, "sha256": one.ref.sha256, "reason": one.reason} for one in going]
    _entomb(run, {"schema": SCHEMA, "retired": entries, "clock": dict(clock)})
    kept = _remove_unpinned(run, [one.ref.uri for one in going], clock)
    return [one for one in going if one.ref.uri not in kept]


def plan(run: Run, policy: RetentionPolicy, generation: int | None = None) -> list[Retirement]:
    """What would be retired now; nothing is changed."""
    whole = [number for number in run.history.generations() if run.manifest("evolve", number) is not None]
    if generation is not None:
        whole = [number for number in whole if number <= generation]
    if not whole:
        return []
    needed = pinned(run).union(*(_population(run, number) for number in whole[-policy.newest :]))
    telling = _births_and_deaths(run, whole) | _benchmarked(run)
    gone = run.history.retired()
    going = []
    for manifest, ref in _own_adapter_files(run, whole[-1]):
        reason = _reason(manifest, ref, needed, telling, policy)
        if reason and ref.uri not in gone:
            going.append(Retirement(ref, reason, _size(run, ref)))
    return going


def unnamed(survey: RunScan) -> list[str]:
    """Data that no manifest names: debris of killed attempts, or of one still at work."""
    named = {ref.uri for manifest in survey.manifests.values() for ref in manifest.outputs} | set(survey.manifests) | {"run.json"}
    uris = (uri.removeprefix(f"{survey.run.run_id}/") for uri in survey.run.store.list(f"{survey.run.run_id}/"))
    return [uri for uri in uris if uri not in named and not uri.startswith("gc/")]


def expected_bytes(
    policy: RetentionPolicy | None,
    generations: int,
    members: int,
    weights: int,
    optimizer: int,
    tables: int,
    births: int,
    benchmarks: int,
) -> int:
    """Bytes at the end of a run whose adapters have so many bytes of weights and optimizer state, tables a generation.

    `births` and `benchmarks` are how many there will be in all; without a policy everything is kept.
    """
    start = members * weights + generations * tables
    if policy is None:
        return start + generations * members * (weights + optimizer) + births * weights
    optimizers = members * min(generations, policy.newest + generations // policy.optimizer_every)
    steady = members * min(generations, policy.newest + generations // policy.adapter_every + benchmarks)
    return start + optimizers * optimizer + (steady + 2 * births) * weights


def check_room(store: Store, needed: int) -> None:
    """Raises StoreRefused when the store says how much is free and it is less than a run will need."""
    free = store.free()
    if free is not None and free < needed:
        raise StoreRefused(
            f"store {store.url}: {free / GIGABYTE:.1f} GB are free and the run will need about {needed / GIGABYTE:.1f} GB; "
            "choose another --store, fewer generations, or keep less"
        )


def _reason(manifest: Manifest, ref: Ref, needed: set[str], telling: set[str], policy: RetentionPolicy) -> str:
    """Why a file may go; empty when it stays."""
    adapter_id, name = ref.uri.split("/")[1:3]
    if manifest.generation is None or manifest.stage == "evolve" or name == CONFIG_FILE or adapter_id in needed:
        return ""
    number = manifest.generation + 1
    if number % policy.optimizer_every == 0:
        return ""
    if name == OPTIMIZER_FILE:
        return f"optimizer state older than {policy.newest} generations, not of every {policy.optimizer_every}th"
    if number % policy.adapter_every == 0 or adapter_id in telling:
        return ""
    return f"weights older than {policy.newest} generations, not of every {policy.adapter_every}th, a death or a benchmark"


def _own_adapter_files(run: Run, newest: int) -> Iterator[tuple[Manifest, Ref]]:
    """Adapter files that the chain names up to a generation, those that a fork borrows left out."""
    for manifest in run.history.walk():
        if manifest.generation is None or manifest.generation <= newest:
            yield from ((manifest, ref) for ref in manifest.outputs if ref.uri.startswith("adapters/") and not ref.origin)


def _population(run: Run, generation: int) -> set[str]:
    """The weights with which members play on after a generation."""
    members = population_after(run.read_table(generation, "ratings"), run.read_table(generation, "offspring"), generation)
    return {member.adapter_id for member in members}


def _births_and_deaths(run: Run, whole: list[int]) -> set[str]:
    """The last weights of members that were replaced (those of births are evolution's own output, and always stay)."""
    found = set()
    for generation in whole:
        replaced = set(run.read_table(generation, "offspring")["replaces"].to_pylist())
        if replaced:
            rows = run.read_table(generation, "ratings").to_pylist()
            found |= {row["next_adapter_id"] for row in rows if row["member_id"] in replaced}
    return found


def _benchmarked(run: Run) -> set[str]:
    """Adapters that a benchmark, in the run or beside it, has scored."""
    manifests = [one for one in run.history.walk() if one.stage == "benchmark"] + run.history.benchmarks()
    return {ref.uri.split("/")[1] for one in manifests for ref in one.inputs if ref.uri.startswith("adapters/")}


def _remove_unpinned(run: Run, uris: list[str], clock: Mapping[str, Any]) -> list[str]:
    """Removes adapter files that have a tombstone; those that a fork pinned meanwhile are kept, and returned."""
    kept = []
    for uri in uris:
        if uri.split("/")[1] in pinned(run):
            kept.append(uri)
        else:
            run.remove(uri)
    if kept:
        _entomb(run, {"schema": SCHEMA, "retired": [], "kept": kept, "clock": dict(clock)})
    return kept


def pin(store: Store, holder: str, fork_id: str, adapters: Iterable[str]) -> None:
    """Notes in run `holder` that a fork stands on these adapters, besides those that it has pinned there already."""
    before = _note(store, f"{holder}/{NOTE}{fork_id}")
    wanted = before | set(adapters)
    if wanted != before:
        store.replace(f"{holder}/{NOTE}{fork_id}", "\n".join(sorted(wanted)).encode())


def pinned(run: Run) -> set[str]:
    """Adapters of this run that forks stand on."""
    notes = run.store.list(run.history.place(NOTE), hidden=True)
    return set().union(*(_note(run.store, note) for note in notes))


def _note(store: Store, uri: str) -> set[str]:
    try:
        return set(store.read(uri).decode().split())
    except NotStored:
        return set()


def _size(run: Run, ref: Ref) -> int:
    try:
        return run.store.size(run.history.place(ref.uri))
    except NotStored:
        return 0


def _entomb(run: Run, tombstone: Mapping[str, Any]) -> None:
    """Writes the next `gc/` file."""
    number = 1 + len(run.store.list(run.history.place("gc/")))
    while not run.store.create(run.history.place(f"gc/{number:04d}.json"), readable_json(tombstone)):
        number += 1
