"""Evolution against its clone: every event of a run beside the same event with copies, as a fork that parts at the event.

The fork shares the run up to the event and computes `evolve` again with `evolution.copies_at`: the same members are replaced by
children of the same parents, with the same ids and ratings, but each child is a copy of its (better) parent. The fork then trains
with the same seeds. The two differ in the children's weights alone, until what follows from those differs, too. The run itself
does nothing for it, except that it must keep the weights and optimizer states of the event (retention).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.benchmarks.members import Chosen
from flows.benchmarks.score import Question, probe_folder, score_run
from flows.config import ConfigError, RunConfig, parse
from flows.monitoring.scored import limit_of
from flows.run.fork import Versions, fork
from flows.run.run import Run
from flows.run.suite_versions import is_one_version, suite_version
from flows.storage import NotStored
from flows.suites.own_suites import OwnSuites
from stages.core.suites.changes import score_changes

MEASURE = "pass@1 greedy"
Answers = dict[str, dict[str, pa.Table]]
"""Greedy answers by adapter and version of the suite, as in `suite_version`."""


@dataclass(frozen=True)
class CloneEvent:
    """An evolution event at the end of `generation`, and the fork in which its children are copies."""

    run: Run
    generation: int
    fork_id: str


@dataclass(frozen=True)
class ClonePair:
    """A child and its clone at one age, in generations. Scores are of the run's own suite; None where `note` says why."""

    run: str
    generation: int
    member: str
    operator: str
    age: int
    child_adapter: str
    clone_adapter: str
    child: float | None = None
    clone: float | None = None
    difference: float | None = None
    stderr: float | None = None  # over problems, paired
    problems: int = 0
    note: str = ""


def clone_events(run: Run, wanted: Sequence[int] = ()) -> list[CloneEvent]:
    """Return the finished evolution events of a run, or those at `wanted` generations. Raises ConfigError if there are none."""
    found = [number for number in run.finished_generations() if run.read_table(number, "offspring").num_rows]
    if unknown := sorted(set(wanted) - set(found)):
        raise ConfigError(f"run {run.run_id} has no finished evolution event at generation {unknown[0]}")
    if not found:
        raise ConfigError(f"run {run.run_id} has no finished evolution event")
    return [CloneEvent(run, number, f"{run.run_id}-c{number}") for number in found if not wanted or number in wanted]


def clone_fork(event: CloneEvent, ages: Sequence[int], versions: Versions, clock: Mapping[str, Any]) -> Run:
    """Create the fork of an event, or return the one that exists. Raises StoreRefused, such as for weights that were retired."""
    config, first = _config(event.run), event.generation + 1
    kept = Run(event.run.store, event.fork_id).history.description()
    if kept is None:
        done = event.run.finished_generations()
        ends = min([len(done), *(number + 1 for number in done if number > event.generation and _left_out(event.run, number))])
        generations = max(min(first + max(ages), ends), first + 1)
    else:  # made for other ages, or when the run was shorter: it stays as it is, and what it has is scored
        generations, ages = kept["config"]["generations"], kept["config"]["benchmark"]["children_at"]
    settings = (
        f"evolution.copies_at={[*config.evolution.copies_at, event.generation]}",
        f"generations={generations}",
        f"benchmark.children_at={sorted(ages)}",
        "benchmark.every=0",
        "benchmark.suites=[]",
    )
    return fork(event.run, event.fork_id, event.generation, settings, versions, clock, "evolve")


def _left_out(run: Run, generation: int) -> bool:
    """Return whether the run has no offspring where a longer run has an event, since it was to end there until it was extended.

    A fork that trains further would have that event, and would differ from its run by more than the children's weights.
    """
    every = _config(run).evolution.every
    return bool(every) and (generation + 1) % every == 0 and not run.read_table(generation, "offspring").num_rows


def clone_pairs(event: CloneEvent, ages: Sequence[int]) -> Iterator[ClonePair]:
    """Yield every scored child of the event with its clone, at each age. Scores that are missing are computed and stored."""
    made = Run(event.run.store, event.fork_id)
    copies = {row["member_id"]: row for row in made.read_table(event.generation, "offspring").to_pylist()}
    scored = _config(event.run).benchmark.members
    offspring = event.run.read_table(event.generation, "offspring").to_pylist()
    born = [row for row in offspring if row["member_id"] in copies and (row["role"] == "student" or scored == "all")]
    pairs = [_pair(event, made, row, age) for row in born for age in sorted(ages)]
    children = _stored(event.run, {one.child_adapter for one in pairs})
    clones = _stored(made, {one.clone_adapter for one in pairs})
    again = [one for one in pairs if _on_one_version(one, children, clones) is None]
    _score(event.run, [one.child_adapter for one in again], children)
    _score(made, [one.clone_adapter for one in again], clones)
    yield from (_scored(one, children, clones) for one in pairs)


def _pair(event: CloneEvent, made: Run, row: Mapping[str, Any], age: int) -> ClonePair:
    """Return the pair of a child, a row of OFFSPRING, without its scores."""
    run, member = event.run, row["member_id"]
    child, clone = (_at_age(one, event.generation, member, age) for one in (run, made))
    return ClonePair(run.run_id, event.generation, member, row["operator"], age, child, clone)


def _on_one_version(pair: ClonePair, children: Answers, clones: Answers) -> tuple[pa.Table, pa.Table] | None:
    """Return the answers of child and clone to one version of the suite; None if there are none."""
    ours, theirs = children.get(pair.child_adapter, {}), clones.get(pair.clone_adapter, {})
    alike = ((ours[one], theirs[other]) for one in ours for other in theirs if is_one_version((one, other)))
    return next(alike, None)


def _scored(pair: ClonePair, children: Answers, clones: Answers) -> ClonePair:
    for who, adapter, known in (("child", pair.child_adapter, children), ("clone", pair.clone_adapter, clones)):
        if not adapter:
            return replace(pair, note=f"the {who} was replaced, or the run ended before")
        if adapter not in known:
            return replace(pair, note=f"the weights {adapter} of the {who} were retired")
    answers = _on_one_version(pair, children, clones)
    if answers is None:
        return replace(pair, note="the two were scored on different versions of the suite, and weights were retired since")
    changes = score_changes(*answers, lambda rows: iter([("all", rows)]))
    found = next(one for one in changes if one.measure == MEASURE)
    apart = found.found
    return replace(
        pair, child=found.after, clone=found.before, difference=apart.difference, stderr=apart.stderr, problems=apart.problems
    )


def _at_age(run: Run, event: int, member: str, age: int) -> str:
    """Return the adapter of a child after `age` generations; empty if it did not live or train that long.

    Off-policy, it takes its first step in its second generation.
    """
    if age == 0:
        return f"{member}-start"
    try:
        rows = run.read_table(event + age, "ratings").to_pylist()
    except NotStored:
        return ""
    return next((row["next_adapter_id"] for row in rows if row["member_id"] == member), "")


def _stored(run: Run, adapter_ids: set[str]) -> Answers:
    """Return the greedy answers of each adapter to the run's own problems that a benchmark has stored."""
    rule, found = _config(run).benchmark, Answers()
    for manifest in (*run.history.walk(), *run.history.benchmarks()):
        version = suite_version(manifest)
        for ref in manifest.outputs if manifest.stage == "benchmark" else ():
            same_problems = "/asked/" not in ref.uri or limit_of(ref.uri.split("/")[-2]) == rule.limit
            if same_problems and ref.uri.startswith(f"benchmarks/{rule.suite}/") and ref.uri.endswith("/answers.parquet"):
                wanted = {name for name in adapter_ids if name and version not in found.get(name, {})}
                for name, answers in _by_adapter(run.read_table(ref, "answers"), wanted).items():
                    found.setdefault(name, {})[version] = answers
    return found


def _score(run: Run, adapter_ids: Sequence[str], found: Answers) -> None:
    """Score these adapters on the suite as it is now, unless that is done or their weights were retired; add the answers."""
    rule, now = _config(run).benchmark, OwnSuites().digest(_config(run).benchmark.suite)
    lacking = [name for name in dict.fromkeys(adapter_ids) if name and now not in found.get(name, {})]
    if not (missing := [name for name in lacking if _kept(run, name)]):
        return
    chosen, asked = Chosen(tuple(missing)), Question(rule.suite, rule.limit)
    score_run(run, chosen, asked)
    folder = probe_folder(run, chosen, asked)
    for name, answers in _by_adapter(run.read_table(f"benchmarks/{folder}/answers.parquet", "answers"), set(missing)).items():
        found.setdefault(name, {})[now] = answers


def _by_adapter(answers: pa.Table, wanted: set[str]) -> dict[str, pa.Table]:
    answers = answers.filter(answers["greedy"])
    names = sorted(wanted.intersection(answers["adapter_id"].to_pylist()))
    return {name: answers.filter(pc.equal(answers["adapter_id"], name)) for name in names}


def _kept(run: Run, adapter_id: str) -> bool:
    """Return whether the weights are still in the store."""
    try:
        ref = run.history.find(f"adapters/{adapter_id}/adapter_model.safetensors")
    except NotStored:
        return False
    return run.store.exists(run.history.place(ref.uri, ref.origin))


def _config(run: Run) -> RunConfig:
    description = run.history.description()
    assert description is not None, run.run_id
    return parse(description["config"])
