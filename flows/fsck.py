"""fsck: hash every artifact of a run again, check the chain, every reference and every invariant, and say what to do.

Nothing of the run is changed. What is damaged is noted in `.damaged` beside it, so that the next `populora run` finds the stage
that made it undone, runs it again, and writes the same bytes (flows.resume).
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from flows.backend import Backend
from flows.chain import (
    STAGES,
    Json,
    Manifest,
    Ref,
    digest,
    folder_of,
    manifest_uri,
    place_of,
    read_json,
    read_manifest,
    skipped,
)
from flows.choices import choose
from flows.config import ConfigError, RunConfig, parse
from flows.history import History
from flows.invariants import Given, problems
from flows.manifest import SCHEMAS, Retired, Run
from flows.resume import mark_damaged
from flows.storage import Damaged, NotStored, StoreRefused, decode_table
from stages.core.adapter_files import WEIGHTS_FILE
from stages.core.population import Member, population_after
from stages.core.rewards import RULES, Rule
from stages.core.tables import GENERATION_TABLES, OFFSPRING
from stages.reward import Estimator

THREADS = 4


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an artifact, what was made from it, and the command that makes it again."""

    uri: str
    problem: str
    dependents: tuple[str, ...] = ()
    command: str = ""

    def __str__(self) -> str:
        more = f" and {len(self.dependents) - 3} more" if len(self.dependents) > 3 else ""
        used = f"; used by {', '.join(self.dependents[:3])}{more}" if self.dependents else ""
        return f"{self.uri}: {self.problem}{used}" + (f"; mend it with: {self.command}" if self.command else "")


@dataclass
class Survey:
    """A run as found: its manifests by uri in order, and what is wrong (uri, problem, whether its bytes are)."""

    run: Run
    manifests: dict[str, Manifest] = field(default_factory=dict)
    wrong: list[tuple[str, str, bool]] = field(default_factory=list)
    retired: dict[str, Mapping[str, Json]] = field(default_factory=dict)

    def report(self, uri: str, problem: str, bytes_wrong: bool = True) -> None:
        """Notes a problem once."""
        if (uri, problem, bytes_wrong) not in self.wrong:
            self.wrong.append((uri, problem, bytes_wrong))

    def tombstones(self, holder: str) -> Mapping[str, Json]:
        """What this run (or the one it was forked from) has retired, by uri."""
        if holder not in self.retired:
            self.retired[holder] = History(self.run.store, holder or self.run.run_id).retired()
        return self.retired[holder]

    def of(self, generation: int | None) -> list[tuple[str, Manifest]]:
        """The manifests in a generation's folder, parts included."""
        prefix = folder_of(generation) + "/"
        return [(uri, manifest) for uri, manifest in self.manifests.items() if uri.startswith(prefix)]

    def generations(self) -> list[int]:
        """Numbers of the generations that have manifests."""
        return sorted({one.generation for one in self.manifests.values() if one.generation is not None})


def fsck(run: Run) -> list[Finding]:
    """Everything that is wrong with a run; empty when all is well. Raises NotStored when there is no such run."""
    survey = survey_of(run)
    description = _check_description(survey)
    _check_chain(survey, description)
    _check_inputs(survey)
    _check_contents(survey, description)
    borrowed = {ref.uri: ref.origin for manifest in survey.manifests.values() for ref in manifest.outputs if ref.origin}
    mark_damaged(run, [uri for uri, _, bytes_wrong in survey.wrong if bytes_wrong and uri not in borrowed])
    return [
        Finding(uri, problem, dependents(survey, uri), _command(run, uri, borrowed.get(uri, ""), mend))
        for uri, problem, mend in survey.wrong
    ]


def survey_of(run: Run) -> Survey:
    """All manifests that can be read, in order of the chain, parts after their stage; the others as problems."""
    uris = [uri.removeprefix(f"{run.run_id}/") for uri in run.store.list(f"{run.run_id}/")]
    if not uris:
        raise NotStored(f"there is no run {run.run_id} in {run.store.url}")
    survey = Survey(run)
    wanted = [uri for uri in uris if uri.endswith(".json") and uri.startswith(("start/", "generation=", "benchmarks/"))]
    for uri in sorted(wanted, key=_order):
        try:
            survey.manifests[uri] = read_manifest(run.store.read(f"{run.run_id}/{uri}"), uri)
        except (Damaged, StoreRefused) as error:
            survey.report(uri, str(error).removeprefix(f"{uri}: "))
    return survey


def dependents(survey: Survey, uri: str) -> tuple[str, ...]:
    """The stages that read an artifact, or anything made from it, in order."""
    tainted = {uri} | {ref.uri for ref in survey.manifests[uri].outputs} if uri in survey.manifests else {uri}
    found = []
    for place, manifest in survey.manifests.items():
        if any(ref.uri in tainted for ref in manifest.inputs):
            tainted |= {ref.uri for ref in manifest.outputs}
            found.append(place.removesuffix(".json"))
    return tuple(found)


def _order(uri: str) -> tuple[int, int, str]:
    """By place in the chain, parts before the stage that joins them; benchmarks last."""
    place = _place(uri)
    return (10**9, 0, uri) if place is None else (place, int(".parts/" not in uri), uri)


def _place(uri: str) -> int | None:
    """The place in the chain of the stage that a manifest belongs to; None for benchmarks."""
    top, _, rest = uri.partition("/")
    stage = rest.partition(".parts/")[0].removesuffix(".json")
    if top == "start":
        return place_of(None, stage)
    if not top.startswith("generation=") or stage not in STAGES:
        return None
    return place_of(int(top.removeprefix("generation=")), stage)


def _check_description(survey: Survey) -> Json:
    """run.json, empty when it cannot be read."""
    run = survey.run
    try:
        return read_json(run.store.read(f"{run.run_id}/run.json"), "run.json")
    except (NotStored, Damaged, StoreRefused) as error:
        survey.report("run.json", str(error))
        return {}


def _check_chain(survey: Survey, description: Json) -> None:
    """Every manifest stands where it says, none is missing, and each carries the digest of the one before it."""
    links: list[tuple[str, str, str]] = [("run.json", digest(description) if description else "", "")]
    unreadable = [uri for uri, _, _ in survey.wrong if ".parts/" not in uri and _place(uri) is not None]
    place = -2
    for uri in sorted([uri for uri in survey.manifests if ".parts/" not in uri] + unreadable, key=_order):
        here = _place(uri)
        if here is None:
            continue
        for generation, stage in skipped(place, here):
            survey.report(manifest_uri(stage, generation), "the manifest is missing, although later stages have theirs")
            links.append((manifest_uri(stage, generation), "", ""))
        place, manifest = here, survey.manifests.get(uri)
        links.append((uri, digest(manifest), manifest.previous) if manifest else (uri, "", ""))
    _check_links(survey, links)
    for uri, manifest in survey.manifests.items():
        _check_identity(survey, uri, manifest)


def _check_identity(survey: Survey, uri: str, manifest: Manifest) -> None:
    """A manifest is of the run, generation and stage whose name it bears; a part hangs on the chain where its stage does."""
    stage, is_part, part = manifest.stage.partition(".parts/")
    benchmark = uri.startswith("benchmarks/")
    fits = stage in (*STAGES, "start") and (benchmark or manifest_uri(stage, manifest.generation, part or None) == uri)
    if not fits or manifest.run != survey.run.run_id:
        survey.report(uri, f"it says that it is {manifest.stage} of generation {manifest.generation} of run {manifest.run}")
    whole = survey.manifests.get(manifest_uri(stage, manifest.generation)) if is_part and fits else None
    if whole is not None and whole.previous != manifest.previous:
        survey.report(uri, "it is chained to another manifest than the stage that it is a part of")


def _check_links(survey: Survey, links: Sequence[tuple[str, str, str]]) -> None:
    """Of two manifests whose link is broken, the one whose other link is broken too is damaged; else the earlier one."""

    def holds(at: int) -> bool:
        (_, own, _), (_, after, previous) = links[at], links[at + 1]
        return not own or not after or own == previous

    for at in range(len(links) - 1):
        if not holds(at):
            later = at + 2 < len(links) and not holds(at + 1)
            survey.report(links[at + 1 if later else at][0], "its digest is not the one that the chain holds")


def _check_inputs(survey: Survey) -> None:
    """What a stage read is what an earlier one wrote. Not judged while manifests are missing: theirs may be the inputs."""
    if not _complete(survey):
        return
    made = {(ref.uri, ref.sha256) for manifest in survey.manifests.values() for ref in manifest.outputs}
    for uri, manifest in survey.manifests.items():
        for ref in manifest.inputs:
            if (ref.uri, ref.sha256) not in made:
                survey.report(uri, f"it names an input that no manifest made: {ref.uri} with digest {ref.sha256[:12]}…", False)


def _complete(survey: Survey) -> bool:
    """Whether no manifest of the chain is missing or unreadable."""
    return all(uri in survey.manifests or _place(uri) is None for uri, _, _ in survey.wrong)


def _check_contents(survey: Survey, description: Json) -> None:
    """Hashes and reads every artifact, one generation at a time, and checks what its tables must fulfil."""
    functions = _functions(survey, description)
    digests = _digests(survey) if _complete(survey) else None
    population: list[Member] | None = None
    stored: set[str] | None = None
    for generation in (None, *survey.generations()):
        refs = [ref for _, manifest in survey.of(generation) for ref in manifest.outputs]
        own = {name: table for uri, table in _sound_tables(survey, refs).items() if (name := _table_name(uri, generation))}
        if generation is None:
            stored = set(own["seeds"]["task_id"].to_pylist()) if "seeds" in own else None
            population = population_after(own["population"], OFFSPRING.empty_table(), -1) if "population" in own else None
            continue
        if functions is not None:
            for name, problem in problems(own, Given(population, stored, digests, *functions)):
                survey.report(f"{folder_of(generation)}/{name}.parquet", problem, False)
        stored = stored | _stored(own["tasks"]) if stored is not None and "tasks" in own else None
        whole = "ratings" in own and "offspring" in own
        population = population_after(own["ratings"], own["offspring"], generation) if whole else None
    benchmarks = [manifest for uri, manifest in survey.manifests.items() if uri.startswith("benchmarks/")]
    _sound_tables(survey, [ref for manifest in benchmarks for ref in manifest.outputs])


def _functions(survey: Survey, description: Json) -> tuple[RunConfig, Rule, Estimator] | None:
    """Configuration, reward rule and estimator of the run; None (and a problem) when they cannot be had here."""
    try:
        config = parse(description["config"])
        return config, choose("reward.rule", config.reward.rule, RULES), Backend(config).estimator()
    except KeyError:
        return None
    except ConfigError as error:
        survey.report("run.json", f"invariants are not checked, since the configuration cannot be used here: {error}", False)
        return None


def _sound_tables(survey: Survey, refs: Sequence[Ref]) -> dict[str, pa.Table]:
    """Reads artifacts, several at a time, reports those that are not what their manifest says, and returns the tables."""
    found = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for ref, (problem, table) in zip(refs, pool.map(lambda one: _read(survey, one), refs), strict=True):
            if problem:
                survey.report(ref.uri, problem)
            elif table is not None:
                found[ref.uri] = table
    return found


def _read(survey: Survey, ref: Ref) -> tuple[str, pa.Table | None]:
    """What is wrong with an artifact (empty: nothing), and the table if it is one."""
    try:
        data = survey.run.read_blob(ref)
    except Retired:
        sound = survey.tombstones(ref.origin)[ref.uri]["sha256"] == ref.sha256
        return ("" if sound else "it was retired, but its tombstone names another digest"), None
    except NotStored:
        return "it is missing", None
    except Damaged as error:
        return error.detail, None
    name = ref.uri.rpartition("/")[2].removesuffix(".parquet")
    if not ref.uri.endswith(".parquet") or name not in SCHEMAS:
        return "", None
    try:
        table = decode_table(data, SCHEMAS[name], ref.uri)
    except (Damaged, StoreRefused) as error:
        return str(error).removeprefix(f"{ref.uri}: "), None
    return ("" if ref.rows in (None, table.num_rows) else f"its manifest says {ref.rows} rows, it has {table.num_rows}"), table


def _table_name(uri: str, generation: int | None) -> str:
    """The table's name if it stands in the generation's own folder, else empty."""
    folder, _, file = uri.rpartition("/")
    name = file.removesuffix(".parquet")
    return name if folder == folder_of(generation) and (generation is None or name in GENERATION_TABLES) else ""


def _stored(tasks: pa.Table) -> set[str]:
    rows = tasks.select(["task_id", "status", "duplicate", "gate"]).to_pylist()
    return {row["task_id"] for row in rows if row["status"] == "valid" and not row["duplicate"] and row["gate"] is None}


def _digests(survey: Survey) -> dict[str, str]:
    """Adapter id -> sha256 of its weights, as the manifests have it."""
    refs: Iterator[Ref] = (ref for manifest in survey.manifests.values() for ref in manifest.outputs)
    return {
        ref.uri.split("/")[1]: ref.sha256 for ref in refs if ref.uri.startswith("adapters/") and ref.uri.endswith(WEIGHTS_FILE)
    }


def _command(run: Run, uri: str, holder: str, bytes_wrong: bool) -> str:
    """What mends it: running again makes lost or damaged bytes anew; nothing but a fork gets rid of wrong contents."""
    store = f"--store {run.store.url}"
    if uri == "run.json":
        return ""
    if holder:
        return f"populora fsck {holder} {store}"
    if uri.startswith("benchmarks/"):
        return f"populora benchmark {run.run_id} --suite {uri.split('/')[1]} {store}"
    if bytes_wrong:
        return f"populora run --run-id {run.run_id} {store}"
    generation = int(uri.partition("/")[0].removeprefix("generation=")) if uri.startswith("generation=") else 0
    return f"populora fork {run.run_id} --generation {generation - 1} {store}" if generation else ""
