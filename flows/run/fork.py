"""Fork: a new run that continues from an earlier generation with other settings and copies nothing but manifests.

A fork can also begin inside a generation: it shares the stages before one, and computes that stage and all after it again. The
new run's manifests say `"from": parent` where the parent (or its own parent) holds the artifact. The parent gets a dotted note of
the adapters that the fork uses; its retention keeps them. flows.run.retention explains why neither can miss the other.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from flows.config import ConfigError, RunConfig, apply_setting, check_operators, differences, dump, identity, parse, with_defaults
from flows.near_names import hint
from flows.run.history import KEPT_OUT, PLACEMENT, History, check_prompts, kept_out, placement_of
from flows.run.leaking import leak_of, recorded
from flows.run.lease import hold
from flows.run.manifest import Manifest, Ref, digest, folder_of, manifest_uri, place_of, skipped
from flows.run.planned import GENERATIONS, planned_of_readable
from flows.run.retention import NOTE, pin
from flows.run.run import ADAPTER_FILES, Run
from flows.settings import REPLAYS
from flows.stages import STAGE_NAMES, stage_of
from flows.storage import Damaged, NotStored, StoreRefused, check_run_id
from flows.store.names import RUN_ID
from stages.core.population import population_after

FIXED = ("mode", "model.", "population.teachers", "population.students", "seeding.", "learning.off_policy_steps")
"""Settings that produced the shared artifacts and that later generations rely on."""

FROM_ADAPTERS = ("mode", "model.", "population.")
"""Those of them that a new run can change and still begin with what this one learned: from an exported adapter."""

CUT = ("learning.frozen", "learning.skip_zero_groups")
"""Settings that chose the samples of the parts into which `reward` cuts an update."""

Versions = Callable[[RunConfig], Mapping[str, Any]]


@dataclass(frozen=True)
class Point:
    """Where a fork leaves its parent: after `generation` (-1: the start), or inside it, before `stage`."""

    generation: int
    stage: str = ""

    @property
    def whole(self) -> int:
        """The last generation that is shared as a whole."""
        return self.generation - 1 if self.stage else self.generation

    @property
    def place(self) -> int:
        """The place in the run's total order of the first stage that the fork computes itself."""
        return place_of(self.generation, self.stage) if self.stage else place_of(self.generation + 1, STAGE_NAMES[0])

    def __str__(self) -> str:
        return f"{self.stage} of generation {self.generation}" if self.stage else f"generation {self.generation}"


def point(generation: int, stage: str = "") -> Point:
    """Return the point before `stage` of `generation`, or after `generation` without a stage. Raises ConfigError."""
    if not stage:
        return Point(generation)
    if stage not in STAGE_NAMES:
        raise ConfigError(f"stage {stage!r} is not one of {', '.join(STAGE_NAMES)}{hint(stage, STAGE_NAMES)}")
    if generation < 0:
        raise ConfigError(f"generation {generation} has no stages; the stages of a run begin with generation 0")
    return Point(generation - 1) if stage == STAGE_NAMES[0] else Point(generation, stage)


def fork(
    parent: Run,
    run_id: str,
    generation: int,
    settings: Iterable[str],
    versions: Versions,
    clock: Mapping[str, Any],
    stage: str = "",
) -> Run:
    """Create run `run_id`, equal to `parent` up to and including `generation` (-1: its start), with `settings` changed after it.

    With `stage`, the two part inside the generation: its stages before `stage` are shared, the others are computed again.
    `versions` supplies what run.json records for the fork's own configuration, and may refuse it before anything is written.
    `populora run` trains the fork further. Call this again after a crash to complete the fork. Raises StoreRefused or
    ConfigError.
    """
    at = point(generation, stage)
    store = parent.store
    check_run_id(run_id)
    description = parent.history.description()
    if description is None:
        raise StoreRefused(f"there is no run {parent.run_id} in {store.url}")
    if run_id == parent.run_id:
        raise StoreRefused(f"a fork of run {run_id} needs a different id")
    check_prompts(parent.run_id, description)
    planned = planned_of_readable(parent.history, description)
    config = _changed(parse(description["config"] | {"generations": planned}), settings, at)
    _check_base(parent, at)  # before anything is written
    origin = {"run": parent.run_id, "generation": at.generation, "head": digest(_shared(parent, at)[-1])}
    origin |= {"stage": at.stage} if at.stage else {}
    if (last := _shared(parent, at)[-1].stage) in STAGE_NAMES and stage_of(last).optional:
        origin |= {"last": last}  # nothing else tells a fork without it from one that was killed before it was copied
    inherited: dict[str, Any] = {KEPT_OUT: list(kept_out(description))}  # what is shared keeps those out
    if at.place > place_of(0, STAGE_NAMES[0]) and leak_of(description) > config.experiment.leak:
        inherited |= recorded(leak_of(description), parent.run_id)
    recorded_versions = dict(versions(config))
    _check_free(Run(store, run_id), origin, config)  # a refused fork leaves no mark in the run that has the id
    with hold(store, run_id) as epoch:
        made = Run(store, run_id, epoch)
        _check_free(made, origin, config)
        _pin(parent, run_id, at)
        where = {PLACEMENT: found} if (found := placement_of(description)) else {}
        made.describe(dump(config), recorded_versions | inherited | {"forked_from": origin}, where | dict(clock))
        for manifest in _up_to(parent, at):
            _copy(made, manifest, parent.run_id)
    return made


def _check_free(made: Run, origin: Mapping[str, Any], config: RunConfig) -> None:
    """Raise StoreRefused if the id belongs to another run; an unfinished copy of the same fork may be completed."""
    found = made.history.description()
    if found is None:
        return
    if found["versions"].get("forked_from") != origin or identity(with_defaults(found["config"])) != identity(dump(config)):
        raise StoreRefused(f"run {made.run_id} already exists in {made.store.url}; choose another id for the fork")


def _changed(config: RunConfig, settings: Iterable[str], at: Point) -> RunConfig:
    """Return the configuration with the settings applied. Raises ConfigError for settings that the shared artifacts depend on."""
    values = dump(config)
    for setting in settings:
        apply_setting(values, setting)
    try:
        changed = parse(values)
    except ConfigError:
        before = dump(config)
        known = {group: _known(value, before[group]) for group, value in values.items() if group in before}
        _check_shared(before, before | known, at)  # says more of a setting that no fork can change
        raise
    chosen = {setting.partition("=")[0].strip() for setting in settings}
    if changed.learning.gradient_checkpointing == "auto":  # a fork keeps what that meant for its parent
        changed = changed.recomputing(config.learning.gradient_checkpointing, config.learning.recompute_above)
    elif "learning.gradient_checkpointing" in chosen and "learning.recompute_above" not in chosen:
        changed = changed.recomputing(changed.learning.gradient_checkpointing)
    if any(one.startswith("evolution.") for one in chosen):
        check_operators(changed)
    _check_shared(dump(config), dump(changed), at)
    if changed.generations <= at.whole + 1:
        more = "" if "generations" in chosen else "; add --set generations=N"
        raise ConfigError(f"generations: {changed.generations} leaves nothing to do after generation {at.whole}{more}")
    return changed


def _known(values: Any, before: Any) -> Any:
    """Return a group's values without those of names that it does not have."""
    if not isinstance(values, dict) or not isinstance(before, dict):
        return values
    return {name: values.get(name, value) for name, value in before.items()}


def _check_shared(before: dict[str, Any], after: dict[str, Any], at: Point) -> None:
    """Raise ConfigError for a setting with another value that the shared artifacts depend on."""
    _check_room(before, after)
    inside = _fixed_inside(at, bool(before["strategy"]["population"] or after["strategy"]["population"]))
    for key in differences(before, after):
        if key == "engine.temperature" and before["learning"]["off_policy_steps"] and at.whole >= 0:
            raise ConfigError(f"{key}: off-policy, a fork's first update trains on shared samples; start a new run instead")
        if key.startswith(FIXED):
            how = " (docs/sharing.md#continue-from-a-runs-adapters)" if key.startswith(FROM_ADAPTERS) else ""
            raise ConfigError(f"{key}: a fork shares artifacts that were made with the old value; start a new run instead{how}")
        for names, stage in inside.items():
            if key.startswith(names):
                raise ConfigError(
                    f"{key}: the fork shares artifacts that were made with the old value; fork with --stage {stage}"
                )


def _check_room(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise ConfigError if earlier tasks would be posed again with less room than they were verified with."""
    if not any(after["solve"][key] for key in REPLAYS):
        return
    limits = [(one["engine"]["window"] or math.inf, one["solve"]["max_new_tokens"]) for one in (before, after)]
    (old_window, old_answer), (window, answer) = limits
    short = answer < old_answer
    if short or window - answer < old_window - old_answer:
        key = "solve.max_new_tokens" if short or window == old_window else "engine.window"
        raise ConfigError(
            f"{key}: earlier tasks were verified with more room and would be posed again; give at least as much, or pose none "
            "again (solve.top_up=false, solve.easy_share=0, solve.mixed_share=0)"
        )


def _fixed_inside(at: Point, by_strategy: bool) -> dict[tuple[str, ...], str]:
    """Return the settings on which artifacts of a fork's first generation depend, and the last stage at which they can change.

    An evolution strategy takes its step for the noise in the copies that wrote the rollouts: the noise must be the same.
    """
    if not at.stage or not STAGE_NAMES.index("propose") < STAGE_NAMES.index(at.stage) <= STAGE_NAMES.index("update"):
        return {}
    fixed: dict[tuple[str, ...], str] = {("strategy.", "seed") if by_strategy else ("strategy.",): "propose"}
    fixed |= {("engine.temperature",): "propose"}  # updates divide scores by it, as what wrote the samples did
    if at.stage == "solve":  # verify looked whether its tasks can be posed and answered
        fixed |= {("engine.window", "solve.max_new_tokens"): "verify"}
    return fixed | ({CUT: "reward"} if at.stage == "update" else {})


def _check_base(parent: Run, at: Point) -> None:
    """Raise StoreRefused, naming the nearest usable point, unless what the fork stands on exists and will be kept."""
    if undone := _undone(parent, at):
        raise StoreRefused(f"run {parent.run_id} has not finished {undone}")
    retired: dict[str, set[str]] = {}
    missing = _unusable(parent, at, retired)
    if missing:
        numbers = [*([] if at.stage else [-1]), *parent.history.generations()]
        points = [replace(at, generation=number) for number in numbers]
        usable = sorted(
            (one.generation for one in points if not _undone(parent, one) and not _unusable(parent, one, retired)),
            key=lambda number: abs(number - at.generation),
        )
        nearest = f"the nearest usable generation is {usable[0]}" if usable else "no generation of it is usable any more"
        raise StoreRefused(f"run {parent.run_id} cannot be forked from {at}: {missing} was retired; {nearest}")


def _undone(parent: Run, at: Point) -> str:
    """Return the first part of the run that the fork would share and that has not finished; empty if all has."""
    if at.whole < -1 or (at.whole >= 0 and parent.manifest("evolve", at.whole) is None) or parent.manifest("start") is None:
        return f"generation {at.whole}"
    needed = skipped(place_of(at.generation, STAGE_NAMES[0]) - 1, at.place) if at.stage else []
    return next((f"{stage} of generation {number}" for number, stage in needed if parent.manifest(stage, number) is None), "")


def adapter_refs(
    parent: Run, at: Point, names: Sequence[str] = ADAPTER_FILES, find: Callable[[str], Ref] | None = None
) -> list[Ref]:
    """Return files of the adapters that the first stages after that point read: the population's, or a shared update's.

    `find` returns the reference of a name; without it, the manifests are searched.
    """
    find = find or parent.history.find
    if at.whole < 0:
        ratings, offspring = parent.read_table(None, "population"), parent.read_table(None, "population").slice(0, 0)
    else:
        ratings, offspring = parent.read_table(at.whole, "ratings"), parent.read_table(at.whole, "offspring")
    adapters = {member.member_id: member.adapter_id for member in population_after(ratings, offspring, at.whole)}
    if at.stage and at.place > place_of(at.generation, "update"):
        updated = parent.manifest("update", at.generation)
        assert updated is not None, at
        made = {ref.uri.split("/")[1] for ref in updated.outputs if ref.uri.startswith("adapters/")}
        adapters |= {adapter_id.rpartition("-")[0]: adapter_id for adapter_id in made}
    return [find(f"adapters/{adapter_id}/{name}") for adapter_id in adapters.values() for name in names]


def _unusable(parent: Run, at: Point, retired: dict[str, set[str]]) -> str:
    """Return the first file that the fork needs and that is removed or about to be; empty if all exist.

    `retired` caches the tombstones of each run that holds some of these files.
    """
    for ref in adapter_refs(parent, at):
        holder = ref.origin or parent.run_id
        if holder not in retired:
            retired[holder] = set(History(parent.store, holder).retired())
        if ref.uri in retired[holder] or not parent.store.exists(parent.history.place(ref.uri, ref.origin)):
            return ref.uri
    return ""


def newest_usable(parent: Run, before: int | None, damaged: Collection[str]) -> int | None:
    """Return the newest generation (-1: the start) from which a fork can train further; None if there is none.

    It comes before generation `before`, if given, and needs none of the damaged artifacts.
    """
    description = parent.history.description()
    planned = planned_of_readable(parent.history, description) if description else 0
    retired: dict[str, set[str]] = {}
    for number in (*reversed(parent.history.generations()), -1):
        if number >= planned - 1 or (before is not None and number >= before):  # the last one leaves a fork nothing to do
            continue
        with suppress(NotStored, Damaged):
            at = Point(number)
            needed = {ref.uri for ref in adapter_refs(parent, at)} | _population_tables(number)
            if needed.isdisjoint(damaged) and not _undone(parent, at) and not _unusable(parent, at, retired):
                return number
    return None


def _population_tables(generation: int) -> set[str]:
    folder = folder_of(generation if generation >= 0 else None)
    return {f"{folder}/{name}.parquet" for name in ("ratings", "offspring", "population")}


def fixed_id(run_id: str) -> str:
    """Return a name for a fork that leaves damage behind: the run's, truncated if necessary."""
    name = f"{run_id[:34].rstrip('-')}-fixed"
    assert RUN_ID.fullmatch(name), name
    return name


def _up_to(parent: Run, at: Point) -> list[Manifest]:
    """Return the manifests to share in chain order, parts before their stage: a fork that has the stage has its parts, too."""
    last = at.generation
    numbers: list[int | None] = [None, *(number for number in parent.history.generations() if number <= last)]
    found = [manifest for number in numbers for manifest in parent.history.of_generation(number, parts=True)]
    shared = [manifest for manifest in found if place_of(manifest.generation, manifest.whole_stage) < at.place]
    return sorted(shared, key=lambda one: (place_of(one.generation, one.whole_stage), one.stage == one.whole_stage))


def _shared(parent: Run, at: Point) -> list[Manifest]:
    """Return the stages that are shared of the newest generation of which any is, in chain order."""
    found = parent.history.of_generation(at.generation if at.generation >= 0 else None)
    return [manifest for manifest in found if place_of(manifest.generation, manifest.stage) < at.place]


def _copy(made: Run, manifest: Manifest, parent_id: str) -> None:
    """Commit the parent's manifest as the fork's own: another run and chain, the same work, borrowed artifacts.

    How many generations the parent was to have says nothing about the fork.
    """
    stage, _, part = manifest.stage.partition(".parts/")

    def borrowed(refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
        return tuple(replace(ref, origin=ref.origin or parent_id, stamp="") for ref in refs)

    made.commit_as(
        manifest_uri(stage, manifest.generation, part or None),
        replace(
            manifest,
            run=made.run_id,
            previous=made.history.previous(stage, manifest.generation, part or None),
            inputs=borrowed(manifest.inputs),
            outputs=borrowed(manifest.outputs),
            clock={key: value for key, value in manifest.clock.items() if key != GENERATIONS},
        ),
    )


def _pin(parent: Run, run_id: str, at: Point) -> None:
    """Note what the fork uses in every run that holds some of it, then check again that all of it exists."""
    refs, store = adapter_refs(parent, at), parent.store
    holders = sorted({ref.origin or parent.run_id for ref in refs})
    new = [holder for holder in holders if not store.exists(f"{holder}/{NOTE}{run_id}")]
    for holder in holders:
        pin(store, holder, run_id, (ref.uri.split("/")[1] for ref in refs if (ref.origin or parent.run_id) == holder))
    try:
        _check_base(parent, at)
    except StoreRefused:
        for holder in new:
            store.delete(f"{holder}/{NOTE}{run_id}")
        raise
