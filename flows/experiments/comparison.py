"""Data of a comparison: the runs of an experiment as far as they have progressed, their costs, scores and curves.

Budgets are counted over a run's generations: tokens generated (proposals and answers) and trained on (responses of samples whose
adapter stepped), optimizer steps, and seconds of all stages but benchmarks; the start, equal in all arms, is not counted. `per
adapter` divides by the number of adapters in the population. `per student` counts what students generated, by their number, so
that arms with teachers and arms without them are compared with students that wrote as much.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from flows.base_model.hub import NO_BASE, UNLIKE_RULES, RecordedBase, as_begun, bases_differ, recorded_base
from flows.config import RunConfig, differences, dump, identity, with_defaults
from flows.execution.recomputation import settled
from flows.experiments.spec import Planned
from flows.run.manifest import Json
from flows.run.run import Run
from flows.run.suite_versions import is_one_version, suite_version
from flows.storage import Damaged, NotStored, Store
from stages.analysis.curves import absent_counts, curve_rows
from stages.analysis.summary import lookup
from stages.core import tables

FIRST = ("s0-start", "a0-start")  # an adapter that changes nothing yet, which is the base model
TOTALS = ("generated_tokens", "trained_tokens", "optimizer_steps", "seconds")
OF_STUDENTS = "student_tokens"
Row = dict[str, Any]


@dataclass(frozen=True)
class ComparedRun:
    """One run of the experiment. `state` is finished, half finished, not started, or unlike (another configuration).

    Runs with the same `model` count as having one base model; `base` is what the run recorded of it.
    """

    planned: Planned
    state: str
    generations: int
    model: str
    start: str  # digest of seed tasks and starting adapters: equal in paired runs
    adapters: str  # digest of the starting adapters alone
    description: Json
    head: str
    totals: Row
    points: tuple[Row, ...]  # scored states and final metrics, in the form that stages.analysis.comparison takes
    curves: tuple[Row, ...]
    missing: tuple[str, ...]
    base: RecordedBase = NO_BASE

    @property
    def usable(self) -> bool:
        """Whether the end of the run may be compared."""
        return self.state == "finished"


def gather(store: Store, runs: Sequence[Planned]) -> list[ComparedRun]:
    """Return all runs. `missing` lists what cannot be read; a run whose end depends on that is left out."""
    found = [_gather(Run(store, planned.run_id), planned) for planned in runs]
    return _with_shared_base(_with_ends(_with_one_digest(found)))


def _with_one_digest(found: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Give runs that name one model its digest by the newest rule, where each rule has a single digest under that name.

    Digests of different rules do not compare: whether the model's files changed in between is not known.
    """
    named: dict[str, dict[int, set[str]]] = {}
    for one in found:
        if one.model:
            named.setdefault(one.planned.config.model.name, {}).setdefault(one.base.rule, set()).add(one.model)
    newest: dict[str, set[str]] = {}
    for rules in named.values():
        if all(len(digests) == 1 for digests in rules.values()):
            for (digest,) in rules.values():
                newest.setdefault(digest, set()).update(rules[max(rules)])
    chosen = {digest: next(iter(others)) for digest, others in newest.items() if len(others) == 1}
    return [_of_model(one, chosen.get(one.model, one.model)) for one in found]


def _of_model(one: ComparedRun, model: str) -> ComparedRun:
    points, curves = (tuple({**row, "model": model} for row in rows) for rows in (one.points, one.curves))
    return replace(one, model=model, points=points, curves=curves)


def problems(found: Sequence[ComparedRun]) -> list[str]:
    """Return sentences about what is missing, unfinished or different, for the top of the page."""
    said = [f"{one.planned.run_id}: {text}" for one in found for text in one.missing]
    models, differ = sorted({one.model for one in found if one.model}), bases_differ(one.base for one in found)
    if len(models) > 1:
        names = "; ".join(
            f"{model[:8]}: {', '.join(one.planned.run_id for one in found if one.model == model)}" for model in models
        )
        which = "different base models" if differ is not None else "base models that may differ"
        said.append(f"The runs have {len(models)} {which} and are compared only within each. {names}")
    if differ is None:
        said.append(
            f"Whether the runs have the same base model is not known: {UNLIKE_RULES}. Those that name the same one are compared."
        )
    for seed in sorted({one.planned.seed for one in found}):
        scored = {problems_of(one) for one in found if one.planned.seed == seed and one.usable} - {frozenset()}
        if len(scored) > 1:
            said.append(f"The runs of seed {seed} were scored on different problems; such runs are not compared.")
        starts = {(one.model, one.start) for one in found if one.planned.seed == seed and one.start}
        if len(starts) > len({model for model, _ in starts}):
            said.append(f"The runs of seed {seed} do not share seed tasks and starting adapters: their differences include that.")
    ways = defaultdict[str, dict[str, None]](dict)
    for one in found:
        if one.usable:
            ways[_way(one)][one.planned.arm] = None
    if len(ways) > 1:
        said.append(
            "The arms were asked in different ways, and their differences include that: "
            + "; ".join(f"{', '.join(arms)}: {way}" for way, arms in ways.items())
            + "."
        )
    return said


def _way(one: ComparedRun) -> str:
    """Return how a run is scored: its prompts, the longest answer, and the temperature of samples, if any."""
    config = one.planned.config
    style = one.description.get("config", {}).get("model", {}).get("style", config.model.style)  # what `auto` stood for
    sampled = f", samples at temperature {config.engine.temperature:g}" if config.benchmark.attempts else ""
    return f"{style} prompts, {config.benchmark.max_new_tokens:,} tokens{sampled}"


def problems_of(one: ComparedRun) -> frozenset[tuple[str, int]]:
    """Return what a run was scored on: the digest of the suite, with the number of problems."""
    scores = [point for point in one.points if point["what"] == "score" and point["group"] == "all"]
    return frozenset((point["suite_sha256"], point["problems"]) for point in scores if point["suite_sha256"])


def _gather(run: Run, planned: Planned) -> ComparedRun:
    """Return what a run has; one that is damaged before its tables is left out, as one whose configuration differs."""
    nothing = ComparedRun(planned, "not started", 0, "", "", "", {}, "", {}, (), (), ())
    try:
        return _begun(run, planned, nothing)
    except Damaged as error:
        return replace(nothing, state="unlike", missing=(f"left out: {error}",))


def _begun(run: Run, planned: Planned, nothing: ComparedRun) -> ComparedRun:
    if (description := run.history.description()) is None:
        return replace(nothing, missing=("not started.",))
    known = replace(nothing, description=description)
    # what `auto` stood for is the run's own, as is the commit of a hub model: they depend on where and when it began
    begun = settled(as_begun(planned.config, description), description)
    found, wanted = identity(with_defaults(description["config"])), identity(dump(begun))
    unlike = [key for key in differences(found, wanted) if key != "generations"]
    if unlike:
        text = f"left out: the store contains a run of this name with a different configuration ({', '.join(unlike)})."
        return replace(known, state="unlike", missing=(text,))
    start = run.manifest("start")
    if start is None:
        return replace(known, missing=("its start has not finished.",))
    done = [number for number in run.finished_generations() if number < planned.config.generations]
    adapters, seeds = (
        {ref.sha256 for ref in start.outputs if ref.uri.endswith(name)} for name in ("adapter_model.safetensors", "seeds.parquet")
    )
    known = replace(
        known,
        generations=len(done),
        model=start.versions["base_model"],
        base=recorded_base(start.versions),
        start=" ".join(sorted(adapters | seeds)),
        adapters=" ".join(sorted(adapters)),
        head=run.history.head(),
    )
    try:
        curves, costs = _history(run, planned.config, done)
        points = list(_scores(run, planned, costs))
    except (NotStored, Damaged) as error:
        return replace(known, state="half finished", missing=(f"left out: {error}",))
    state = "finished" if len(done) == planned.config.generations else "half finished"
    missing = [] if state == "finished" else [f"half finished, {len(done)} of {planned.config.generations} generations."]
    if state == "finished" and not any(point["what"] == "score" and point["trained"] for point in points):
        missing.append("it has no scores of its members.")
    kept = _of_newest_version(points)
    if len(kept) < len(points):
        missing.append("its suite has changed: scores on earlier versions are left out.")
    own = {"arm": planned.arm, "seed": planned.seed, "model": known.model}
    return replace(
        known,
        state=state,
        totals=costs[max(costs)],
        points=tuple(own | point for point in kept),
        curves=tuple(own | row for row in curves),
        missing=tuple(missing),
    )


def _of_newest_version(points: Sequence[Row]) -> list[Row]:
    """Return the scores on the version of the suite on which the newest are."""
    newest = max(points, key=lambda point: int(point["trained"]), default=None)
    return [point for point in points if newest and is_one_version((point["suite_sha256"], newest["suite_sha256"]))]


def _history(run: Run, config: RunConfig, done: Sequence[int]) -> tuple[list[Row], dict[int, Row]]:
    """(rows of curves, budgets spent by generations trained)."""
    spent = dict.fromkeys((*TOTALS, OF_STUDENTS), 0.0)
    costs = {0: _budgets(spent, 0, config)}
    curves = []
    for generation in done:
        metrics = run.read_table(generation, "metrics")
        rows = list(curve_rows(metrics))
        for row in rows:
            name = row["name"].removeprefix("cost.")
            if row["name"].startswith("cost.") and name in TOTALS:
                spent[name] += row["value"]
        spent[OF_STUDENTS] += _student_tokens(metrics)
        manifests = run.history.of_generation(generation, parts=True)
        spent["seconds"] += sum(float(one.clock.get("seconds", 0)) for one in manifests if one.whole_stage != "benchmark")
        costs[generation + 1] = _budgets(spent, generation + 1, config)
        curves += [{"trained": generation + 1} | row for row in rows]
        curves += [{"trained": generation + 1} | row for row in _unlikeness(run, generation)]
    return curves, costs


def _student_tokens(metrics: pa.Table) -> float:
    """Return the tokens that members who answered tasks generated. A single agent's proposals count with its answers."""
    generated, answered = "cost.generated_tokens", "solve.completion_tokens"
    values = lookup(metrics, (generated, answered))
    students = {member for name, member, role, _ in values if name == answered and role == "student"}
    return math.fsum(value for (name, member, *_), value in values.items() if name == generated and member in students)


def _budgets(spent: Row, generations: int, config: RunConfig) -> Row:
    totals = {name: spent[name] for name in TOTALS}
    shares = {f"{name}_per_adapter": spent[name] / config.adapters for name in ("generated_tokens", "trained_tokens")}
    own = {"generated_tokens_per_student": spent[OF_STUDENTS] / config.population.students}
    return {"generations": float(generations)} | totals | shares | own


def _unlikeness(run: Run, generation: int) -> Iterator[Row]:
    """Members' disagreement on the problems of this generation's benchmark."""
    manifest = run.manifest("benchmark", generation)
    for ref in manifest.outputs if manifest else ():
        if ref.uri.endswith(f"generation={generation:04d}/disagreement.parquet"):
            for row in run.read_table(ref, "disagreement", tables.METRICS).to_pylist():
                if row["member_id"] is None:
                    yield {"name": "disagreement", "value": row["value"], "n": row["n"], "stderr": row["stderr"]}


def _scores(run: Run, planned: Planned, costs: dict[int, Row]) -> Iterator[Row]:
    """Yield the scores of the members as trained in each benchmark of the chain, and of the base model if it was scored."""
    suite, problems, digest = planned.config.benchmark.suite, 0, ""
    for generation in run.history.generations():
        if (manifest := run.manifest("benchmark", generation)) is None:
            continue
        for ref in manifest.outputs:
            if ref.uri == f"benchmarks/{suite}/generation={generation:04d}/scores.parquet" and generation + 1 in costs:
                scores = run.read_table(ref, "scores")
                problems, digest = max(scores["problems"].to_pylist(), default=0), suite_version(manifest)
                yield from _points(scores, generation + 1, costs[generation + 1], digest)
    for manifest in run.history.benchmarks():
        for ref in (ref for ref in manifest.outputs if ref.uri.endswith("/scores.parquet")):
            scores = run.read_table(ref, "scores")
            base = [row for row in scores.to_pylist() if row["suite"] == suite and row["adapter_id"] in FIRST]
            same = is_one_version((digest, suite_version(manifest)))
            if base and same and (not problems or max(row["problems"] for row in base) == problems):
                yield from _points(tables.table(base, tables.SCORES), 0, costs[0], suite_version(manifest))
                return


def _points(scores: pa.Table, trained: int, costs: Row, suite_sha256: str) -> Iterator[Row]:
    """Yield the mean, best and worst member for every measure and group; of a kind's bands or depths the mean only."""
    found = defaultdict(list)
    for row in scores.to_pylist():
        if row["role"] != "teacher":
            found[row["measure"], row["group"]].append((row["score"], row["problems"]))
    for (measure, group), values in found.items():
        own = [score for score, _ in values]
        shared = {"what": "score", "measure": measure, "group": group, "trained": trained} | costs
        shared |= {"problems": values[0][1], "suite_sha256": suite_sha256}
        yield from (
            shared | {"over": over, "members": len(own), "score": score}
            for over, score in (("mean", math.fsum(own) / len(own)), ("best", max(own)), ("worst", min(own)))
            if over == "mean" or not is_fine(group)
        )


def is_fine(group: str) -> bool:
    """Return whether a group of problems is one band or depth of a kind, of which there may be dozens."""
    return " band " in group


def _with_ends(found: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Complete the curves of runs by counts of 0, of what occurred in any run, and give them the ends of their metrics."""
    names, whole = {row["name"] for one in found for row in one.curves}, []
    for one in found:
        own = {"arm": one.planned.arm, "seed": one.planned.seed, "model": one.model}
        curves = (*one.curves, *(own | row for row in absent_counts(one.curves, names)))
        ends = (own | point for point in _ends(curves, one.generations))
        whole.append(replace(one, curves=curves, points=(*one.points, *ends)))
    return whole


def _ends(curves: Sequence[Row], generations: int) -> Iterator[Row]:
    """Yield each metric's mean over the last third of the run."""
    found = defaultdict(list)
    for row in curves:
        if row["trained"] > generations - max(1, generations // 3):
            found[row["name"]].append(row["value"])
    for name, values in sorted(found.items()):
        scope = {"what": "metric", "measure": name, "group": "", "over": "last third", "trained": generations}
        yield scope | {"generations": float(generations), "score": math.fsum(values) / len(values)}


def asked(config: RunConfig) -> tuple[Any, ...]:
    """Return what the scores of a start depend on, besides its weights."""
    rule = config.benchmark
    return config.model.style, rule.suite, rule.limit, rule.attempts, rule.max_new_tokens, config.engine.temperature


def _with_shared_base(found: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Give runs that did not score their start the scores of a run of their seed that starts from the same weights."""
    bases: dict[tuple[Any, ...], list[list[Row]]] = {}
    for one in found:
        if base := _base(one):
            bases.setdefault(_sharing(one), []).append(base)
    shared = []
    for one in found:
        own = [point for point in one.points if point["what"] != "score" or point["trained"]]
        other = next((base for base in bases.get(_sharing(one), []) if _of_one_suite([*base, *own])), [])
        base = _base(one) or [point | {"arm": one.planned.arm} for point in other]
        shared.append(replace(one, points=(*base, *own)) if one.points else one)
    return shared


def _of_one_suite(points: Sequence[Row]) -> bool:
    """Return whether the scores among the points are of one version of the suite, as far as is known."""
    return is_one_version(point["suite_sha256"] for point in points if point["what"] == "score")


def _base(one: ComparedRun) -> list[Row]:
    return [point for point in one.points if point["what"] == "score" and not point["trained"]]


def _sharing(one: ComparedRun) -> tuple[Any, ...]:
    return one.planned.seed, one.model, one.adapters, *asked(one.planned.config)
