"""fsck: re-hash every artifact of a run, check the chain, every reference and every invariant, and print the fixes.

fsck does not change the run. Damaged artifacts are noted in `.damaged` next to it, so that the next `populora run` treats the
stage that made them as not done, runs it again, and writes the same bytes (flows.run.resume).
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

import pyarrow as pa

from flows.audit.fsck_advice import advice, is_spent
from flows.audit.generator_check import GeneratorCheck, RecentGrades
from flows.audit.index_check import IndexCheck
from flows.audit.invariants import GenerationInputs, problems
from flows.audit.reference_check import reference_problems
from flows.audit.replay_check import replay_problems
from flows.backend import Backend
from flows.choices import check_sources, choose, estimator_of
from flows.config import ConfigError, RunConfig, parse
from flows.run.fork import newest_usable
from flows.run.history import History, kept_out
from flows.run.manifest import Json, Ref, folder_of, manifest_uri
from flows.run.planned import GENERATIONS
from flows.run.resume import is_manifest, mark_damaged, obstacle
from flows.run.run import SCHEMAS, Retired, Run
from flows.run.run_json import read_run_json
from flows.run.scan import RunScan, check_chain, check_inputs, complete, dependents, survey_of
from flows.storage import Damaged, NotStored, StoreRefused
from flows.store.table_bytes import decode_table
from flows.trust import refusals
from stages.core.earlier_tasks import StoredTasks, rows_of
from stages.core.lora.adapter_files import WEIGHTS_FILE
from stages.core.method.leak import believed
from stages.core.method.rewards import RULES, Rule
from stages.core.population import Member, population_after
from stages.core.tables import GENERATION_TABLES, OFFSPRING
from stages.reward import Estimator

THREADS = 4
SPENT = "only its stage read it, which is complete, so nothing needs it again and nothing makes it again"
CHECKED = {*GENERATION_TABLES, "traces"}


@dataclass(frozen=True)
class Finding:
    """One problem of an artifact, what was made from it, and the command that restores it."""

    uri: str
    problem: str
    dependents: tuple[str, ...] = ()
    command: str = ""

    def __str__(self) -> str:
        more = f" and {len(self.dependents) - 3} more" if len(self.dependents) > 3 else ""
        used = f"; used by {', '.join(self.dependents[:3])}{more}" if self.dependents else ""
        return f"{self.uri}: {self.problem}{used}" + (f"; fix it with: {self.command}" if self.command else "")


@dataclass(frozen=True)
class Audit:
    """What fsck found, how many manifests it read, and how many artifacts (and bytes) match the digests in them.

    `unchecked` says which invariants were not checked, and why, one line each.
    """

    findings: list[Finding]
    manifests: int
    artifacts: int
    bytes: int
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Functions:
    """What the tables of a run are checked with. None: the run chose a function that is not loaded here."""

    config: RunConfig
    rule: Rule | None
    estimator: Estimator | None
    draws: bool
    unchecked: tuple[str, ...] = ()


def fsck(run: Run, folders: Sequence[Path] = ()) -> list[Finding]:
    """Return every problem of a run; empty if there is none. Raises NotStored if there is no such run."""
    return audit(run, folders).findings


def audit(run: Run, folders: Sequence[Path] = ()) -> Audit:
    """Check a run as fsck does, and say how much was read. Raises NotStored if there is no such run.

    Functions that the run chose are loaded from `folders`, and where flows.trust says so.
    """
    survey = survey_of(run)
    if holds := _other_run(survey):
        return Audit([Finding("run.json", f"this folder holds run {holds}: name it {holds} again")], len(survey.manifests), 0, 0)
    description = _description(survey, "")
    for uri, problem in run.history.unreadable_tombstones().items():
        survey.report(uri, f"{problem}; what it names may be retired or lost: put the file back from a copy", False)
    check_chain(survey, description)
    check_inputs(survey)
    _check_clocks(survey)
    _check_recorded_scores(survey)
    functions = _all_functions(survey, description, folders)
    _check_contents(survey, description, functions)
    borrowed = {ref.uri: ref.origin for manifest in survey.manifests.values() for ref in manifest.outputs if ref.origin}
    damaged = [uri for uri, _, bytes_wrong in survey.wrong if bytes_wrong and uri not in borrowed]
    mark_damaged(run, _still_wrong(run, damaged))
    stops = obstacle(run, damaged) if damaged else None
    usable = cache(partial(_usable, run, damaged))
    findings = []
    for uri, problem, bytes_wrong in survey.wrong:
        said = f"{problem}; {SPENT}" if is_spent(survey, uri) else problem
        command = advice(survey, uri, borrowed.get(uri, ""), bytes_wrong, stops, usable)
        findings.append(Finding(uri, said, dependents(survey, uri), command))
    unchecked = dict.fromkeys(reason for one in functions.values() if one is not None for reason in one.unchecked)
    return Audit(findings, len(survey.manifests), len(survey.hashed), sum(survey.hashed.values()), tuple(unchecked))


def _other_run(survey: RunScan) -> str:
    """Return the run whose manifests a renamed folder holds, all of them; empty if they are this run's or differ."""
    names = {manifest.run for manifest in survey.manifests.values()}
    return names.pop() if len(names) == 1 and survey.run.run_id not in names else ""


def _usable(run: Run, damaged: list[str], before: int | None) -> int | None:
    """Return the newest generation that a fork can train from; None if there is none, or if the run says too little to know."""
    with suppress(Damaged, NotStored, StoreRefused):
        return newest_usable(run, before, damaged)
    return None


def _still_wrong(run: Run, damaged: list[str]) -> list[str]:
    """Return these without the manifests that are there and fit the chain by now: a run may have been at work on them."""
    if not any(is_manifest(uri) for uri in damaged):
        return damaged
    again = survey_of(run)
    check_chain(again, _description(again, ""))
    wrong = {uri for uri, _, _ in again.wrong}
    return [uri for uri in damaged if not is_manifest(uri) or uri in wrong]


def _description(survey: RunScan, holder: str) -> Json:
    """run.json of this run (`holder` empty) or of one that it was forked from; empty if it cannot be read."""
    try:
        return read_run_json(survey.run.store.read(f"{holder or survey.run.run_id}/run.json"), "run.json")
    except (NotStored, Damaged, StoreRefused) as error:
        if not holder:
            survey.report("run.json", str(error))
        return {}


def _check_contents(survey: RunScan, description: Json, functions: Mapping[str, _Functions | None]) -> None:
    """Hash and reads every artifact, one generation at a time, and check the invariants of its tables.

    A table that a fork shares is checked against the configuration of the run that made it.
    """
    configs = [one.config for one in functions.values() if one is not None]
    needs_stored = any(config.solve.replays or config.propose.mixed_references for config in configs)
    digests = _digests(survey) if complete(survey) else None
    population: list[Member] | None = None
    stored: set[str] | None = None
    earlier: StoredTasks | None = None  # the tasks that replays and mixed references are drawn from
    index, recent, drawn = (
        IndexCheck(),
        RecentGrades(),
        GeneratorCheck(lambda config: Backend(config).suites.held_out(kept_out(description))),
    )
    for generation in (None, *survey.generations()):
        refs = [ref for _, manifest in survey.of(generation) for ref in manifest.outputs]
        sound = _sound_tables(survey, refs)
        own = {name: table for uri, table in sound.items() if (name := _table_name(uri, generation))}
        if generation is None:
            stored = set(own["seeds"]["task_id"].to_pylist()) if "seeds" in own else None
            earlier = StoredTasks(own["seeds"]) if "seeds" in own and needs_stored else None
            population = population_after(own["population"], OFFSPRING.empty_table(), -1) if "population" in own else None
            continue
        for uri, problem in index.problems(generation, survey.manifests.get(manifest_uri("verify", generation)), sound):
            survey.report(uri, problem, False)
        makers = {name: ref.origin for ref in refs if (name := _table_name(ref.uri, generation))}
        for maker in dict.fromkeys(makers.values()):  # two, if a fork begins inside the generation
            given = functions[maker]
            if given is None:
                continue
            graded = recent.tables()
            config = given.config
            inputs = GenerationInputs(population, stored, digests, config, given.rule, given.estimator, generation)
            checks = [problems(own, inputs)]
            if earlier is not None:
                checks.append(replay_problems(own, config, earlier, generation, graded))
                checks.append(reference_problems(own, config, earlier, graded))
            if given.draws:
                checks.append(drawn.problems(own, config, graded, generation))
            for name, problem in chain.from_iterable(checks):
                if makers.get(name, "") == maker:
                    survey.report(f"{folder_of(generation)}/{name}.parquet", problem, False)
        recent.add(own)
        stored = stored | _stored(believed(own["tasks"])) if stored is not None and "tasks" in own else None
        if earlier is not None and "tasks" in own:
            earlier.add(rows_of(believed(own["tasks"])))
        else:
            earlier = None
        whole = "ratings" in own and "offspring" in own
        population = population_after(own["ratings"], own["offspring"], generation) if whole else None
    benchmarks = [manifest for uri, manifest in survey.manifests.items() if uri.startswith("benchmarks/")]
    _sound_tables(survey, [ref for manifest in benchmarks for ref in manifest.outputs])


def _check_clocks(survey: RunScan) -> None:
    """Check that all stages of one start plan as many generations. No digest covers that number, and a resume believes it."""
    planned: dict[int, int] = {}
    for uri, manifest in survey.manifests.items():
        epoch, number = manifest.clock.get("epoch"), manifest.clock.get(GENERATIONS)
        if epoch is not None and number is not None and (first := planned.setdefault(epoch, number)) != number:
            survey.report(uri, f"its clock plans {number} generations, earlier stages of the same start {first}", False)


def _check_recorded_scores(survey: RunScan) -> None:
    """Check that the scores of public suites that a stage made beside the chain are there, with the digests that it recorded."""
    for uri, manifest in survey.manifests.items():
        holder = next((ref.origin for ref in manifest.outputs if ref.origin), "")
        history = History(survey.run.store, holder or survey.run.run_id)
        for recorded in manifest.versions.get("suites", {}).values():
            scores, folder = recorded["uri"], recorded["uri"].rpartition("/")[0]
            try:
                done = history.manifest(f"{folder}/benchmark.json")
            except Damaged:
                continue  # reported as that manifest's own damage
            if done is None:
                survey.report(f"{folder}/benchmark.json", f"it is missing, although {uri} records its scores", False)
            elif all((ref.uri, ref.sha256) != (scores, recorded["sha256"]) for ref in done.outputs):
                survey.report(scores, f"its manifest names other scores than {uri} records", False)


def _all_functions(survey: RunScan, description: Json, folders: Sequence[Path]) -> dict[str, _Functions | None]:
    """Return what is needed to check the tables of this run (key "") and of each run whose artifacts it shares."""
    holders = {ref.origin for manifest in survey.manifests.values() for ref in manifest.outputs if ref.origin}
    shared = {holder: _functions(survey, _description(survey, holder), folders) for holder in sorted(holders)}
    return {"": _functions(survey, description, folders)} | shared


NEEDS = {
    "reward.rule": "rewards and advantages of the samples",
    "learning.estimator": "rewards and advantages of the samples",
    "propose.curriculum": "the draws of the generator",
}
"""What is checked with a function, by its key."""


def _functions(survey: RunScan, description: Json, folders: Sequence[Path]) -> _Functions | None:
    """Return what the tables of the run are checked with; None (and a problem) if it is not available here."""
    try:
        config = parse(description["config"])
        refused = refusals(config, survey.run, folders)
        keys = {one.key for one in refused}
        check_sources(config, description["versions"], description["run"], {one.name for one in refused})
        return _Functions(
            config,
            None if "reward.rule" in keys else choose("reward.rule", config.reward.rule, RULES),
            None if "learning.estimator" in keys else estimator_of(config),
            "propose.curriculum" not in keys,
            tuple(f"{NEEDS[one.key]}; {one.message}" for one in refused if one.key in NEEDS),
        )
    except KeyError:
        return None
    except ConfigError as error:
        survey.report("run.json", f"invariants are not checked, since the configuration cannot be used here: {error}", False)
        return None


def _sound_tables(survey: RunScan, refs: Sequence[Ref]) -> dict[str, pa.Table]:
    """Read artifacts, several at a time, report those that do not match their manifest, and return the tables."""
    found = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for ref, (problem, table, size) in zip(refs, pool.map(lambda one: _read(survey, one), refs), strict=True):
            survey.hashed |= {ref.uri: size} if size is not None else {}
            if problem:
                survey.report(ref.uri, problem)
            elif table is not None:
                found[ref.uri] = table
    return found


def _read(survey: RunScan, ref: Ref) -> tuple[str, pa.Table | None, int | None]:
    """Return the problem of an artifact (empty if there is none), the table if it is one, and how many bytes were hashed."""
    try:
        data = survey.run.read_blob(ref)
    except Retired as error:
        return ("" if error.sha256 == ref.sha256 else "it was retired, but its tombstone names another digest"), None, None
    except NotStored:
        return "it is missing", None, None
    except Damaged as error:  # perhaps of the tombstones; this run's are reported on their own
        if error.uri == survey.run.history.place(ref.uri, ref.origin):
            return error.detail, None, None
        return (str(error) if ref.origin else ""), None, None
    name = ref.uri.rpartition("/")[2].removesuffix(".parquet")
    if not ref.uri.endswith(".parquet") or name not in SCHEMAS:
        return "", None, len(data)
    try:
        table = decode_table(data, SCHEMAS[name], ref.uri, rows=ref.rows)
    except (Damaged, StoreRefused) as error:
        return str(error).removeprefix(f"{ref.uri}: "), None, len(data)
    return "", table, len(data)


def _table_name(uri: str, generation: int | None) -> str:
    """Return the table's name if it is in the generation's own folder, else empty."""
    folder, _, file = uri.rpartition("/")
    name = file.removesuffix(".parquet")
    return name if folder == folder_of(generation) and (generation is None or name in CHECKED) else ""


def _stored(tasks: pa.Table) -> set[str]:
    rows = tasks.select(["task_id", "status", "duplicate", "gate"]).to_pylist()
    return {row["task_id"] for row in rows if row["status"] == "valid" and not row["duplicate"] and row["gate"] is None}


def _digests(survey: RunScan) -> dict[str, str]:
    """Adapter id -> sha256 of its weights, as recorded in the manifests."""
    refs: Iterator[Ref] = (ref for manifest in survey.manifests.values() for ref in manifest.outputs)
    return {
        ref.uri.split("/")[1]: ref.sha256 for ref in refs if ref.uri.startswith("adapters/") and ref.uri.endswith(WEIGHTS_FILE)
    }
