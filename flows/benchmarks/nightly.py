"""The scheduled benchmark: scores the newest generation of every run in a store unless it is already scored. Imports no Prefect.

A deployment calls `score_store`. It never touches a run's chain or lease, so training continues meanwhile.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from flows.benchmarks.members import Chosen, config_of, newest_generation
from flows.benchmarks.score import Question, of_version, score_run, scored_generations
from flows.config import ConfigError
from flows.run.history import population_age
from flows.run.run import Run
from flows.storage import Damaged, NotStored, Store, StoreRefused, open_store
from flows.store.many_reads import read_each
from flows.store.names import RUN_ID
from flows.suites.own_suites import OwnSuites
from stages.core.highlight import markdown_line
from stages.core.suites.statistics import population

OWN = "its own suite"


@dataclass(frozen=True)
class ScoredRun:
    """One suite of one run: SCORES, those of the generation scored before (None: first time), and whether it was scored now.

    `generation` is None if adapters were named.
    """

    run_id: str
    suite: str
    generation: int | None
    scores: pa.Table
    before: pa.Table | None
    scored_now: bool


@dataclass(frozen=True)
class Summary:
    """Results of a benchmark of a whole store, and what could not be scored: (run, suite, reason)."""

    runs: tuple[ScoredRun, ...]
    failures: tuple[tuple[str, str, str], ...]

    def markdown(self) -> str:
        """Return a Markdown note: the population's overall scores with standard errors, and the change since the last time."""
        lines = ["| run | suite | generation | measure | mean | ± s.e. | min | max | members | change |", "|" + "---|" * 10]
        lines += [line for one in self.runs for line in _lines(one)]
        failed = [(markdown_line(run), suite, markdown_line(reason)) for run, suite, reason in self.failures]
        lines += [f"| {run} | {suite} | not scored: {reason} |" + " |" * 7 for run, suite, reason in failed]
        return "\n".join(lines) if len(lines) > 2 else "No runs to score."


def score_store(
    store_url: str,
    suites: Sequence[str] = (),
    members: str = "students",
    runs: Sequence[str] = (),
    limit: int = 0,
    attempts: int = 0,
) -> Summary:
    """Score the newest generation of every run of the store (or of the named `runs`) on `suites`; skip what is already scored.

    Without `suites`, a run is scored as it scores itself: on `benchmark.suite`, with the run's `benchmark.limit` and
    `benchmark.attempts` in place of 0; what its own benchmark has scored of the same members is taken from there. `members` is
    `students`, `all`, `top:N` (by fitness) or adapter ids separated by commas. A run that cannot be scored (its data is damaged,
    retired or of a newer version, its model is missing) becomes a line of the summary; an unreachable service raises.
    """
    store, scored, failures = open_store(store_url), [], []
    for run_id in runs or run_ids(store):
        for suite in suites or [OWN]:
            try:
                run = _existing(store, run_id)
                if suite == OWN:
                    scored.append(_by_itself(run, members, limit, attempts))
                else:
                    scored.append(_scored(run, members, Question(suite, limit, attempts)))
            except (ConfigError, NotStored, Damaged, StoreRefused) as error:
                failures.append((run_id, suite, str(error).splitlines()[0]))
    return Summary(tuple(scored), tuple(failures))


def run_ids(store: Store) -> list[str]:
    """The runs of a store: every folder with a run.json, in the order of their names. What they hold is not listed."""
    names = [name for name in store.folders("") if RUN_ID.fullmatch(name)]
    described = read_each(lambda name: store.exists(f"{name}/run.json"), names)
    return [name for name, there in zip(names, described, strict=True) if there]


def _existing(store: Store, run_id: str) -> Run:
    run = Run(store, run_id)
    if run.history.description() is None:
        raise NotStored(f"no run {run_id}")
    return run


def _by_itself(run: Run, members: str, limit: int, attempts: int) -> ScoredRun:
    """Score a run on its own suite. What its own benchmark asked of the same members in the same way counts as scored."""
    rule = config_of(run).benchmark
    asked = Question(rule.suite, limit or rule.limit, attempts or rule.attempts)
    itself = asked == Question(rule.suite, rule.limit, rule.attempts) and members == rule.members
    return _scored(run, members, asked, _own_scores(run, rule.suite) if itself else {})


def _own_scores(run: Run, suite: str) -> dict[int, pa.Table]:
    """Return the SCORES that the run's own benchmark stored of its newest two states; -1: the start.

    Not those of a fork's parent, which may have been asked otherwise; none that are damaged, or of another version of the suite.
    """
    found, now = dict[int, pa.Table](), OwnSuites().digest(suite)
    for number in reversed(run.history.generations()):
        manifest = run.manifest("benchmark", number)
        for ref in manifest.outputs if manifest is not None and of_version(manifest, now) else ():
            age = population_age(ref.uri, number)
            if age is not None and ref.uri.split("/")[-3] == suite and not ref.origin:
                with suppress(Damaged, NotStored):
                    found[age - 1] = run.read_table(ref, "scores")
        if len(found) >= 2:
            break
    return found


def _scored(run: Run, members: str, asked: Question, known: Mapping[int, pa.Table] = MappingProxyType({})) -> ScoredRun:
    """Return scores of the newest generation, and those before. `known` are some of the same question by generation."""
    if (chosen := Chosen(members=members)).named:  # the same adapters at any time: there is no generation before
        return ScoredRun(run.run_id, asked.suite, None, score_run(run, chosen, asked), None, True)
    generation, known = newest_generation(run), {**known, **dict(scored_generations(run, members, asked))}
    there = generation in known
    scores = known[generation] if there else score_run(run, Chosen((), generation, members), asked)
    before = max((number for number in known if number < generation), default=None)
    return ScoredRun(run.run_id, asked.suite, generation, scores, None if before is None else known[before], not there)


def _lines(one: ScoredRun) -> list[str]:
    """Return one line per measure: mean, minimum and maximum over the members (the best member is not a headline)."""
    before = {row["measure"]: row["mean"] for row in population_scores(one.before)} if one.before is not None else {}
    lines = []
    for row in population_scores(one.scores):
        known = before.get(row["measure"])
        first = "first time" if one.generation is not None else "–"  # named adapters stay what they are
        change = first if known is None else f"{100 * (row['mean'] - known):+.2f}"
        numbers = [f"{100 * row[name]:.2f}" for name in ("mean", "stderr", "min", "max") if row[name] is not None]
        numbers = numbers if len(numbers) == 4 else [numbers[0], "", *numbers[1:]]
        cells = [
            one.run_id,
            one.suite,
            "named" if one.generation is None else str(one.generation),
            row["measure"],
            *numbers,
            str(row["members"]),
            change,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def population_scores(scores: pa.Table) -> list[dict[str, Any]]:
    """Return the population's mean, minimum, maximum, members and problems for each overall measure.

    `stderr` is an upper bound of the mean's standard error (stages.core.suites.statistics.population).
    """
    rows = [row for row in scores.to_pylist() if row["group"] == "all"]
    found = []
    for measure in dict.fromkeys(row["measure"] for row in rows):
        own = [row for row in rows if row["measure"] == measure]
        of = population([row["score"] for row in own], [row["stderr"] for row in own])
        found.append(
            {"measure": measure, "mean": of.mean, "stderr": of.stderr, "min": of.lowest, "max": of.highest}
            | {"members": of.members, "problems": own[0]["problems"]}
        )
    return found
