"""Where a run resumes: the walk over its manifests that decides which generation to enter, and what fsck found damaged."""

import json
from collections.abc import Mapping

from flows.config import ConfigError
from flows.run.manifest import Json, Manifest, digest, manifest_uri, place_of, skipped
from flows.run.run import LARGE, Run, sha256_hex
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, StoreRefused

MARK = ".damaged"


def check_prompts(run_id: str, description: Json) -> None:
    """Raise ConfigError for a run whose prompts have another name today: later generations would be asked with other prompts."""
    if description["config"]["model"].get("style") == "chat" and "prompts" not in description["versions"]:
        raise ConfigError(f"run {run_id} began with prompts that are now called azr; start a new run with model.style=azr")


def first_generation(run: Run) -> int:
    """Return the generation to enter: the first one with a missing manifest or output, otherwise the newest one begun.

    Walks every manifest. Raises Damaged if the chain is broken. Outputs must exist; tables are hashed by the stages of the
    generation entered, adapters by what reads them, and everything by fsck. What fsck marked as damaged counts as absent while it
    is unchanged: marked adapters are removed, since the stage that makes them only looks whether they exist. Requires the lease.
    """
    damaged = _still_damaged(run)
    for uri in damaged:
        if _is_manifest(uri) or uri.startswith(LARGE):
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
            raise Damaged(f"{run.run_id}/{uri}", "the chain of digests is broken before it; run populora fsck to see where")
        before, place, generation = digest(manifest), place_of(manifest.generation, manifest.stage), manifest.generation or 0
        if _lacks(manifest, present, damaged):
            return generation
    return _after_fork(run, description or {}, place, generation)


def _after_fork(run: Run, description: Json, place: int, generation: int) -> int:
    """Return the generation to enter, never one that a fork borrows: with its own settings those stages might differ."""
    forked = description.get("versions", {}).get("forked_from")
    if not forked:
        return generation
    borrowed, stage = int(forked["generation"]), forked.get("stage", "")
    own = place_of(borrowed, stage) if stage else place_of(borrowed + 1, STAGE_NAMES[0])  # the first stage that is its own
    if skipped(place, own):
        raise StoreRefused(f"run {run.run_id} is an unfinished fork; run the same populora fork command again")
    return max(generation, borrowed if stage else borrowed + 1)


def mark_damaged(run: Run, uris: list[str]) -> None:
    """Note which artifacts the next start must not trust, with the digests found. Does nothing in a read-only store."""
    marks = {uri: _found(run, uri) for uri in sorted(set(uris))}
    try:
        if marks or run.store.exists(f"{run.run_id}/{MARK}"):
            run.store.replace(f"{run.run_id}/{MARK}", json.dumps(marks).encode())
    except StoreRefused:
        pass  # a run in a store that cannot be written cannot be resumed either


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


def _lacks(manifest: Manifest, present: set[str], damaged: set[str]) -> bool:
    return any(not ref.origin and (ref.uri not in present or ref.uri in damaged) for ref in manifest.outputs)


def _is_manifest(uri: str) -> bool:
    return uri.endswith(".json") and uri.startswith(("start/", "generation=", "benchmarks/"))
