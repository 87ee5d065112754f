"""Fork: a new run that continues from an earlier generation with other settings and copies nothing but manifests.

The new run's manifests say `"from": parent` where the parent (or its own parent) holds the artifact. The parent gets a dotted
note of the adapters that the fork uses; its retention keeps them. flows.run.retention explains why neither can miss the other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from flows.config import ConfigError, RunConfig, apply_setting, differences, dump, identity, parse, with_defaults
from flows.run.history import History
from flows.run.lease import hold
from flows.run.manifest import Manifest, Ref, digest, manifest_uri
from flows.run.resume import check_prompts
from flows.run.retention import NOTE, pin
from flows.run.run import ADAPTER_FILES, Run
from flows.storage import StoreRefused, check_run_id
from stages.core.population import population_after

FIXED = ("mode", "model.", "population.teachers", "population.students", "seeding.")
"""Settings that produced the shared artifacts and that later generations rely on."""

Versions = Callable[[RunConfig], Mapping[str, Any]]


def fork(parent: Run, run_id: str, generation: int, settings: Iterable[str], versions: Versions, clock: Mapping[str, Any]) -> Run:
    """Create run `run_id`, equal to `parent` up to and including `generation` (-1: its start), with `settings` changed after it.

    `versions` supplies what run.json records for the fork's own configuration. `populora run` trains the fork further. Call this
    again after a crash to complete the fork. Raises StoreRefused or ConfigError.
    """
    store = parent.store
    check_run_id(run_id)
    description = parent.history.description()
    if description is None:
        raise StoreRefused(f"there is no run {parent.run_id} in {store.url}")
    if run_id == parent.run_id:
        raise StoreRefused(f"a fork of run {run_id} needs a different id")
    check_prompts(parent.run_id, description)
    config = _changed(parse(description["config"]), settings, generation)
    _check_base(parent, generation)  # before anything is written
    origin = {"run": parent.run_id, "generation": generation, "head": _head_at(parent, generation)}
    with hold(store, run_id) as epoch:
        made = Run(store, run_id, epoch)
        _check_free(made, origin, config)
        _pin(parent, run_id, generation)
        made.describe(dump(config), dict(versions(config)) | {"forked_from": origin}, dict(clock))
        for manifest in _up_to(parent, generation):
            _copy(made, manifest, parent.run_id)
    return made


def _check_free(made: Run, origin: Mapping[str, Any], config: RunConfig) -> None:
    """Raise StoreRefused if the id belongs to another run; an unfinished copy of the same fork may be completed."""
    found = made.history.description()
    if found is None:
        return
    if found["versions"].get("forked_from") != origin or identity(with_defaults(found["config"])) != identity(dump(config)):
        raise StoreRefused(f"run {made.run_id} already exists in {made.store.url}; choose another id for the fork")


def _changed(config: RunConfig, settings: Iterable[str], generation: int) -> RunConfig:
    """Return the configuration with the settings applied. Raises ConfigError for settings that the shared artifacts depend on."""
    values = dump(config)
    for setting in settings:
        apply_setting(values, setting)
    changed = parse(values)
    for key in differences(dump(config), dump(changed)):
        if key.startswith(FIXED):
            raise ConfigError(f"{key}: a fork shares artifacts that were made with the old value; start a new run instead")
    if changed.generations <= generation + 1:
        raise ConfigError(f"generations: {changed.generations} leaves nothing to do after generation {generation}")
    return changed


def _check_base(parent: Run, generation: int) -> None:
    """Raise StoreRefused, naming the nearest usable point, unless the population after `generation` exists and will be kept."""
    if generation < -1 or (generation >= 0 and parent.manifest("evolve", generation) is None) or parent.manifest("start") is None:
        raise StoreRefused(f"run {parent.run_id} has not finished generation {generation}")
    retired: dict[str, set[str]] = {}
    missing = _unusable(parent, generation, retired)
    if missing:
        points = [-1, *(number for number in parent.history.generations() if parent.manifest("evolve", number))]
        usable = sorted(
            (number for number in points if not _unusable(parent, number, retired)), key=lambda number: abs(number - generation)
        )
        nearest = f"the nearest usable generation is {usable[0]}" if usable else "no generation of it is usable any more"
        raise StoreRefused(f"run {parent.run_id} cannot be forked from generation {generation}: {missing} was retired; {nearest}")


def _adapter_refs(parent: Run, generation: int) -> list[Ref]:
    if generation < 0:
        ratings, offspring = parent.read_table(None, "population"), parent.read_table(None, "population").slice(0, 0)
    else:
        ratings, offspring = parent.read_table(generation, "ratings"), parent.read_table(generation, "offspring")
    members = population_after(ratings, offspring, generation)
    return [parent.history.find(f"adapters/{member.adapter_id}/{name}") for member in members for name in ADAPTER_FILES]


def _unusable(parent: Run, generation: int, retired: dict[str, set[str]]) -> str:
    """Return the first file that the fork needs and that is removed or about to be; empty if all exist.

    `retired` caches the tombstones of each run that holds some of these files.
    """
    for ref in _adapter_refs(parent, generation):
        holder = ref.origin or parent.run_id
        if holder not in retired:
            retired[holder] = set(History(parent.store, holder).retired())
        if ref.uri in retired[holder] or not parent.store.exists(parent.history.place(ref.uri, ref.origin)):
            return ref.uri
    return ""


def _up_to(parent: Run, generation: int) -> list[Manifest]:
    """Return the manifests to share in chain order, the parts of each generation after its stages."""
    numbers: list[int | None] = [None, *(number for number in parent.history.generations() if number <= generation)]
    return [manifest for number in numbers for manifest in parent.history.of_generation(number, parts=True)]


def _copy(made: Run, manifest: Manifest, parent_id: str) -> None:
    """Commit the parent's manifest as the fork's own: another run and chain, the same work, borrowed artifacts."""
    stage, _, part = manifest.stage.partition(".parts/")

    def borrowed(refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
        return tuple(replace(ref, origin=ref.origin or parent_id, stamp="") for ref in refs)

    made.commit_as(
        manifest_uri(stage, manifest.generation, part or None),
        replace(
            manifest,
            run=made.run_id,
            previous=made.history.previous(stage, manifest.generation),
            inputs=borrowed(manifest.inputs),
            outputs=borrowed(manifest.outputs),
        ),
    )


def _head_at(parent: Run, generation: int) -> str:
    return digest(parent.history.of_generation(generation if generation >= 0 else None)[-1])


def _pin(parent: Run, run_id: str, generation: int) -> None:
    """Note what the fork uses in every run that holds some of it, then check again that all of it exists."""
    refs, store = _adapter_refs(parent, generation), parent.store
    holders = sorted({ref.origin or parent.run_id for ref in refs})
    new = [holder for holder in holders if not store.exists(f"{holder}/{NOTE}{run_id}")]
    for holder in holders:
        pin(store, holder, run_id, (ref.uri.split("/")[1] for ref in refs if (ref.origin or parent.run_id) == holder))
    try:
        _check_base(parent, generation)
    except StoreRefused:
        for holder in new:
            store.delete(f"{holder}/{NOTE}{run_id}")
        raise
