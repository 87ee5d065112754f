"""Benchmark: contestants answer fixed problems that no generation trains on, and their answers are judged. Pure.

The project's probe and the public suites take one path: `complete` asks, `judge` reads and grades. They differ in their prompts
(`SuitePrompts`) and in their graders: literals and `f` are compared by value as in a run, solutions of public suites are judged
as their reference scorers do. `stages.core.suites.scores` aggregates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stages.core import tables
from stages.core.engines.protocol import Engine, Request, before_stop
from stages.core.judging.judge import AnswerItem, judge_answers
from stages.core.progress import Progress, counted, silent
from stages.core.prompts.styles import Kind, PromptStyle, Unparsed, solver_prompt
from stages.core.randomness import completion_seed
from stages.core.row_errors import reading, rows_named
from stages.core.sandbox.protocol import Sandbox
from stages.core.suites import prompts
from stages.core.suites.code_scoring import Expected, Sandboxes, score_programs
from stages.core.suites.math_grader import MathAnswer, MathGrader
from stages.core.suites.problems import Form, Problem, matching
from stages.core.suites.scores import Contestant
from stages.core.values.canonical import canonical, parse_value

KEPT_TEXT = 1 << 16
MAX_TEXT = 1 << 20
PROGRAMS = (Form.FUNCTION, Form.STDIN)
VALUES = (Form.DEDUCTION, Form.ABDUCTION, Form.INDUCTION)

Verdict = tuple[str, bool]
"""The status of an answer, and whether it counts as correct."""


@dataclass(frozen=True)
class SamplingPlan:
    """How each problem is sampled: once greedily, and `attempts` times at `temperature`."""

    suite: str
    words: "SuitePrompts"
    attempts: int
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class SuitePrompts:
    """How to build a prompt from a problem, how to extract an answer from a completion (None if there is none), stop strings."""

    style: str
    asks: Callable[[Problem], str]
    reads: Callable[[Problem, str, bool], str | None]
    stops: Callable[[Problem], tuple[str, ...]] = lambda _: ()


def public_words(style: str, templated: Callable[[str], str]) -> SuitePrompts:
    """Return the fixed prompts of the public suites. A completion that was cut off is read like any other.

    `templated` puts a user message into the model's chat template, up to where the answer begins.
    """

    def asks(problem: Problem) -> str:
        said = prompts.wording(problem, style)
        return (templated(said.asked) if style == "chat" else said.asked) + said.opening

    return SuitePrompts(
        style,
        asks,
        lambda problem, text, _: prompts.continued(problem, text, style),
        lambda problem: prompts.wording(problem, style).stops,
    )


def found_words() -> SuitePrompts:
    """Return prompts for completions made elsewhere: there is nothing to ask, and the whole text is searched for the answer."""

    def asks(problem: Problem) -> str:
        raise ValueError(f"{problem.problem_id}: completions made elsewhere are asked nothing")

    return SuitePrompts("elsewhere", asks, lambda problem, text, _: prompts.answer(problem, text))


def own_words(name: str, style: PromptStyle) -> SuitePrompts:
    """Return the project's own prompts, for its probe: those that the population is trained with."""

    def reads(problem: Problem, text: str, truncated: bool) -> str | None:
        try:
            return style.read_answer(Kind(problem.form.value), text, truncated)
        except Unparsed:
            return None

    return SuitePrompts(
        name,
        lambda problem: solver_prompt(style, Kind(problem.form.value), problem.program, problem.inputs, problem.outputs, ""),
        reads,
        lambda problem: style.solve_stops(Kind(problem.form.value)),
    )


def chosen_problems(problems: pa.Table, limit: int, pattern: str = "") -> pa.Table:
    """Return the first `limit` problems (0: all), taken in turn over kinds and bands so that all slices shrink evenly.

    Only problems whose ids match the shell pattern count (empty: all). Raises BadSuite if there is none.
    """
    if pattern:
        problems = problems.take(matching(problems["problem_id"].to_pylist(), pattern))
    if not limit or limit >= problems.num_rows:
        return problems
    slices: dict[tuple[str, int], list[int]] = {}
    for index, (kind, band) in enumerate(zip(problems["kind"].to_pylist(), problems["band"].to_pylist(), strict=True)):
        slices.setdefault((kind, band), []).append(index)
    turns = max(len(indices) for indices in slices.values())
    order = [indices[turn] for turn in range(turns) for indices in slices.values() if turn < len(indices)]
    return problems.take(sorted(order[:limit]))


def probe_problems(problems: pa.Table) -> tuple[Problem, ...]:
    """Return the problems of the project's probe in the schema of the public suites."""
    return tuple(
        Problem(
            problem_id=row["problem_id"],
            form=Form(row["kind"]),
            group=row["kind"],
            question="",
            program=row["program"],
            entry_point="f",
            inputs=tuple(row["inputs"]),
            outputs=tuple(row["outputs"]),
        )
        for row in problems.to_pylist()
    )


@dataclass(frozen=True)
class StoredCompletion:
    """A completion with its contestant, problem and attempt (0: the greedy one). `bare`: the text is the answer itself."""

    contestant: Contestant
    problem_id: str
    attempt: int
    text: str
    cut: str = ""  # why there is no complete text: `too_long` for a prompt that leaves no room
    bare: bool = False
    truncated: bool = False


def complete(
    contestants: Sequence[Contestant], problems: Sequence[Problem], engine: Engine, ask: SamplingPlan
) -> list[StoredCompletion]:
    """Return every contestant's greedy and sampled completions on every problem, all in one engine's batches."""
    encoded = [tuple(engine.encode(ask.words.asks(problem))) for problem in problems]
    stops = [ask.words.stops(problem) for problem in problems]
    found: list[StoredCompletion] = []
    for attempts, temperature in ((range(1), 0.0), (range(1, ask.attempts + 1), ask.temperature)):
        asked = [(who, number, attempt) for who in contestants for number in range(len(problems)) for attempt in attempts]
        fitting = [item for item in asked if len(encoded[item[1]]) < engine.window]
        requests = [
            Request(encoded[number], who.adapter_id, _seed(ask, problems[number], attempt), ask.max_new_tokens, stops[number])
            for who, number, attempt in fitting
        ]
        completions = engine.generate(requests, temperature) if requests else []
        made = dict(zip(fitting, completions, strict=True))
        for who, number, attempt in asked:
            completion = made.get((who, number, attempt))
            text = "" if completion is None else before_stop(engine.decode(completion.token_ids), stops[number])
            cut, truncated = ("too_long", True) if completion is None else ("", completion.truncated)
            found.append(StoredCompletion(who, problems[number].problem_id, attempt, text, cut, truncated=truncated))
    return found


def _seed(ask: SamplingPlan, problem: Problem, attempt: int) -> int:
    # The same for all contestants and generations: scores are compared in pairs on common random numbers.
    return completion_seed(ask.seed, 0, "benchmark", problem.problem_id, attempt)


@dataclass(frozen=True)
class ReadAnswer:
    """The answer read from a completion to a problem; None if there is none."""

    problem: Problem
    answer: str | None
    name: str  # contestant, problem and attempt, for messages

    def shown(self) -> str:
        """Return the name with the beginning of the answer."""
        return f"{self.name}, whose answer is {self.answer!r:.200}"


@dataclass(frozen=True)
class Grader:
    """Gives the verdict of each answer to problems of these forms, in order."""

    forms: tuple[Form, ...]
    grade: Callable[[Sequence[ReadAnswer]], list[Verdict]]


def value_grader(sandbox: Sandbox, progress: Progress = silent) -> Grader:
    """Return the grader of the project's own three kinds, which compares values as a run does."""

    def grade(answers: Sequence[ReadAnswer]) -> list[Verdict]:
        items = (
            AnswerItem(
                kind=one.problem.form.value,
                program=one.problem.program,
                inputs=one.problem.inputs,
                values=tuple(canonical(parse_value(output)) for output in one.problem.outputs),
                answer=one.answer,
            )
            for one in answers
        )
        with rows_named("", [one.shown() for one in answers]):
            found = counted(judge_answers(sandbox, items), "answers", len(answers), progress)
            return [(str(one.status), one.correct) for one in found]

    return Grader(VALUES, grade)


def program_grader(sandboxes: Sandboxes, expected: Expected) -> Grader:
    """Return the grader of programs, which runs the suite's tests; `expected` are the outputs of the reference solutions."""

    def grade(answers: Sequence[ReadAnswer]) -> list[Verdict]:
        scores = score_programs([(one.problem, one.answer) for one in answers], sandboxes, expected)
        return [(str(score.status), score.correct) for score in scores]

    return Grader(PROGRAMS, grade)


def mathematics_grader(grader: MathGrader) -> Grader:
    """Return the grader of expressions."""

    def grade(answers: Sequence[ReadAnswer]) -> list[Verdict]:
        replies = grader.grade([MathAnswer(one.problem.outputs, one.answer) for one in answers])
        return [(str(reply.status), reply.status == "correct") for reply in replies]

    return Grader((Form.MATHEMATICS,), grade)


@dataclass(frozen=True)
class Recording:
    """What ANSWERS name besides the verdicts. Public suites have no bands, and keep only the beginning of a very long text."""

    suite: str
    bands: Mapping[str, int] = field(default_factory=dict)
    kept_text: int | None = KEPT_TEXT


def judge(
    given: Sequence[StoredCompletion],
    problems: Sequence[Problem],
    words: SuitePrompts,
    graders: Sequence[Grader],
    recording: Recording,
) -> pa.Table:
    """Return ANSWERS: one row per completion, in order, with its status and whether it counts."""
    by_id = {problem.problem_id: problem for problem in problems}
    read = [_read(by_id[one.problem_id], one, words) for one in given]
    verdicts: list[Verdict] = [("", False)] * len(given)
    for grader in graders:
        places = [place for place, one in enumerate(read) if one.problem.form in grader.forms]
        found = grader.grade([read[place] for place in places]) if places else []
        for place, verdict in zip(places, found, strict=True):
            verdicts[place] = verdict
    rows = [
        _row(recording, one, answer, *_final(one, verdict)) for one, answer, verdict in zip(given, read, verdicts, strict=True)
    ]
    return tables.table(rows, tables.ANSWERS)


def answer_probe(
    contestants: Sequence[Contestant],
    problems: pa.Table,
    engine: Engine,
    sandbox: Sandbox,
    ask: SamplingPlan,
    progress: Progress = silent,
) -> pa.Table:
    """Return ANSWERS of the contestants to the project's probe, judged as in a run."""
    listed = probe_problems(problems)
    bands = dict(zip(problems["problem_id"].to_pylist(), problems["band"].to_pylist(), strict=True))
    given = complete(contestants, listed, engine, ask)
    return judge(given, listed, ask.words, [value_grader(sandbox, progress)], Recording(ask.suite, bands, None))


def _read(problem: Problem, one: StoredCompletion, words: SuitePrompts) -> ReadAnswer:
    name = f"{one.contestant.member_id} {problem.problem_id} {one.attempt}"
    if one.cut or len(one.text) > MAX_TEXT:
        return ReadAnswer(problem, None, name)
    with reading(name, one.text):
        return ReadAnswer(problem, one.text if one.bare else words.reads(problem, one.text, one.truncated), name)


def _final(one: StoredCompletion, verdict: Verdict) -> Verdict:
    if one.cut or len(one.text) > MAX_TEXT:
        return one.cut or "too_long", False
    return verdict


def _row(recording: Recording, one: StoredCompletion, read: ReadAnswer, status: str, correct: bool) -> dict[str, Any]:
    return {
        "suite": recording.suite,
        "problem_id": one.problem_id,
        "member_id": one.contestant.member_id,
        "kind": read.problem.group,
        "band": recording.bands.get(one.problem_id, 0),
        "attempt": one.attempt,
        "greedy": one.attempt == 0,
        "adapter_id": one.contestant.adapter_id or "base",
        "adapter_sha256": one.contestant.adapter_sha256,
        "text": _storable(one.text, recording.kept_text),
        "answer": None if read.answer is None else _storable(read.answer, recording.kept_text),
        "status": status,
        "correct": correct,
    }


def _storable(text: str, most: int | None) -> str:
    """Return the beginning of a text without lone surrogates, which Parquet cannot store."""
    return text.encode(errors="replace").decode()[:most]
