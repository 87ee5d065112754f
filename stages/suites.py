"""Suites: completions of any participants on the problems of a public suite, judged as its reference scorer does. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stages.core import tables
from stages.core.engines.protocol import Engine, Request, before_stop
from stages.core.judging.judge import AnswerItem, judge_answers
from stages.core.prompts.styles import Kind, PromptStyle, Unparsed, solver_prompt
from stages.core.randomness import completion_seed
from stages.core.suites import prompts, statistics
from stages.core.suites.code_scoring import Expected, Sandboxes, score_programs
from stages.core.suites.math_grader import MathAnswer, MathGrader
from stages.core.suites.problems import Form, Problem
from stages.core.values.canonical import canonical, parse_value

KEPT_TEXT = 1 << 16
MAX_TEXT = 1 << 20


@dataclass(frozen=True)
class Participant:
    """One that answers: an adapter, the base model alone (`adapter_id` None), or an external model."""

    member_id: str
    role: str
    adapter_id: str | None
    adapter_sha256: str


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


@dataclass(frozen=True)
class Graders:
    """The sandbox (with the outputs of the reference solutions) and the grader of mathematics."""

    sandboxes: Sandboxes
    expected: Expected
    grader: MathGrader


@dataclass(frozen=True)
class StoredCompletion:
    """A completion with its participant, problem and attempt (0: the greedy one). `bare`: the text is the answer itself."""

    contestant: Participant
    problem_id: str
    attempt: int
    text: str
    cut: str = ""  # why there is no complete text: `too_long` for a prompt that leaves no room
    bare: bool = False
    truncated: bool = False


def complete(
    contestants: Sequence[Participant], problems: Sequence[Problem], engine: Engine, ask: SamplingPlan
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
    # The same for all contestants: scores are compared in pairs on common random numbers.
    return completion_seed(ask.seed, 0, "benchmark", problem.problem_id, attempt)


def judge(
    given: Sequence[StoredCompletion], problems: Sequence[Problem], suite: str, words: SuitePrompts, judges: Graders
) -> pa.Table:
    """Return ANSWERS: one row per completion, in order, with its status and whether it counts."""
    by_id = {problem.problem_id: problem for problem in problems}
    read = [_answer(by_id[one.problem_id], one, words) for one in given]
    verdicts: list[tuple[str, bool]] = [("", False)] * len(given)
    for forms, method in ((_PROGRAMS, _programs), (_LITERALS, _literals), ((Form.MATHEMATICS,), _mathematics)):
        places = [place for place, one in enumerate(given) if by_id[one.problem_id].form in forms]
        items = [(by_id[given[place].problem_id], read[place]) for place in places]
        for place, verdict in zip(places, method(items, judges) if items else [], strict=True):
            verdicts[place] = verdict
    rows = [
        _row(suite, by_id[one.problem_id], one, answer, *_final(one, verdict))
        for one, answer, verdict in zip(given, read, verdicts, strict=True)
    ]
    return tables.table(rows, tables.ANSWERS)


_PROGRAMS = (Form.FUNCTION, Form.STDIN)
_LITERALS = (Form.DEDUCTION, Form.ABDUCTION, Form.INDUCTION)


def _answer(problem: Problem, one: StoredCompletion, words: SuitePrompts) -> str | None:
    if one.cut or len(one.text) > MAX_TEXT:
        return None
    return one.text if one.bare else words.reads(problem, one.text, one.truncated)


def _final(one: StoredCompletion, verdict: tuple[str, bool]) -> tuple[str, bool]:
    if one.cut or len(one.text) > MAX_TEXT:
        return one.cut or "too_long", False
    return verdict


def _programs(items: Sequence[tuple[Problem, str | None]], judges: Graders) -> list[tuple[str, bool]]:
    return [(score.status, score.correct) for score in score_programs(items, judges.sandboxes, judges.expected)]


def _literals(items: Sequence[tuple[Problem, str | None]], judges: Graders) -> list[tuple[str, bool]]:
    asked = (
        AnswerItem(
            kind=problem.form.value,
            program=problem.program,
            inputs=problem.inputs,
            values=tuple(canonical(parse_value(output)) for output in problem.outputs),
            answer=answer,
        )
        for problem, answer in items
    )
    return [(found.status, found.correct) for found in judge_answers(judges.sandboxes.usual, asked)]


def _mathematics(items: Sequence[tuple[Problem, str | None]], judges: Graders) -> list[tuple[str, bool]]:
    replies = judges.grader.grade([MathAnswer(problem.outputs, answer) for problem, answer in items])
    return [(reply.status, reply.status == "correct") for reply in replies]


def _row(suite: str, problem: Problem, one: StoredCompletion, answer: str | None, status: str, correct: bool) -> dict[str, Any]:
    return {
        "suite": suite,
        "problem_id": problem.problem_id,
        "member_id": one.contestant.member_id,
        "kind": problem.group,
        "band": 0,
        "attempt": one.attempt,
        "greedy": one.attempt == 0,
        "adapter_id": one.contestant.adapter_id or "base",
        "adapter_sha256": one.contestant.adapter_sha256,
        "text": one.text.encode(errors="replace").decode()[:KEPT_TEXT],
        "answer": None if answer is None else answer.encode(errors="replace").decode()[:KEPT_TEXT],
        "status": str(status),
        "correct": correct,
    }


def score(answers: pa.Table, contestants: Sequence[Participant]) -> pa.Table:
    """Return SCORES of every contestant: greedy pass@1, avg@n, pass@k; overall, on the base tests alone (`base`), by slice."""
    rows = []
    listed = answers.drop_columns(["text", "answer"]).to_pylist()
    for who in contestants:
        own = [row for row in listed if row["member_id"] == who.member_id]
        groups = {"all": [row | {"counts": row["correct"]} for row in own]}
        if any(row["kind"] in ("humaneval", "mbpp") for row in own):
            groups["base"] = [row | {"counts": row["correct"] or row["status"] == "base_only"} for row in own]
        kinds = sorted({row["kind"] for row in own})
        groups |= {kind: [row for row in groups["all"] if row["kind"] == kind] for kind in kinds if len(kinds) > 1}
        for group, members in groups.items():
            for measure, found, attempts in _measures(members):
                rows.append(_score_row(answers["suite"][0].as_py(), who, group, measure, found, attempts))
    return tables.table(rows, tables.SCORES)


def _measures(rows: Sequence[dict[str, Any]]) -> list[tuple[str, statistics.ScoreEstimate, int]]:
    greedy, sampled = attempts_of(rows, greedy=True), attempts_of(rows, greedy=False)
    found = [("pass@1 greedy", statistics.average(greedy), 1)] if greedy else []
    if sampled:
        fewest = min(map(len, sampled.values()))
        found.append((f"avg@{fewest}", statistics.average(sampled), fewest))
        found += [(f"pass@{k}", statistics.passing(sampled, k), fewest) for k in statistics.powers(fewest)]
    return found


def attempts_of(rows: Sequence[dict[str, Any]], greedy: bool) -> dict[str, list[bool]]:
    """Return whether each attempt counts, by problem."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row["greedy"] == greedy:
            found.setdefault(row["problem_id"], []).append(bool(row.get("counts", row["correct"])))
    return found


def _score_row(
    suite: str, who: Participant, group: str, measure: str, found: statistics.ScoreEstimate, attempts: int
) -> dict[str, Any]:
    return {
        "suite": suite,
        "member_id": who.member_id,
        "role": who.role,
        "adapter_id": who.adapter_id or "base",
        "adapter_sha256": who.adapter_sha256,
        "group": group,
        "measure": measure,
        "score": found.mean,
        "stderr": found.stderr,
        "problems": found.problems,
        "attempts": attempts,
    }
