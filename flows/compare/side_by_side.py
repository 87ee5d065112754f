"""Runs of one store side by side: state, configuration, curves, benchmark scores, costs, and the best members' descent.

Everything is as far as each run has come: a generation that is not finished has its curves as soon as its update is done, and its
finished stages count in the costs. The first run is the one that the others are compared with.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.base_model.hub import UNLIKE_RULES, RecordedBase, bases_differ, recorded_base
from flows.compare.best_members import BestMember, best_members
from flows.compare.costs import CostRow, SideCost, cost_of, cost_rows, spent
from flows.compare.scores import MeanScore, PairedScores, ScoredState, ScoreReader, on_the_same_problems, scored_states
from flows.compare.settings_diff import SettingsDiff, diff, flat
from flows.config import identity, with_defaults
from flows.monitoring.players import players
from flows.monitoring.run_state import RunState, StateReader
from flows.monitoring.run_tables import RunTables
from flows.monitoring.start_score import unscored_start
from flows.monitoring.status import after, stage_text
from flows.run.history import OWN_WAY
from flows.run.manifest import Json, digest
from flows.run.planned import planned_generations
from flows.run.suite_versions import is_one_version
from flows.stages import STAGE_NAMES
from flows.storage import Damaged, NotStored, Store
from stages.analysis.curves import curves_of

CURVES = (
    "solve.rate",
    "propose.valid_share",
    "solve.entropy",
    "program.stripped_depth",
    "propose.entropy",
    "propose.completion_tokens",
    "solve.completion_tokens",
    "coverage.cells",
    "coverage.novelty",
    "program.stripped_lines",
    "program.stripped_cyclomatic",
    "reward.zero_variance_share (students)",
    "calibration.squared_error",
    "pair.adapter_distance (students)",
)
"""The metrics whose curves are laid over one another, the most telling ones first."""
MOST = 8
Row = dict[str, Any]
FORKED = "forked_from."  # versions that say where a fork comes from: a note has them, and they make no version differ
NOTHING_SPENT: Row = {"generated_tokens": 0.0, "seconds": 0.0}


@dataclass(frozen=True)
class Side:
    """One run of a comparison.

    `curves` has rows of name, generation, value, n, stderr, and what had been spent by then: generated_tokens and seconds.
    `score_curves` has the same for each suite, at the generation whose update made the scored adapters (-1: the start). It is
    made from `scores`, which are of the one set of a suite's problems that was scored in most generations. `faults` is what could
    not be read, `start_hint` how to score the start (empty: it is, or nothing is).
    """

    run_id: str
    state: RunState
    who: str
    done: int
    planned: int
    upcoming: str
    mode: str
    population: str
    model: str
    base_model: str
    base_model_rule: int
    start: str
    head: str
    settings: dict[str, Any]
    versions: dict[str, Any]
    curves: tuple[Row, ...]
    score_curves: tuple[Row, ...]
    states: tuple[ScoredState, ...]
    scores: tuple[MeanScore, ...]
    cost: SideCost
    best: tuple[BestMember, ...]
    faults: tuple[str, ...]
    start_hint: str


@dataclass(frozen=True)
class SideBySide:
    """A comparison. Differences of scores are a run minus the first one, over the problems that both answered."""

    runs: tuple[Side, ...]
    notes: tuple[str, ...]
    settings: SettingsDiff
    versions: SettingsDiff
    pairs: tuple[PairedScores, ...]
    costs: tuple[CostRow, ...]

    def suites(self) -> list[str]:
        """Return the suites that any run was scored on."""
        return sorted({score.suite for run in self.runs for score in run.scores})


class Comparer:
    """Compares runs of a store. Scores that were computed from the same bytes are kept between calls."""

    def __init__(self, store: Store, states: StateReader | None = None) -> None:
        self._states = states or StateReader(store)
        self._scores = ScoreReader()

    def compare(self, watches: Sequence[RunTables]) -> SideBySide:
        """Compare runs whose tables have been read, the first one with the others. Raises StoreUnavailable."""
        runs = tuple(self._side(watch) for watch in watches)
        pairs = [
            pair
            for watch, run in zip(watches[1:], runs[1:], strict=True)
            for pair in self._scores.pairs(watches[0].run, runs[0].states, watch.run, run.states)
        ]
        return SideBySide(
            runs,
            tuple(_notes(runs)),
            diff([run.settings for run in runs]),
            diff([{name: value for name, value in run.versions.items() if not name.startswith(FORKED)} for run in runs]),
            tuple(pairs),
            tuple(cost_rows([run.cost for run in runs])),
        )

    def _side(self, watch: RunTables) -> Side:
        run, faults = watch.run, list(watch.faults)
        description = run.history.description()
        if description is None:
            raise NotStored(f"There is no run {run.run_id} in {run.store.url}.")
        config = with_defaults(description["config"])
        manifests = [one for number in watch.generations for one in watch.manifests(number)]
        start, finished = run.manifest("start"), watch.newest_stages()
        planned, newest = planned_generations(description, finished), finished[-1] if finished else None
        base = recorded_base(start.versions if start else {})
        stage, generation = after(newest.stage, newest.generation, planned) if newest else ("start", None)
        standing = self._states.standing(run.run_id, not stage)
        states = tuple(scored_states(watch))
        scores, amounts = self._means(watch, states, faults), spent(watch)
        return Side(
            run_id=run.run_id,
            state=standing.state,
            who=standing.who,
            done=sum(one.stage == STAGE_NAMES[-1] for one in manifests),
            planned=planned,
            upcoming=stage_text(stage, generation),
            mode=str(config.get("mode", "population")),
            population=players(config),
            model=str(config.get("model", {}).get("name", "?")),
            base_model=base.digest,
            base_model_rule=base.rule,
            start=_start(start.outputs) if start else "",
            head=digest(newest) if newest else digest(description),
            settings=flat(identity(config)),
            versions=flat(description.get("versions", {})),
            curves=tuple(row | amounts[row["generation"]] for row in _curves(watch)),
            score_curves=tuple(_score_row(score) | amounts.get(score.trained - 1, NOTHING_SPENT) for score in scores),
            states=states,
            scores=tuple(scores),
            cost=cost_of(watch),
            best=best_members(watch),
            faults=tuple(faults),
            start_hint=unscored_start(watch),
        )

    def _means(self, watch: RunTables, states: Sequence[ScoredState], faults: list[str]) -> list[MeanScore]:
        found: list[MeanScore] = []
        for state in states:
            try:
                mean = self._scores.mean(watch.run, state)
            except (NotStored, Damaged) as error:
                faults.append(str(error).splitlines()[0])
                continue
            if mean is not None:
                found.append(mean)
        return on_the_same_problems(found)


def as_json(found: SideBySide, named: Callable[[str], str] = str) -> Json:
    """Return a comparison as plain JSON values. Numbers that are not finite become null.

    `named` writes commands in sentences as the user calls them.
    """
    runs = []
    for run in found.runs:
        values = asdict(run)
        for key in ("settings", "versions", "states"):
            del values[key]
        values["start_hint"] = named(run.start_hint)
        runs.append(values)
    values = {
        "runs": runs,
        "notes": [named(line) for line in found.notes],
        "settings": _diff_json(found, found.settings),
        "versions": _diff_json(found, found.versions),
        "pairs": [asdict(pair) for pair in found.pairs],
        "costs": [asdict(row) for row in found.costs],
    }
    return dict(_finite(values))


def _diff_json(found: SideBySide, settings: SettingsDiff) -> Json:
    names = [run.run_id for run in found.runs]
    differing = {one.key: dict(zip(names, one.values, strict=True)) for one in settings.differing}
    return {"equal": settings.equal, "differing": differing}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _curves(watch: RunTables) -> list[Row]:
    names = pa.array(sorted({name.partition(" (")[0] for name in CURVES}))
    metrics = watch.table("metrics")
    chosen = metrics.filter(pc.and_(pc.is_in(metrics["name"], value_set=names), pc.is_null(metrics["kind"])))
    by_generation: dict[int, list[Row]] = {}
    for row in chosen.to_pylist():
        by_generation.setdefault(row["generation"], []).append(row)
    found = ((number, row) for number, rows in by_generation.items() for row in curves_of(rows) if row["name"] in CURVES)
    return [{"generation": number} | row for number, row in found]


def _score_row(score: MeanScore) -> Row:
    known = {"name": score.suite, "generation": score.trained - 1, "value": score.score}
    return known | {"n": score.problems, "stderr": score.stderr}


def _start(outputs: Sequence[Any]) -> str:
    """Return a mark of the seed tasks and starting adapters that a run began with."""
    digests = {ref.sha256 for ref in outputs if ref.uri.endswith(("seeds.parquet", "adapter_model.safetensors"))}
    return " ".join(sorted(digests))


def _notes(runs: Sequence[Side]) -> list[str]:
    """Return what a reader must know before reading on: faults, unfinished generations, and unlike starting points."""
    said = [f"{run.run_id}: {fault}" for run in runs for fault in run.faults]
    for run in runs:
        if run.state != RunState.FINISHED:
            state = f"{'has' if run.state == RunState.SILENT else 'is'} {run.state}"
            said.append(f"{run.run_id} {state}: {run.done} of {run.planned} generations are done; next: {run.upcoming}.")
    said += [run.start_hint for run in runs if run.start_hint]
    differ = bases_differ(RecordedBase(run.base_model, run.base_model_rule) for run in runs)
    if differ:
        said.append("The runs have different base models.")
    elif differ is None:
        said.append(f"Whether the runs have the same base model is not known: {UNLIKE_RULES}.")
    seeds = {run.settings.get("seed") for run in runs}
    if len(seeds) == 1 and len({run.start for run in runs} - {""}) > 1:
        said.append("The runs have one seed, but not the same seed tasks and starting adapters.")
    for suite in sorted({score.suite for run in runs for score in run.scores}):
        asked = {run.run_id: {score.question for score in run.scores if score.suite == suite} for run in runs}
        if len(ways := set.union(*asked.values())) > 1:
            names = "; ".join(f"{way or OWN_WAY}: {', '.join(run for run in asked if way in asked[run])}" for way in sorted(ways))
            said.append(
                f"The curves and mean scores on {suite} do not compare, since the runs were asked in different ways ({names}); "
                "only scores asked alike are paired."
            )
        if not is_one_version(score.suite_sha256 for run in runs for score in run.scores if score.suite == suite):
            said.append(f"The curves and mean scores on {suite} do not compare: they are of different versions of the suite.")
    for run in runs:
        if forked := run.versions.get(f"{FORKED}run"):
            at, head = run.versions.get(f"{FORKED}generation"), str(run.versions.get(f"{FORKED}head", "?"))[:12]
            where = "its start" if at == -1 else f"generation {at}"
            said.append(f"{run.run_id} was forked from {forked} after {where} (head {head}): it shares what came before.")
    return said
