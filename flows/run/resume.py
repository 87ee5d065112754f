"""Where a run goes on: the walk over its manifests that decides which generation to enter, and what fsck found to be damaged."""

import json
from collections.abc import Mapping

from flows.run.manifest import Json, Manifest, digest, manifest_uri, place_of, skipped
from flows.run.run import Run, sha256_hex
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, StoreRefused

MARK = ".damaged"


def first_generation(run: Run) -> int:
    """The generation to enter: the first one that lacks a manifest or an output, otherwise the newest one begun.

    Walks every manifest. The chain must hold, or Damaged is raised. Outputs must be there; their bytes are hashed by the stages
    of the generation entered, and by fsck: what it marked as damaged counts as absent while it is still so. Needs the lease.
    """
    damaged = _still_damaged(run)
    for uri in damaged:
        if _is_manifest(uri):
            run.remove(uri)
    present = {uri.removeprefix(f"{run.run_id}/") for uri in run.store.list(f"{run.run_id}/")} | set(run.history.retired())
    description = run.history.description()
    before, place, generation = digest(description) if description else "", -2, 0
    for manifest in run.history.walk():
        missing = skipped(place, place_of(manifest.generation, manifest.stage))
        if missing:
            return missing[0][0] or 0
        if manifest.previous != before:
            uri = manifest_uri(manifest.stage, manifest.generation)
            raise Damaged(f"{run.run_id}/{uri}", "the chain of digests is broken before it; populora fsck says where")
        before, place, generation = digest(manifest), place_of(manifest.generation, manifest.stage), manifest.generation or 0
        if _lacks(manifest, present, damaged):
            return generation
    return _after_fork(run, description or {}, place, generation)


def _after_fork(run: Run, description: Json, place: int, generation: int) -> int:
    """A fork never enters the generations that it borrows: with its own settings their stages might be other ones."""
    forked = description.get("versions", {}).get("forked_from")
    if not forked:
        return generation
    borrowed = int(forked["generation"])
    if place < (place_of(borrowed, STAGE_NAMES[-1]) if borrowed >= 0 else place_of(None, "start")):
        raise StoreRefused(f"run {run.run_id} is a fork that was not finished; give the same populora fork again")
    return max(generation, borrowed + 1)


def mark_damaged(run: Run, uris: list[str]) -> None:
    """Notes, with the digests of what was found, which artifacts the next start must not trust. Read-only stores go without."""
    marks = {uri: _found(run, uri) for uri in sorted(set(uris))}
    try:
        if marks or run.store.exists(f"{run.run_id}/{MARK}"):
            run.store.replace(f"{run.run_id}/{MARK}", json.dumps(marks).encode())
    except StoreRefused:
        pass  # nobody can go on with a run in a store that cannot be written


def _still_damaged(run: Run) -> set[str]:
    try:
        marks: Mapping[str, str] = json.loads(run.store.read(f"{run.run_id}/{MARK}"))
    except NotStored:
        return set()
    return {uri for uri, found in marks.items() if _found(run, uri) == found}


def _found(run: Run, uri: str) -> str:
    """The digest of what lies there now; empty when nothing does."""
    try:
        return sha256_hex(run.store.read(f"{run.run_id}/{uri}"))
    except NotStored:
        return ""


def _lacks(manifest: Manifest, present: set[str], damaged: set[str]) -> bool:
    return any(not ref.origin and (ref.uri not in present or ref.uri in damaged) for ref in manifest.outputs)


def _is_manifest(uri: str) -> bool:
    return uri.endswith(".json") and uri.startswith(("start/", "generation=", "benchmarks/"))
