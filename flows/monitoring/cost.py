"""What a run has cost: tokens, time, energy and money of each stage and generation, and of a point gained on a benchmark.

Everything is read from manifests and small tables, so it counts what is committed: a stage that was retried or resumed counts
once, with the attempt that committed it. The time of attempts that failed or were killed is in no manifest and is not counted,
nor is waiting between stages. Parts that a killed stage had committed count, because the stage uses them. Benchmarks that ran
outside the run (nightly, or by command) are not part of it. Stages that a fork took over are its parent's cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from flows.monitoring.amounts import SAMPLED, amounts
from flows.monitoring.prices import of_machine
from flows.monitoring.run_tables import RunTables
from flows.monitoring.scored import Asked, Scored, by_question, ends, scored_generations
from flows.monitoring.spending import NOTHING, Spent, spent_by_stage, total
from flows.run.manifest import Manifest
from flows.run.run import Run
from flows.run.suite_versions import by_version, version_text
from flows.settings import Cost
from flows.stages import STAGE_NAMES, START
from flows.storage import Damaged, NotStored
from stages.analysis.summary import Values
from stages.core.suites.changes import score_changes
from stages.core.suites.scores import without_teachers
from stages.core.suites.statistics import Comparison

SURE = 1.96
"""Standard errors that a gain must exceed for a cost of a point: its 95 % interval then excludes 0."""
MEASURE = "pass@1 greedy"
TRAINED = "cost.trained_tokens"


@dataclass(frozen=True)
class GenerationCost:
    """The cost of one generation, or of the start (`generation` None), by stage in their order.

    `done` is False while stages are missing. `origins` has the run that a fork took a stage from, by stage; empty: none.
    """

    generation: int | None
    stages: Mapping[str, Spent]
    done: bool
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> Spent:
        """All stages, whichever run computed them."""
        return total(self.stages.values())

    @property
    def own(self) -> dict[str, Spent]:
        """The stages that the run itself has computed."""
        return {name: used for name, used in self.stages.items() if name not in self.origins}

    @property
    def inherited(self) -> dict[str, Spent]:
        """The stages that a fork took over."""
        return {name: used for name, used in self.stages.items() if name in self.origins}


@dataclass(frozen=True)
class PointCost:
    """The cost of training between two scored generations, and the gain that it brought, paired problem by problem.

    Attributes:
        suite: The benchmark. It has several of these if it was asked in different ways, or in several versions.
        first: The earlier generation as trained; -1: the start.
        last: The later one.
        gain: Change of the greedy pass@1 in percentage points, members but teachers averaged within each problem; `stderr` its
            error.
        problems: Number of problems.
        spent: All stages of the generations after `first` up to `last`, without benchmarks.
        question: How a public suite was asked, as in `question_of`, and what else tells these scores from others of the suite:
            that the best members were scored, and the version where there are several.
    """

    suite: str
    first: int
    last: int
    gain: float
    stderr: float | None
    problems: int
    spent: Spent
    question: str = ""

    @property
    def sure(self) -> bool:
        """Whether the gain exceeds its error, so that a cost of a point means something."""
        return self.stderr is not None and self.gain > SURE * self.stderr

    def of_a_point(self, amount: float) -> tuple[float, float] | None:
        """Return an amount for each point gained, with its standard error (the amount itself has none); None if not `sure`."""
        if not self.sure or self.stderr is None:
            return None
        each = amount / self.gain
        return each, each * self.stderr / self.gain


class ChangedSuite(NamedTuple):
    """A benchmark whose first and last scores are of different versions of the suite: the change is not known."""

    suite: str
    first: int
    last: int
    question: str = ""


class Gains(NamedTuple):
    """What was gained on benchmarks; suites whose scores cannot be paired by problem; and those that have changed in between."""

    points: tuple[PointCost, ...]
    unpaired: tuple[str, ...]
    changed: tuple[ChangedSuite, ...]


@dataclass(frozen=True)
class RunCost:
    """The cost of a run so far. `generations` begins with the start, once that is done.

    `unpaired` names the benchmarks that were scored twice, but on other problems: a gain, and so its cost, is not known.
    `changed` has those whose suite has changed. `unread` says which tables could not be read: what they know is not counted.
    """

    run_id: str
    generations: tuple[GenerationCost, ...]
    points: tuple[PointCost, ...]
    unpaired: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    changed: tuple[ChangedSuite, ...] = ()

    @property
    def stages(self) -> dict[str, Spent]:
        """Each stage over all generations, as far as this run itself computed it."""
        return own_stages(self.generations)

    @property
    def by_generation(self) -> dict[int | None, Spent]:
        """The same by generation, without those that a fork took over whole. None: the start."""
        return {one.generation: total(one.own.values()) for one in self.generations if one.own}

    @property
    def total(self) -> Spent:
        """Everything that this run itself has spent."""
        return total(self.by_generation.values())

    @property
    def inherited(self) -> Spent:
        """What the stages cost that a fork took over: spent once, by another run."""
        return total(used for one in self.generations for used in one.inherited.values())

    @property
    def parents(self) -> list[str]:
        """The runs that computed them."""
        return list(dict.fromkeys(name for one in self.generations for name in one.origins.values()))


def own_stages(generations: Iterable[GenerationCost]) -> dict[str, Spent]:
    """Return what a run itself has spent on each stage, in the order of a generation."""
    found: dict[str, Spent] = {}
    for one in generations:
        for name, used in one.own.items():
            found[name] = found.get(name, Spent()) + used
    return {name: found[name] for name in (START.name, *STAGE_NAMES) if name in found}


def run_cost(run: Run, prices: Cost | None = None) -> RunCost:
    """Return the cost of a run so far.

    Steps count with the price that they recorded; those without one with the price in this process's environment. `prices`
    replaces both, and the watts of every step if it has any. Raises ConfigError for a variable that cannot be used.
    """
    return cost_so_far(RunTables(run).look(), prices)


def cost_so_far(watch: RunTables, prices: Cost | None = None) -> RunCost:
    """Return the same from tables that have been read. What cannot be read of a benchmark gives no point."""
    found = generation_costs(watch, prices)
    gains = point_costs(watch, found)
    unread = tuple(watch.unread("metrics"))
    return RunCost(watch.run.run_id, found, gains.points, gains.unpaired, unread, gains.changed)


def generation_costs(watch: RunTables, prices: Cost | None = None) -> tuple[GenerationCost, ...]:
    """Return the cost of the start and of each generation that has begun."""
    fill = of_machine()
    start = watch.run.history.of_generation(None)
    found = [_generation(None, start, None, fill, prices)] if start else []
    for number in watch.generations:
        if steps := watch.steps(number):
            found.append(_generation(number, steps, watch.numbers(number), fill, prices))
    return tuple(found)


def generation_cost(watch: RunTables, generation: int | None) -> GenerationCost:
    """Return the cost of one generation, or of the start."""
    if generation is None:
        return _generation(None, watch.run.history.of_generation(None), None, of_machine(), None)
    return _generation(generation, watch.steps(generation), watch.numbers(generation), of_machine(), None)


def _generation(
    generation: int | None, steps: Sequence[Manifest], values: Values | None, fill: Cost, prices: Cost | None
) -> GenerationCost:
    known = {} if values is None else tokens(values, steps)
    stages = {}
    for name, used in spent_by_stage(steps, fill, prices).items():
        of_tables = known.get(name, NOTHING)
        if used.generated_tokens is not None and of_tables.generated_tokens is not None:
            of_tables = replace(of_tables, generated_tokens=None)
        stages[name] = used + of_tables
    done = START.name in stages if generation is None else "evolve" in stages
    origins = {step.whole_stage: ref.origin for step in steps for ref in step.outputs if ref.origin}
    return GenerationCost(generation, stages, done, origins)


def tokens(values: Values, steps: Sequence[Manifest]) -> dict[str, Spent]:
    """Return the tokens of each stage that METRICS of a generation know.

    Trained tokens, and generated ones for versions of this project that did not record them in the clock.
    """
    sampled = amounts(values, steps)
    found = {stage: Spent(generated_tokens=sampled["tokens", stage]) for stage in SAMPLED if ("tokens", stage) in sampled}
    if (trained := values.get((TRAINED, None, None, None))) is not None:
        found["update"] = Spent(trained_tokens=round(trained))
    return found


# a point gained on a benchmark -------------------------------------------------------------------------------------------------


def point_costs(watch: RunTables, generations: Sequence[GenerationCost]) -> Gains:
    """Return the cost of a point from the first to the last scored generation, for each benchmark that was scored twice.

    Benchmarks that asked the same question are one, however many samples they drew. Scores of different versions of a suite are
    never paired: each version has its own gain, and where none has both the first and the last score, the change is not known.
    """
    points, unpaired, changed = [], [], []
    for asked, scored in by_question(scored_generations(watch)).items():
        versions = by_version(scored, lambda one: one.version)
        start, newest = (one.generation for one in ends(scored))
        spans = []
        for version, own in versions.items():
            before, after = ends(own)
            first, last = before.generation, after.generation
            spans.append((first, last))
            between = [one for one in generations if one.generation is not None and first < one.generation <= last]
            if first == last or len(between) != last - first or not all("rate" in one.stages for one in between):
                continue
            change = _change(watch.run, after, before)
            if change is None:
                unpaired.append(asked.suite)
                continue
            used = total(cost for one in between for stage, cost in one.stages.items() if stage != "benchmark")
            error = None if change.stderr is None else 100 * change.stderr
            gain, question = 100 * change.difference, _question(asked, version if len(versions) > 1 else "")
            points.append(PointCost(asked.suite, first, last, gain, error, change.problems, used, question))
        if (start, newest) not in spans:
            changed.append(ChangedSuite(asked.suite, start, newest, _question(asked)))
    return Gains(tuple(points), tuple(unpaired), tuple(changed))


def _question(asked: Asked, version: str = "") -> str:
    parts = (f"{asked.who} members" if asked.who else "", asked.question, version_text(version) if version else "")
    return ", ".join(part for part in parts if part)


def _greedy(run: Run, scored: Scored) -> pa.Table:
    """Return the greedy answers of all but teachers; `benchmark.members = "all"` scores teachers, too."""
    table = run.read_table(scored.answers, "answers")
    own = table if scored.scores is None else without_teachers(table, run.read_table(scored.scores, "scores"))
    return own.filter(own["greedy"])


def _change(run: Run, after: Scored, before: Scored) -> Comparison | None:
    """Return the paired change of the greedy score over all problems; None if the problems differ or cannot be read."""
    try:
        now, was = _greedy(run, after), _greedy(run, before)
        problems = set(now["problem_id"].to_pylist())
        if not problems or problems != set(was["problem_id"].to_pylist()):
            return None
        changes = score_changes(now, was, lambda rows: iter([("all", rows)]))
        return next((one.found for one in changes if one.measure == MEASURE), None)
    except (NotStored, Damaged, ValueError):
        return None
