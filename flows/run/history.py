"""Read access to the manifests of a run: in order, by name, and by the artifact that they name. Writes nothing."""

import re
from collections.abc import Collection, Iterator, Sequence

from flows.config import ConfigError
from flows.run import manifest as chain
from flows.run.manifest import Json, Manifest, Ref, digest, folder_of, generation_of, manifest_uri
from flows.run.run_json import read_run_json
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, Store, check_run_id

MAKERS = {
    "matches": "match",
    "proposals": "propose",
    "tasks": "verify",
    "earlier_keys": "verify",
    "earlier_rows": "verify",
    "rollouts": "solve",
    "grades": "grade",
    "traces": "grade",
    "samples": "reward",
    "groups": "reward",
    "metrics": "update",
    "ratings": "rate",
    "offspring": "evolve",
}
"""The stage whose manifest names a table: the first place to look, so that a reader need not list and read all of them."""

CHOSEN = "/chosen/"
"""In the place of a benchmark of problems chosen by id. Nothing takes its scores for a suite's."""
BENCHMARK_MANIFESTS = ("benchmark.json", "shard.json")
"""What commits the files of its own folder under `benchmarks/`: a suite's scores, or one shard's answers."""
SCORED_START = "start"
"""The folder of the scores of what every member starts with."""
OTHERS = ("births", "children")
"""Folders of a run's own scores that are not those of its population."""
KEPT_OUT = "kept_out"
"""Under `versions` in run.json: the suites whose programs the run keeps out of its seeds and of the tasks that it poses."""
PLACEMENT = "placement"
"""Under `clock` in run.json: where the run sent its stages as it began, as `populora run --place` takes it; not if nowhere."""
UNRECORDED = ("probe-dev", "probe-test")
"""What a run keeps out that an older version began, which recorded nothing."""


def kept_out(described: Json | None) -> tuple[str, ...]:
    """Return the suites whose programs a run keeps out of its seeds and its posed tasks: the same since it began."""
    return tuple((described or {}).get("versions", {}).get(KEPT_OUT, UNRECORDED))


def placement_of(described: Json | None) -> dict[str, str]:
    """Return the work pools, or the Ray cluster, to which a run sent its stages as it began; empty: nowhere, or not recorded."""
    return dict((described or {}).get("clock", {}).get(PLACEMENT, {}))


def population_age(scores: str, generation: int | None) -> int | None:
    """Return for how many generations the population was trained whose scores have this name; None for those of others.

    `generation` is that of the run's own benchmark (`benchmarks/SUITE/generation=0009/scores.parquet`), None for one made outside
    the chain (`benchmarks/SUITE/asked/generation=0009-all-…/scores.parquet`). Others are newborns and children, and adapters
    chosen by name or rank.
    """
    folder, _, name = scores.rpartition("/")
    *above, who = folder.split("/")
    if name != "scores.parquet":
        return None
    if generation is not None:
        return None if who in OTHERS else 0 if who == SCORED_START else generation + 1
    head, _, rule = who.partition("-")
    if above[:1] + above[2:] != ["benchmarks", "asked"] or rule.startswith("top"):
        return None
    number = "-1" if head == SCORED_START else head.removeprefix("generation=")
    return int(number) + 1 if number == "-1" or (head != number and number.isdecimal()) else None


OWN_WAY = "as its configuration says"
"""How a suite was asked that `question_of` says nothing of."""


def question_of(manifest: Manifest) -> str:
    """Return how a public suite was asked, such as "chat, 1,024 tokens"; empty for the project's own, asked as the run trains.

    How often and at which temperature does not count: the greedy answers are the same.
    """
    asked = manifest.versions.get("question", {})
    said = [str(asked["style"])] if "style" in asked else []
    said += [f"{asked['max_new_tokens']:,} tokens"] if "max_new_tokens" in asked else []
    return ", ".join(said)


def check_prompts(run_id: str, description: Json) -> None:
    """Raise ConfigError for a run whose prompts have another name today: later generations would be asked with other prompts."""
    if description["config"]["model"].get("style") == "chat" and "prompts" not in description["versions"]:
        raise ConfigError(f"run {run_id} began with prompts that are now called azr; start a new run with model.style=azr")


def off_policy_steps(description: Json) -> int:
    """Return how many generations before its own an update's samples are from, in the run of this run.json."""
    return int(description.get("config", {}).get("learning", {}).get("off_policy_steps", 0))


def chained_with(stage: str, off_policy_steps: int) -> str:
    """Return the stage that has the same `previous` as the parts of `stage`: propose, for an update beside the rollouts."""
    return "propose" if stage == "update" and off_policy_steps else stage


def _check_tombstones(values: Json, place: str) -> None:
    """Raise Damaged for a file of `gc/` without the entries that its readers need."""
    retired = values.get("retired")
    if not isinstance(retired, list) or not all(isinstance(one, dict) and {"uri", "reason"} <= one.keys() for one in retired):
        raise Damaged(place, "the tombstones have a missing or invalid field")


class History:
    """What a run has committed so far. Manifests never change, so they are cached once read; absent ones are looked up again."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = check_run_id(run_id)
        self._kept: dict[str, Manifest] = {}
        self._described = ""  # digest of the run.json that was read first
        self._off_policy_steps: int | None = None
        self._tombstones: dict[str, Json] = {}
        self._unreadable: dict[str, str] = {}  # files of gc/ with what is wrong with them

    def place(self, uri: str, origin: str = "") -> str:
        """Return the name in the store of an artifact of this run, or of the run it came from."""
        return f"{origin or self.run_id}/{uri}"

    def keep(self, uri: str, manifest: Manifest) -> None:
        """Remember a manifest just written."""
        self._kept[uri] = manifest

    def forget(self, uri: str) -> None:
        """Forget a manifest that was removed, or that another process may have replaced."""
        self._kept.pop(uri, None)

    def description(self) -> Json | None:
        """Return run.json, or None if the run was never started. Raises Damaged."""
        try:
            data = self.store.read(self.place("run.json"))
        except NotStored:
            return None
        self._described = self._described or chain.sha256_hex(data)
        return read_run_json(data, self.place("run.json"))

    def is_another_run(self) -> bool:
        """Return whether run.json is not the one that was read here first. Nothing overwrites one; its clock tells two starts."""
        if not self._described:
            return False
        try:
            return chain.sha256_hex(self.store.read(self.place("run.json"))) != self._described
        except NotStored:
            return True

    def manifest(self, uri: str) -> Manifest | None:
        """Return the manifest stored under `uri`, or None."""
        if uri not in self._kept:
            try:
                self._kept[uri] = chain.read_manifest(self.store.read(self.place(uri)), self.place(uri))
            except NotStored:
                return None
        return self._kept[uri]

    def generations(self) -> list[int]:
        """Return the numbers of the generations begun, in order."""
        numbers = map(generation_of, self.store.folders(f"{self.run_id}/"))
        return sorted(number for number in numbers if number is not None)

    def of_generation(
        self, generation: int | None, parts: bool = False, without: Collection[str] = frozenset()
    ) -> list[Manifest]:
        """Return the manifests of a generation (None: of `start`) in chain order, then those of parts if `parts` is set.

        Those named in `without` are not read.
        """
        prefix = self.place(folder_of(generation)) + "/"
        named = (uri.removeprefix(f"{self.run_id}/") for uri in self.store.list(prefix) if uri.endswith(".json"))
        uris = [uri for uri in named if uri not in without]
        order = {} if generation is None else {manifest_uri(stage, generation): at for at, stage in enumerate(STAGE_NAMES)}
        stages = sorted((uri for uri in uris if uri in order or generation is None), key=lambda uri: order.get(uri, 0))
        wanted = stages + sorted(uri for uri in uris if parts and ".parts/" in uri)
        return [manifest for uri in wanted if (manifest := self.manifest(uri))]

    def newest_stages(self) -> list[Manifest]:
        """Return the finished stages of the newest generation that has any, in chain order; before generation 0, the start's."""
        for generation in reversed(self.generations()):
            if finished := self.of_generation(generation):
                return finished
        return self.of_generation(None)

    def walk(self, without: Collection[str] = frozenset()) -> Iterator[Manifest]:
        """Yield every manifest of the chain, oldest first, except those named in `without`."""
        yield from self.of_generation(None, without=without)
        for generation in self.generations():
            yield from self.of_generation(generation, without=without)

    def benchmarks(self) -> list[Manifest]:
        """Return the manifests of benchmarks of whole suites, or of evenly spread problems, scored outside the chain."""
        return [found for uri, found in self._scored() if CHOSEN not in uri]

    def chosen_benchmarks(self) -> list[Manifest]:
        """Return the manifests of benchmarks of problems chosen by id. Their scores are not those of a suite."""
        return [found for uri, found in self._scored() if CHOSEN in uri]

    def _scored(self) -> list[tuple[str, Manifest]]:
        uris = [uri.removeprefix(f"{self.run_id}/") for uri in self.store.list(self.place("benchmarks/"))]
        return [(uri, found) for uri in uris if uri.endswith("/benchmark.json") and (found := self.manifest(uri))]

    def off_policy_steps(self) -> int:
        """Return how many generations before its own an update's samples are from."""
        if self._off_policy_steps is None and (description := self.description()) is not None:
            self._off_policy_steps = off_policy_steps(description)
        return self._off_policy_steps or 0

    def previous(self, stage: str, generation: int | None, part: str | None = None) -> str:
        """Return the digest of the manifest that precedes this stage (of run.json for the first one); empty if there is none."""
        if part is not None:
            stage = chained_with(stage, self.off_policy_steps())
        if generation is None:
            description = self.description()
            return digest(description) if description else ""
        before = self._stages(generation, STAGE_NAMES[: STAGE_NAMES.index(stage)])
        earlier = generation
        while not before and earlier > 0:
            earlier -= 1
            before = self._stages(earlier)
        return self._digest_of(before[-1], earlier) if before else self._digest_of("start", None)

    def head(self) -> str:
        """Return the digest of the newest manifest, which identifies the whole run."""
        for generation in reversed(self.generations()):
            if stages := self._stages(generation):
                return self._digest_of(stages[-1], generation)
        return self._digest_of("start", None)

    def naming(self, uri: str) -> Iterator[tuple[Manifest, Ref]]:
        """Yield the manifests that name `uri` as an output, the likeliest first."""
        for manifest in self._candidates(uri):
            for ref in manifest.outputs:
                if ref.uri == uri:
                    yield manifest, ref

    def find(self, uri: str) -> Ref:
        """Return the reference that a manifest holds for `uri`. Raises NotStored if none names it."""
        for _, ref in self.naming(uri):
            return ref
        raise NotStored(f"{self.place(uri)}: no manifest names it")

    def built_upon(self, manifest: Manifest) -> bool:
        """Return whether the run has committed later stages after this manifest."""
        if manifest.stage == "benchmark" and manifest.generation is None:
            return False
        own = -1 if manifest.generation is None else manifest.generation
        if any(self._stages(number) for number in reversed(self.generations()) if number > own):
            return True
        if manifest.generation is None:
            return False
        stage, _, part = manifest.stage.partition(".parts/")
        return bool(self._stages(manifest.generation, STAGE_NAMES[STAGE_NAMES.index(stage) + (0 if part else 1) :]))

    def reading(self, uri: str) -> Iterator[Ref]:
        """Yield the references by which stages and parts of this run read its own artifact `uri`.

        Nothing older than the artifact's own generation can have read it.
        """
        own = _own_generation(uri)
        for generation in (None, *self.generations()) if own is None else [n for n in self.generations() if n >= own]:
            for manifest in self.of_generation(generation, parts=True):
                yield from (ref for ref in manifest.inputs if ref.uri == uri and not ref.origin)

    def unreadable_tombstones(self) -> dict[str, str]:
        """Return the files of `gc/` that cannot be read, with what is wrong with them. What they name is in no answer here."""
        for _ in self._gone():
            pass
        return {place.removeprefix(f"{self.run_id}/"): problem for place, problem in self._unreadable.items()}

    def retired(self) -> dict[str, Json]:
        """Return tombstones by uri: what retention removed, with digest and reason, without those that a later file revokes."""
        found: dict[str, Json] = {}
        for values in reversed(list(self._gone())):
            found |= {entry["uri"]: entry for entry in values["retired"]}
            for uri in values.get("kept", ()):
                found.pop(uri, None)
        return found

    def tombstone(self, uri: str) -> Json | None:
        """Return the tombstone of one artifact, or None. Reads no further back than it must.

        Raises Damaged if there is none in what can be read, and a file of `gc/` that cannot be might have it.
        """
        for values in self._gone():
            if uri in values.get("kept", ()):
                return None
            if found := next((entry for entry in values["retired"] if entry["uri"] == uri), None):
                return dict(found)
        for place, problem in self._unreadable.items():
            raise Damaged(place, f"{problem}; so nobody can tell whether {uri} was retired or is lost")
        return None

    def last_retired(self) -> list[str]:
        """Return what the newest tombstones name and no later file revokes: only these may not all be removed yet."""
        kept: set[str] = set()
        for values in self._gone():
            kept.update(values.get("kept", ()))
            if values["retired"]:
                return [entry["uri"] for entry in values["retired"] if entry["uri"] not in kept]
        return []

    def _gone(self) -> Iterator[Json]:
        """Yield the files of `gc/`, newest first, except those that cannot be read."""
        self._unreadable.clear()
        for place in sorted(self.store.list(self.place("gc/")), key=lambda one: (len(one), one), reverse=True):  # by number
            if place not in self._tombstones:  # written once
                try:
                    values = chain.read_json(self.store.read(place), place)
                    _check_tombstones(values, place)
                except Damaged as error:
                    self._unreadable[place] = error.detail
                    continue
                self._tombstones[place] = values
            yield self._tombstones[place]

    def _stages(self, generation: int, among: Sequence[str] = STAGE_NAMES) -> list[str]:
        """Return which of these stages of a generation have a manifest, in order, from one listing."""
        stored = set(self.store.list(self.place(folder_of(generation)) + "/"))
        return [stage for stage in among if self.place(manifest_uri(stage, generation)) in stored]

    def _digest_of(self, stage: str, generation: int | None) -> str:
        """Return the digest of a stage's manifest; without a start, that of run.json, and empty without that."""
        found = self.manifest(manifest_uri(stage, generation))
        if found is None and generation is not None:
            raise NotStored(f"{self.place(manifest_uri(stage, generation))}: it was removed a moment ago")
        return digest(found) if found else self.previous("start", None)

    def _candidates(self, uri: str) -> Iterator[Manifest]:
        top, _, name = uri.partition("/")
        if (generation := generation_of(top)) is not None:
            maker = MAKERS.get(name.removesuffix(".parquet"), "")
            if maker and (likeliest := self.manifest(manifest_uri(maker, generation))):
                yield likeliest
            yield from self.of_generation(generation, parts=True)
            return
        if top == "benchmarks":
            folder = uri.rpartition("/")[0]
            yield from (found for own in BENCHMARK_MANIFESTS if (found := self.manifest(f"{folder}/{own}")))
            yield from (found for _, found in self._scored())
        if top == "adapters":  # t0-g0007 is of generation 7, and t0-start most likely of the start: no need to search the run
            made = name.partition("/")[0].rpartition("-")[2]
            if (number := _number(made)) is not None:
                if likeliest := self.manifest(manifest_uri("update", number)):
                    yield likeliest
                yield from self.of_generation(number, parts=True)
                yield from self.of_generation(None)
                return
            if made == "start":
                yield from self.of_generation(None)
        if top == "gradients":
            if (number := _number(name.partition("/")[0])) is not None:
                yield from self.of_generation(number, parts=True)
            return
        if top != "start":
            for generation in reversed(self.generations()):
                yield from self.of_generation(generation, parts=True)
        yield from self.of_generation(None)


def _own_generation(uri: str) -> int | None:
    """Return the generation that made `generation=0007/…`, `adapters/t0-g0007/…` or `gradients/g0007/…`; None for any other."""
    top, _, name = uri.partition("/")
    if top in ("adapters", "gradients"):
        return _number(name.partition("/")[0].rpartition("-")[2])
    return generation_of(top)


def _number(name: str) -> int | None:
    """Return the generation in a name like `g0007`; None for any other name."""
    found = re.fullmatch(r"g([0-9]{4,9})", name)
    return int(found[1]) if found else None
