"""Benchmark scores of runs: each scored state as the mean of its members, and two runs paired by problem."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from flows.config import with_defaults
from flows.monitoring.run_tables import RunTables
from flows.run.history import OWN_WAY, population_age, question_of
from flows.run.manifest import Manifest, Ref
from flows.run.run import Run
from flows.run.suite_versions import by_version, is_one_version, suite_version
from flows.storage import Damaged, NotStored
from flows.store.table_bytes import decode_table
from stages.core.suites.changes import ScoreChange, score_changes
from stages.core.suites.scores import by_slice, without_teachers
from stages.core.suites.statistics import population
from stages.core.tables import SCORES

MAIN = "pass@1 greedy"
LARGEST = 200_000  # answers of one benchmark, up to which runs are paired: they need them in memory
KEPT = 512


@dataclass(frozen=True)
class ScoredState:
    """Scores of a run's population after `trained` generations (0: the start), with the answers that they come from.

    `suite_sha256` is that of the suite's problems, known for the project's own. `question` says how `populora benchmark`
    asked them, such as "chat, 1,024 tokens"; empty: as the run's own configuration does. `temperature` is that of sampled
    answers; 0 where it is not recorded.
    """

    suite: str
    trained: int
    scores: Ref
    answers: Ref | None
    suite_sha256: str = ""
    question: str = ""
    temperature: float = 0.0


@dataclass(frozen=True)
class MeanScore:
    """The mean over members of one measure on all problems of a suite.

    `stderr` is an upper bound of the mean's standard error over problems (stages.core.suites.statistics.population).
    """

    suite: str
    trained: int
    measure: str
    score: float
    stderr: float | None
    lowest: float
    highest: float
    members: int
    problems: int
    question: str = ""
    suite_sha256: str = ""


@dataclass(frozen=True)
class PairedScores:
    """Two runs on the problems of one suite that both answered, the second minus the first. `said`: why there are no changes.

    Both were asked the same `question`, as in ScoredState.
    """

    suite: str
    first: str
    second: str
    first_trained: int
    second_trained: int
    changes: tuple[ScoreChange, ...]
    said: str = ""
    question: str = ""


Asked = dict[tuple[str, str], dict[int, ScoredState]]
"""Scored states by (suite, question) and generations trained."""


def scored_states(watch: RunTables) -> list[ScoredState]:
    """Return the scored states of a population, by suite and age: those of the run's own benchmarks, and those scored later.

    Scores of chosen adapters (`--adapter`, `--members top:N`) are none of the population.
    """
    description = watch.run.history.description()
    engine = with_defaults(description["config"]).get("engine", {}) if description else {}
    usual = float(engine.get("temperature", 0.0))
    own = [one for number in watch.generations for one in watch.manifests(number) if one.stage == "benchmark"]
    found = [state for one in own for state in _own(one, usual)]
    found += [state for one in watch.run.history.benchmarks() for state in _asked(one, usual)]
    return sorted(found, key=lambda state: (state.suite, state.trained, state.answers is not None))


def mean_score(scores: pa.Table, suite: str, trained: int, question: str = "", suite_sha256: str = "") -> MeanScore | None:
    """Return the main measure of SCORES: greedy if there is one, of all members but teachers; None without such a row."""
    rows = [row for row in scores.to_pylist() if row["group"] == "all" and row["role"] != "teacher"]
    measure = MAIN if any(row["measure"] == MAIN for row in rows) else rows[0]["measure"] if rows else ""
    own = [row for row in rows if row["measure"] == measure]
    if not own:
        return None
    of, problems = population([row["score"] for row in own], [row["stderr"] for row in own]), max(row["problems"] for row in own)
    scored = MeanScore(suite, trained, measure, of.mean, of.stderr, of.lowest, of.highest, of.members, problems)
    return replace(scored, question=question, suite_sha256=suite_sha256)


def on_the_same_problems(means: Iterable[MeanScore]) -> list[MeanScore]:
    """Return the scores of each suite that form a curve: of one number of problems asked in one way, that with the most ages.

    Scores on a part of a suite and on the whole are of different problems, and do not compare; nor do scores of different
    prompts, or of different versions of the suite. Of several curves with equally many ages the one with the newest counts, and
    of several scores of one age the last.
    """
    asked: dict[tuple[str, int, str], list[MeanScore]] = {}
    for mean in means:
        asked.setdefault((mean.suite, mean.problems, mean.question), []).append(mean)
    suites: dict[str, list[dict[int, MeanScore]]] = {}
    for (suite, *_), alike in asked.items():
        for own in by_version(alike, lambda mean: mean.suite_sha256).values():
            suites.setdefault(suite, []).append({mean.trained: mean for mean in own})
    chosen = (max(curves, key=lambda ages: (len(ages), max(ages))) for curves in suites.values())
    return [mean for ages in chosen for mean in ages.values()]


class ScoreReader:
    """Reads scores and pairs answers. What was computed from the same bytes is kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], object] = OrderedDict()
        self._lock = threading.Lock()

    def mean(self, run: Run, state: ScoredState) -> MeanScore | None:
        """Return the mean score of a state. Raises NotStored or Damaged."""
        named = (state.suite, state.trained, state.question, state.suite_sha256)
        key = ("mean", state.scores.sha256, *map(str, named))
        known, found = self._look(key)
        if not known:
            found = self._keep(key, mean_score(_for_mean(run, state.scores), *named))
        assert found is None or isinstance(found, MeanScore)
        return found

    def pairs(
        self, first: Run, first_states: Sequence[ScoredState], second: Run, second_states: Sequence[ScoredState]
    ) -> Iterator[PairedScores]:
        """Yield, for each suite and way of asking, the newest scores and, if of other ages, the newest at equal generations.

        States on different problems may form a pair: their difference is over the problems that both have answered.
        """
        ours, theirs = self._by_question(first, first_states), self._by_question(second, second_states)
        for suite in dict.fromkeys(suite for suite, _ in ours):
            shared = [key for key in ours if key[0] == suite and key in theirs]
            for mine, other in ((ours[key], theirs[key]) for key in shared):
                yield self._pair(first, mine[max(mine)], second, other[max(other)])
                equal = max(mine.keys() & other.keys(), default=None)
                if equal is not None and max(mine) != max(other):
                    yield self._pair(first, mine[equal], second, other[equal])
            others = [key for key in theirs if key[0] == suite]
            if others and not shared:
                yield self._pair(first, _newest(ours, suite), second, _newest(theirs, suite))

    def _by_question(self, run: Run, states: Sequence[ScoredState]) -> Asked:
        """Return the states by (suite, question) and age.

        Of several of one age, it is that on most problems, and of those with most answers; of equal ones the last.
        """
        found: Asked = {}
        for state in states:
            ages = found.setdefault((state.suite, state.question), {})
            known = ages.get(state.trained)
            if known is None or self._extent(run, state) >= self._extent(run, known):
                ages[state.trained] = state
        return found

    def _extent(self, run: Run, state: ScoredState) -> tuple[int, int]:
        mean = None
        with suppress(NotStored, Damaged):
            mean = self.mean(run, state)
        return mean.problems if mean else 0, (state.answers.rows or 0) if state.answers else 0

    def _pair(self, first: Run, one: ScoredState, second: Run, other: ScoredState) -> PairedScores:
        changes: tuple[ScoreChange, ...] = ()
        said = _unpairable(one, other)
        if not said:
            try:
                changes, said = _comparable(self._changes(first, one, second, other), one, other)
            except ValueError as error:
                said = f"not paired: {error}"
            except (NotStored, Damaged) as error:
                said = f"not paired: {str(error).splitlines()[0]}"
        return PairedScores(one.suite, first.run_id, second.run_id, one.trained, other.trained, changes, said, one.question)

    def _changes(self, first: Run, one: ScoredState, second: Run, other: ScoredState) -> tuple[ScoreChange, ...]:
        assert one.answers is not None and other.answers is not None, (one, other)
        key = ("pair", one.answers.sha256, other.answers.sha256)
        known, found = self._look(key)
        if not known:
            found = self._keep(key, tuple(score_changes(_students(second, other), _students(first, one), by_slice)))
        assert isinstance(found, tuple)
        return found

    def _look(self, key: tuple[str, ...]) -> tuple[bool, object]:
        with self._lock:
            if key not in self._kept:
                return False, None
            self._kept.move_to_end(key)
            return True, self._kept[key]

    def _keep(self, key: tuple[str, ...], found: object) -> object:
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found


def _for_mean(run: Run, ref: Ref) -> pa.Table:
    """Return the columns of SCORES that `mean_score` reads: a comparison reads all benchmarks of its runs."""
    wanted = ("role", "group", "measure", "score", "problems", "stderr")
    return decode_table(run.read_blob(ref), SCORES, ref.uri, wanted, ref.rows)


def _unpairable(one: ScoredState, other: ScoredState) -> str:
    """Return why two states cannot be paired by problem; empty if they can."""
    if one.answers is None or other.answers is None:
        return "not paired: the answers of one run are not stored"
    if max(one.answers.rows or 0, other.answers.rows or 0) > LARGEST:
        return f"not paired: more than {LARGEST:,} answers"
    if not is_one_version((one.suite_sha256, other.suite_sha256)):
        return "not paired: the runs used different versions of the suite"
    if one.question != other.question:
        return f"not paired: asked in different ways ({one.question or OWN_WAY}; {other.question or OWN_WAY})"
    return ""


def _comparable(changes: tuple[ScoreChange, ...], one: ScoredState, other: ScoredState) -> tuple[tuple[ScoreChange, ...], str]:
    """Return the changes that mean something, without sampled answers of unlike temperatures, and why there are none."""
    if one.temperature == other.temperature:
        return changes, ""
    greedy = tuple(change for change in changes if change.measure == MAIN)
    how = f"{one.temperature:g} and {other.temperature:g}"
    return greedy, "" if greedy or not changes else f"not paired: answers sampled at temperatures {how}"


def _students(run: Run, state: ScoredState) -> pa.Table:
    """Return the answers of a state's members except teachers, which some runs score, too."""
    assert state.answers is not None, state
    return without_teachers(run.read_table(state.answers, "answers"), run.read_table(state.scores, "scores"))


def _newest(asked: Asked, suite: str) -> ScoredState:
    """Return the newest state on a suite, however it was asked."""
    return max(
        (state for key, own in asked.items() if key[0] == suite for state in own.values()), key=lambda state: state.trained
    )


def _own(manifest: Manifest, temperature: float) -> Iterator[ScoredState]:
    """Yield the states that a run's own benchmark scored: `benchmarks/{suite}/generation=0009/scores.parquet`, or `start`."""
    assert manifest.generation is not None, manifest.stage
    for ref in manifest.outputs:
        if (trained := population_age(ref.uri, manifest.generation)) is not None:
            digest, folder = suite_version(manifest), ref.uri.rpartition("/")[0]
            yield ScoredState(folder.split("/")[1], trained, ref, _answers(manifest, folder), digest, temperature=temperature)


def _asked(manifest: Manifest, temperature: float) -> Iterator[ScoredState]:
    """Yield the states that `populora benchmark` scored: `benchmarks/{suite}/asked/generation=0009-all-…/scores.parquet`."""
    for ref in manifest.outputs:
        if (trained := population_age(ref.uri, None)) is not None:
            folder = ref.uri.rpartition("/")[0]
            drawn = float(manifest.versions.get("question", {}).get("temperature", temperature))
            answers, suite, question = _answers(manifest, folder), folder.split("/")[1], question_of(manifest)
            digest = "" if question else suite_version(manifest)
            yield ScoredState(suite, trained, ref, answers, digest, question, drawn)


def _answers(manifest: Manifest, folder: str) -> Ref | None:
    return next((ref for ref in manifest.outputs if ref.uri == f"{folder}/answers.parquet"), None)
