"""Retention: which adapter files a run keeps, and the tombstones of those that it removes.

8 members at 7B shapes write about 10 GB per generation. A run keeps the optimizer states of the newest generations and of every
20th, the weights of every 5th, of births, deaths and benchmarks, and whatever a fork uses; tables are always kept. The gradients
that the parts of an update cut by rows hand to its join go as soon as the generation is complete. A tombstone (`gc/0001.json`) is
written before anything is removed, so that fsck, lineage and resume report *retired*, never *missing*.

A fork may begin at any moment, without this run's lease. It pins what it uses, and only then checks that it exists and has no
tombstone. Retention writes the tombstone, and only then looks for pins, before each removal. So one always sees the other.
What was pinned in between stays, and a later `gc/` file revokes its tombstone (`kept`). A benchmark pins the weights that it
scores, and takes its note back once its manifest names them; that of a killed one counts for SCORING_DAYS.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from flows.config import RunConfig
from flows.run.manifest import SCHEMA, Manifest, Ref, readable_json
from flows.run.run import GRADIENTS, LARGE, Run
from flows.run.scan import RunScan
from flows.storage import NotStored, Store, StoreRefused, StoreUnavailable
from stages.core.lora.adapter_files import CONFIG_FILE, OPTIMIZER_FILE, WEIGHTS_FILE
from stages.core.population import population_after

GIGABYTE = 1e9
NOTE = ".fork-"  # one dotted note per fork, in the run that it borrows from
SCORING = ".scoring-"  # one per benchmark at work, in the run that holds the adapters
SCORING_DAYS = 7.0
_DAY = 86400.0


@dataclass(frozen=True)
class RetentionPolicy:
    """What is kept. `every` counts generations as evolution does: every 5th means numbers 4, 9, 14, …

    A generation is kept with the weights and states of all its members, also of one that took its last step before.
    """

    newest: int = 2
    optimizer_every: int = 20
    adapter_every: int = 5


@dataclass(frozen=True)
class Retirement:
    """A file to remove, the reason, and how many bytes that frees."""

    ref: Ref
    reason: str
    size: int


@dataclass(frozen=True)
class GenerationAdapters:
    """What retention needs to know of a complete generation: its adapter files and gradients, the weights with which members
    continue, replaced members and benchmarked adapters. A file comes with the manifest of the stage that wrote it, a gradient
    with that of the stage that read it."""

    files: tuple[tuple[Manifest, Ref], ...]
    population: frozenset[str]
    deaths: frozenset[str]
    benchmarked: frozenset[str]


@dataclass(frozen=True)
class Pins:
    """Adapters of a run that others use: forks with all their files, benchmarks at work only the weights."""

    forked: frozenset[str]
    scored: frozenset[str]

    def keep(self, uri: str) -> bool:
        """Return whether an adapter's file must stay."""
        adapter_id, name = uri.split("/")[1:3]
        return adapter_id in self.forked or (name == WEIGHTS_FILE and adapter_id in self.scored)


EVERYTHING = RetentionPolicy(newest=1, optimizer_every=1, adapter_every=1)
"""Only gradients go."""

Known = dict[int, GenerationAdapters]
"""Complete generations that were read before, by number. They never change, so a session reads each one once."""


def retire(
    run: Run, policy: RetentionPolicy, clock: Mapping[str, Any], generation: int | None = None, known: Known | None = None
) -> list[Retirement]:
    """Note and remove what the policy drops once `generation` (default: the newest complete one) is done. Requires the lease.

    `known` holds what earlier calls have read, and is extended.
    """
    present = _present(run)
    rest = [uri for uri in run.history.last_retired() if uri in present]
    kept = _remove_unpinned(run, rest, clock, _benchmarked(run) if rest else set())  # left by an attempt that was killed then
    left = {uri: size for uri, size in present.items() if uri not in rest or uri in kept}
    going = _planned(run, policy, generation, {} if known is None else known, left)  # a long run's listing is long: only one
    if not going:
        return []
    entries = [{"uri": one.ref.uri, "sha256": one.ref.sha256, "reason": one.reason} for one in going]
    _entomb(run, {"schema": SCHEMA, "retired": entries, "clock": dict(clock)})
    kept = _remove_unpinned(run, [one.ref.uri for one in going], clock)
    return [one for one in going if one.ref.uri not in kept]


def plan(run: Run, policy: RetentionPolicy, generation: int | None = None, known: Known | None = None) -> list[Retirement]:
    """Return what would be retired now; change nothing in the store."""
    return _planned(run, policy, generation, {} if known is None else known, _present(run))


def _planned(
    run: Run, policy: RetentionPolicy, generation: int | None, known: Known, present: Mapping[str, int]
) -> list[Retirement]:
    """Return which of the files that are present would be retired, with their bytes.

    Only generations since the oldest one with a file that may ever go are looked at: what came before can neither make a younger
    file go nor keep it.
    """
    open_since = min((made for uri in present if (made := _undecided_since(uri, policy)) is not None), default=None)
    if open_since is None:
        return []
    begun = [number for number in run.history.generations() if number >= open_since]
    whole = [number for number in begun if number in known or run.manifest("evolve", number) is not None]
    if generation is not None:
        whole = [number for number in whole if number <= generation]
    if not whole:
        return []
    known.update({number: _adapters_of(run, number) for number in whole if number not in known})
    with_states = [number for number in whole if _kept_for_good(number, OPTIMIZER_FILE, policy)] + whole[-policy.newest :]
    pins = pins_of(run)  # before the benchmarks: one that ends meanwhile has its manifest before it drops its note
    needed = pins.forked.union(*(known[number].population for number in with_states))
    telling = pins.scored | _benchmarked(run)
    telling = telling.union(*(known[number].deaths | known[number].benchmarked for number in whole))
    telling = telling.union(*(known[number].population for number in whole if _kept_for_good(number, WEIGHTS_FILE, policy)))
    for number in set(begun) - set(whole):
        telling |= _scored(run.history.of_generation(number))
    going = []
    for manifest, ref in (one for number in whole for one in known[number].files):
        reason = _reason(manifest, ref, needed, telling, policy)
        if reason and ref.uri in present:
            going.append(Retirement(ref, reason, present[ref.uri]))
    return going


def unnamed(survey: RunScan) -> list[str]:
    """Return data that no manifest names: debris of killed attempts, or of one that is still running."""
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
    """Return the bytes at the end of a run, from its bytes of weights and optimizer state per adapter and tables per generation.

    `births` and `benchmarks` are totals for the run; without a policy everything is kept.
    """
    start = members * weights + generations * tables
    if policy is None:
        return start + generations * members * (weights + optimizer) + births * weights
    optimizers = members * min(generations, policy.newest + generations // policy.optimizer_every)
    steady = members * min(generations, policy.newest + generations // policy.adapter_every + benchmarks)
    return start + optimizers * optimizer + (steady + 2 * births) * weights


def forkable(policy: RetentionPolicy | None, generations: int) -> list[int]:
    """Return the generations from which a finished run of so many can be forked: all states of their optimizers stay.

    Without a policy that is every generation. -1 is the start. The last one is left out: a fork would have nothing to do.
    """
    inside = range(generations - 1)
    if policy is None:
        return [-1, *inside]
    return [-1, *(one for one in inside if _kept_for_good(one, OPTIMIZER_FILE, policy) or one >= generations - policy.newest)]


def policy_of(config: RunConfig) -> RetentionPolicy | None:
    """Return the policy of a run; None if it keeps everything."""
    rule = config.retention
    return RetentionPolicy(rule.newest, rule.optimizer_every, rule.adapter_every) if rule.on else None


def check_room(store: Store, at_end: Mapping[str, int]) -> None:
    """Raise StoreRefused if the store reports its free space and it is less than the runs will still need.

    `at_end` holds the bytes of each run at its end, by run id. What a run has stored already is not needed again.
    """
    free = store.free()
    if free is None:
        return
    needed = sum(max(0, size - sum(store.sizes(f"{run_id}/").values())) for run_id, size in at_end.items())
    if free < needed:
        raise StoreRefused(
            f"store {store.url}: {free / GIGABYTE:.1f} GB are free, but the run will need about {needed / GIGABYTE:.1f} GB; "
            "choose another --store, fewer generations, or keep less"
        )


def _reason(manifest: Manifest, ref: Ref, needed: Set[str], telling: Set[str], policy: RetentionPolicy) -> str:
    """Return why a file may be removed; empty if it stays."""
    if ref.uri.startswith(GRADIENTS):
        return "gradients of a complete update"
    adapter_id, name = ref.uri.split("/")[1:3]
    if manifest.generation is None or manifest.stage == "evolve" or name == CONFIG_FILE or adapter_id in needed:
        return ""
    if _kept_for_good(manifest.generation, name, policy):
        return ""
    if name == OPTIMIZER_FILE:
        return f"optimizer state older than {_generations(policy.newest)}, not of every {policy.optimizer_every}th"
    if adapter_id in telling:
        return ""
    return f"weights older than {_generations(policy.newest)}, not of every {policy.adapter_every}th, a death or a benchmark"


def _generations(count: int) -> str:
    return "1 generation" if count == 1 else f"{count} generations"


def _kept_for_good(generation: int, name: str, policy: RetentionPolicy) -> bool:
    """Return whether the number of its generation alone decides that a file stays."""
    number = generation + 1
    return number % policy.optimizer_every == 0 or (name != OPTIMIZER_FILE and number % policy.adapter_every == 0)


def _undecided_since(uri: str, policy: RetentionPolicy) -> int | None:
    """Return the generation that made a stored adapter file (`adapters/t0-g0007/…`) or gradient (`gradients/g0007/…`).

    None if it stays whatever happens. A name that does not tell counts as made in generation 0, so that everything is looked at.
    A stray file in `adapters/` itself belongs to no adapter.
    """
    if uri.count("/") < 2:
        return None
    adapter_id, name = uri.split("/")[1:3]
    made = adapter_id.rpartition("-")[2]
    if uri.startswith(GRADIENTS):
        return int(made[1:]) if made[1:].isdecimal() else 0
    if made == "start" or name == CONFIG_FILE:
        return None
    generation = int(made[1:]) if made[:1] == "g" and made[1:].isdecimal() else 0
    return None if _kept_for_good(generation, name, policy) else generation


def _present(run: Run) -> dict[str, int]:
    """Return the run's own adapter files and gradients with their bytes, in a listing each."""
    prefix = run.history.place("")
    listed = [run.store.sizes(run.history.place(folder)) for folder in LARGE]
    return {place.removeprefix(prefix): size for sizes in listed for place, size in sizes.items()}


def _adapters_of(run: Run, generation: int) -> GenerationAdapters:
    """Read a complete generation. Files that a fork borrows are not its own."""
    manifests = run.history.of_generation(generation)
    named = [(manifest, ref) for manifest in manifests for ref in manifest.outputs if ref.uri.startswith("adapters/")]
    named += [(manifest, ref) for manifest in manifests for ref in manifest.inputs if ref.uri.startswith(GRADIENTS)]
    files = tuple((manifest, ref) for manifest, ref in named if not ref.origin)
    ratings, offspring = run.read_table(generation, "ratings"), run.read_table(generation, "offspring")
    population = frozenset(member.adapter_id for member in population_after(ratings, offspring, generation))
    # the last weights of replaced members; those of births are evolution's own output and always stay
    replaced = set(offspring["replaces"].to_pylist())
    deaths = frozenset(row["next_adapter_id"] for row in ratings.to_pylist() if row["member_id"] in replaced)
    return GenerationAdapters(files, population, deaths, frozenset(_scored(manifests)))


def _scored(manifests: Iterable[Manifest]) -> set[str]:
    """Return the adapters that a benchmark among these stages has scored, in the run or next to it."""
    found = [ref for manifest in manifests if manifest.stage == "benchmark" for ref in manifest.inputs]
    return {ref.uri.split("/")[1] for ref in found if ref.uri.startswith("adapters/")}


def _benchmarked(run: Run) -> set[str]:
    """Return the adapters that benchmarks next to the run have scored."""
    return _scored(run.history.benchmarks() + run.history.chosen_benchmarks())


def _remove_unpinned(run: Run, uris: list[str], clock: Mapping[str, Any], scored: Set[str] = frozenset()) -> list[str]:
    """Remove files that have a tombstone. Keep and return those of adapters that others have pinned meanwhile.

    Of adapters that were `scored` since the tombstone was written, the weights stay.
    """
    kept = []
    for uri in uris:
        pins = pins_of(run)
        if not uri.startswith(GRADIENTS) and Pins(pins.forked, pins.scored | scored).keep(uri):
            kept.append(uri)
        else:
            run.remove(uri)
    if kept:
        _entomb(run, {"schema": SCHEMA, "retired": [], "kept": kept, "clock": dict(clock)})
    return kept


def pin(store: Store, holder: str, fork_id: str, adapters: Iterable[str]) -> None:
    """Note in run `holder` that a fork uses these adapters, in addition to those it has already pinned there."""
    before = _note(store, f"{holder}/{NOTE}{fork_id}")
    wanted = before | set(adapters)
    if wanted != before:
        store.replace(f"{holder}/{NOTE}{fork_id}", "\n".join(sorted(wanted)).encode())


@contextmanager
def scoring(run: Run, what: str, adapter_ids: Iterable[str], now: Callable[[], float] = time.time) -> Iterator[None]:
    """Keep the weights of these adapters while the block reads and scores them, and commits. `what` names the benchmark.

    Another attempt of a killed benchmark takes over its note. Where no note may be written, no scores may be either.
    """
    of_holder = defaultdict[str, list[str]](list)
    for adapter_id in adapter_ids:
        ref = run.history.find(f"adapters/{adapter_id}/{WEIGHTS_FILE}")
        of_holder[ref.origin or run.run_id].append(adapter_id)
    name = f"{SCORING}{hashlib.sha256(f'{run.run_id} {what}'.encode()).hexdigest()[:16]}"
    with suppress(StoreRefused):
        for holder, names in of_holder.items():
            run.store.replace(f"{holder}/{name}", json.dumps({"since": now(), "adapters": sorted(names)}).encode())
    try:
        yield
    finally:
        with suppress(StoreRefused, StoreUnavailable):  # the note ends by itself
            for holder in of_holder:
                run.store.delete(f"{holder}/{name}")


def pins_of(run: Run, now: Callable[[], float] = time.time) -> Pins:
    """Return what others use of this run, from one listing of its notes."""
    notes = run.store.list(run.history.place("."), hidden=True)
    forks = (_note(run.store, uri) for uri in notes if uri.startswith(run.history.place(NOTE)))
    benchmarks = (_at_work(run.store, uri, now()) for uri in notes if uri.startswith(run.history.place(SCORING)))
    return Pins(frozenset().union(*forks), frozenset().union(*benchmarks))


def _at_work(store: Store, uri: str, now: float) -> set[str]:
    """Return the adapters in the note of a benchmark; none if it is so old that its benchmark must have been killed."""
    try:
        note = json.loads(store.read(uri))
    except NotStored:
        return set()
    return set(note["adapters"]) if now - note["since"] < SCORING_DAYS * _DAY else set()


def _note(store: Store, uri: str) -> set[str]:
    try:
        return set(store.read(uri).decode().split())
    except NotStored:
        return set()


def _entomb(run: Run, tombstone: Mapping[str, Any]) -> None:
    """Write the next `gc/` file."""
    number = 1 + len(run.store.list(run.history.place("gc/")))
    while not run.store.create(run.history.place(f"gc/{number:04d}.json"), readable_json(tombstone)):
        number += 1
