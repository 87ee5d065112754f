"""Where a run resumes: the walk over its manifests that decides which generation to enter, what fsck found damaged, and whether
the base model is still the one that the run began on."""

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from flows.base_model.hub import is_digest_of
from flows.config import ConfigError, RunConfig
from flows.run.fork import Point, adapter_refs, fixed_id, newest_usable
from flows.run.history import History
from flows.run.manifest import Json, Manifest, Ref, digest, manifest_uri, place_of, skipped
from flows.run.run import ADAPTER_FILES, GRADIENTS, LARGE, Run, sha256_hex
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, StoreRefused
from stages.core.lora.adapter_files import WEIGHTS_FILE

BRING_BACK = "its adapters fit the old ones only: bring those back"

MARK = ".damaged"


@dataclass(frozen=True)
class Obstacle:
    """A stage that would run again and cannot, because what it reads is gone, and the generation to fork from, if one helps."""

    problem: str
    generation: int | None

    def fork(self, run_id: str) -> str:
        """Return the words of the command that resumes the work without that stage; empty if none does."""
        number = self.generation
        return "" if number is None else f"populora fork {run_id} --generation {number} --run-id {fixed_id(run_id)}"


@dataclass
class _Gaps:
    """What a walk over the manifests found: the last place and generation of the chain, stages that lost their outputs, and
    stages that lost their manifest although later ones have theirs."""

    place: int = -2
    generation: int = 0
    lacking: list[Manifest] = field(default_factory=list)
    missing: list[tuple[int | None, str]] = field(default_factory=list)
    named: dict[str, Ref] = field(default_factory=dict)
    """What the manifests that can be read name."""

    @property
    def first(self) -> int | None:
        """The generation of the first gap; None if there is none."""
        found = [one.generation or 0 for one in self.lacking] + [generation or 0 for generation, _ in self.missing]
        return min(found, default=None)


def first_generation(run: Run) -> int:
    """Return the generation to enter: the first one with a missing manifest or output, otherwise the newest one begun.

    Walks every manifest. Raises Damaged if the chain is broken. Outputs must exist; tables are hashed by the stages of the
    generation entered, adapters by what reads them, and everything by fsck. What fsck marked as damaged counts as absent while it
    is unchanged: marked adapters are removed, since the stage that makes them only looks whether they exist. Requires the lease.

    Raises StoreRefused, and removes nothing, if a stage would run again whose adapters retention has removed.
    """
    damaged = _still_damaged(run)
    present = _present(run, damaged)
    gaps = _gaps(run, present, damaged)
    if found := _obstacle(run, present, damaged, gaps):
        remedy = found.fork(run.run_id)
        rest = (
            f"continue from what is whole with: {remedy} --store {run.store.url}"
            if remedy
            else "no generation of it can be forked"
        )
        raise StoreRefused(f"run {run.run_id} cannot resume: {found.problem}; nothing was removed; {rest}")
    for uri in damaged:
        if is_manifest(uri) or uri.startswith(LARGE):
            run.remove(uri)
    description = run.history.description() or {}
    _check_borrowed(run, description, gaps)
    return gaps.first if gaps.first is not None else _after_fork(description, gaps.generation)


def obstacle(run: Run, damaged: Collection[str]) -> Obstacle | None:
    """Return why a resume could not make again what is absent or among these damaged artifacts; None if it can."""
    try:
        present = _present(run, damaged)
        return _obstacle(run, present, damaged, _gaps(run, present, damaged))
    except Damaged:  # of the chain, or of a file that others need: a resume says so
        return None


def intact(run: Run) -> bool:
    """Return whether a resume enters the newest generation begun: no manifest is missing, and no output missing or marked.

    Nor is the manifest of a part marked; nobody reads the data of one again whose stage is complete. Walks every manifest.
    Changes nothing, and needs no lease. Raises Damaged if the chain is broken.
    """
    damaged = _still_damaged(run)
    if any(_part_of(uri) for uri in damaged):  # a walk leaves parts out
        return False
    return _gaps(run, _present(run, damaged), damaged).first is None


def _present(run: Run, damaged: Collection[str]) -> set[str]:
    """Return the names of what the run holds, and of what retention removed.

    If a file of `gc/` cannot be read, absent adapters count as removed, as nearly all are: what reads one names that file.
    """
    present = {uri.removeprefix(f"{run.run_id}/") for uri in run.store.list(f"{run.run_id}/")} | set(run.history.retired())
    if run.history.unreadable_tombstones():
        refs = (ref for manifest in run.history.walk(damaged) for ref in manifest.outputs)
        present |= {ref.uri for ref in refs if ref.uri.startswith(LARGE)}
    return present


def _gaps(run: Run, present: set[str], damaged: Collection[str]) -> _Gaps:
    """Walk over the manifests. Raises Damaged if the chain is broken before the first gap."""
    description, gaps = run.history.description(), _Gaps()
    before = digest(description) if description else ""
    try:
        for manifest in run.history.walk(damaged):
            here = place_of(manifest.generation, manifest.stage)
            gaps.missing += skipped(gaps.place, here)
            if gaps.first is None and manifest.previous != before:
                uri = manifest_uri(manifest.stage, manifest.generation)
                raise Damaged(f"{run.run_id}/{uri}", "the chain of digests is broken before it; run populora fsck to see where")
            gaps.named |= {ref.uri: ref for ref in manifest.outputs}
            before, gaps.place, gaps.generation = digest(manifest), here, manifest.generation or 0
            if _lacks(manifest, present, damaged):
                gaps.lacking.append(manifest)
    except Damaged:
        if gaps.first is None:
            raise
    return gaps


def _obstacle(run: Run, present: set[str], damaged: Collection[str], gaps: _Gaps) -> Obstacle | None:
    """Return the first stage that would run again without the adapters that it reads; None if there is none."""
    if gaps.first is None and not any(".parts/" in uri for uri in damaged):
        return None
    stored = present - set(damaged) - set(run.history.retired())
    again = list(gaps.lacking)
    lost = gaps.missing + [found for uri in damaged if (found := _part_of(uri)) is not None]
    for number in run.history.generations():
        if number >= (gaps.first or 0):
            again += _parts_again(run, number, stored, present, damaged, again)
    made = {ref.uri for manifest in again for ref in manifest.outputs}
    needs = [(manifest.generation, manifest.stage, ref) for manifest in again for ref in manifest.inputs]
    needs += [(generation, stage, ref) for generation, stage in lost for ref in _read_by(run, gaps, generation, stage)]
    for generation, stage, ref in needs:
        if not ref.uri.startswith("adapters/") or ref.uri in made:
            continue
        if ref.uri not in stored if not ref.origin else not run.store.exists(run.history.place(ref.uri, ref.origin)):
            where = "start" if generation is None else f"{stage} of generation {generation}"
            problem = f"{where} would run again, and reads {ref.uri}, which was retired"
            ahead = min((begun or 0 for begun, _ in lost), default=None)
            return Obstacle(problem, newest_usable(run, ahead, damaged))
    return None


def _parts_again(
    run: Run, generation: int, stored: set[str], present: set[str], damaged: Collection[str], again: list[Manifest]
) -> list[Manifest]:
    """Return the parts of a generation's stages that would run again: they lost outputs, or gradients that a join reads again.

    None of a complete stage, whose join reads nothing again.
    """
    there = present - set(damaged)
    joined = {manifest.stage for manifest in again if manifest.generation == generation}
    found = []
    for manifest in run.history.of_generation(generation, parts=True, without=damaged):
        whole, _, part = manifest.stage.partition(".parts/")
        gone = whole in joined and any(ref.uri.startswith(GRADIENTS) and ref.uri not in stored for ref in manifest.outputs)
        complete = whole not in joined and manifest_uri(whole, generation) in there
        if part and not complete and (gone or _lacks(manifest, present, damaged)):
            found.append(manifest)
    return found


def _part_of(uri: str) -> tuple[int, str] | None:
    """Return the generation and stage of a part's manifest; None for anything else."""
    found = re.fullmatch(r"generation=(\d{4,})/(\w+)\.parts/[^/]+\.json", uri)
    return (int(found[1]), found[2]) if found else None


def _read_by(run: Run, gaps: _Gaps, generation: int | None, stage: str) -> list[Ref]:
    """Return the adapter files that a stage whose manifest is lost would read. Those of an evolution depend on what it draws."""
    if generation is None or stage not in ("propose", "solve", "update"):
        return []
    names = ADAPTER_FILES if stage == "update" else (WEIGHTS_FILE,)
    with suppress(NotStored, Damaged, KeyError):  # what tells its population is lost, too, and made again
        return adapter_refs(run, Point(generation - 1), names, gaps.named.__getitem__)
    return []


def _check_borrowed(run: Run, description: Json, gaps: _Gaps) -> None:
    """Raise StoreRefused if a manifest that a fork borrows is missing: with the fork's own settings, that stage might differ."""
    forked = description.get("versions", {}).get("forked_from")
    if not forked:
        return
    own, last = _own(forked), forked.get("last", "")
    lost = any(place_of(generation, stage) < own for generation, stage in gaps.missing)
    if lost or skipped(gaps.place, own) or (last and run.manifest(last, int(forked["generation"])) is None):
        raise StoreRefused(f"run {run.run_id} is an unfinished fork; run the same populora fork command again")


def _own(forked: Json) -> int:
    """Return the place of the first stage that a fork computes itself."""
    borrowed, stage = int(forked["generation"]), forked.get("stage", "")
    return place_of(borrowed, stage) if stage else place_of(borrowed + 1, STAGE_NAMES[0])


def _after_fork(description: Json, generation: int) -> int:
    """Return the generation to enter, never one that a fork borrows as a whole."""
    forked = description.get("versions", {}).get("forked_from")
    if not forked:
        return generation
    borrowed = int(forked["generation"])
    return max(generation, borrowed if forked.get("stage", "") else borrowed + 1)


def mark_damaged(run: Run, uris: list[str]) -> None:
    """Note which artifacts the next start must not trust, with the digests found. Does nothing in a read-only store.

    What is whole by now needs no mark, such as what was read while it was being replaced, nor does what is absent.
    """
    found = {uri: _found(run, uri) for uri in sorted(set(uris))}
    marks = {uri: seen for uri, seen in found.items() if seen and not _whole(run, uri, seen)}
    try:
        if marks or run.store.exists(f"{run.run_id}/{MARK}"):
            run.store.replace(f"{run.run_id}/{MARK}", json.dumps(marks).encode())
    except StoreRefused:
        pass  # a run in a store that cannot be written cannot be resumed either


def _whole(run: Run, uri: str, seen: str) -> bool:
    """Return whether a manifest names this digest for the artifact."""
    with suppress(Damaged, StoreRefused):
        return any(ref.sha256 == seen for _, ref in History(run.store, run.run_id).naming(uri))
    return False


def _still_damaged(run: Run) -> set[str]:
    try:
        marks: Mapping[str, str] = json.loads(run.store.read(f"{run.run_id}/{MARK}"))
    except NotStored:
        return set()
    return {uri for uri, found in marks.items() if _found(run, uri) == found}


def _found(run: Run, uri: str) -> str:
    """Return the digest of what is stored there now; empty if nothing is."""
    try:
        return sha256_hex(run.store.read(f"{run.run_id}/{uri}"))
    except NotStored:
        return ""


def _lacks(manifest: Manifest, present: set[str], damaged: Collection[str]) -> bool:
    return any(not ref.origin and (ref.uri not in present or ref.uri in damaged) for ref in manifest.outputs)


def is_manifest(uri: str) -> bool:
    """Return whether a name is that of a manifest."""
    return uri.endswith(".json") and uri.startswith(("start/", "generation=", "benchmarks/"))


def check_base(run: Run, config: RunConfig, advice: str) -> None:
    """Raise ConfigError, which ends with the advice, if the run began on a base model with another digest.

    Shapes would still fit: scores, or a merged model, would silently be those of other weights.
    """
    start = run.manifest("start")
    if start is not None and not is_digest_of(config, start.versions):
        raise ConfigError(f"model.name: the files of {config.model.name} have changed since run {run.run_id} began; {advice}")
