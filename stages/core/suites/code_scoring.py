"""Scores of programs: every test in the sandbox, every comparison on the host.

HumanEval+ and MBPP+: base and plus tests are two runs of one process, each from a fresh module, as EvalPlus has two processes.
The correct values come from the task's reference, run in the same way. LiveCodeBench: methods are called in one process, and
where that takes too long, in one process per test, since the time limit is a test's; programs that read standard input get one
process per test. With a process per test, a few tests run at first, the rest only if those passed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stages.core.sandbox.protocol import Job, Sandbox, Status
from stages.core.suites import evalplus_rules, harness, livecode_rules
from stages.core.suites.harness import MAX_SOLUTION, PRELUDE, Outcome, ReturnedValue
from stages.core.suites.problems import BadSuite, Form, Problem


@dataclass(frozen=True)
class Reference:
    """What a problem's reference returns for the base and for the plus inputs; `slow`: it needed the patient sandbox."""

    groups: tuple[tuple[ReturnedValue, ...], ...]
    slow: bool = False


Expected = Mapping[str, Reference]


@dataclass(frozen=True)
class Sandboxes:
    """Where programs run: most in `usual`; those of problems whose reference itself takes long in `patient`."""

    usual: Sandbox
    patient: Sandbox


_WAVES = (1, 4, 16)  # tests with a process of their own, before all the others


@dataclass(frozen=True)
class Score:
    """`status`: correct, base_only (the plus tests fail), wrong, error, format, too_long, or the sandbox's word."""

    status: str
    detail: str = ""

    @property
    def correct(self) -> bool:
        """Whether every test passed."""
        return self.status == "correct"


def expected_values(problems: Sequence[Problem], sandboxes: Sandboxes) -> dict[str, Reference]:
    """Return the references' outputs. Raise BadSuite if one fails: then the data or this sandbox is faulty."""
    asked = [problem for problem in problems if problem.form is Form.FUNCTION and problem.reference]
    found = dict(zip(asked, _run_references(asked, sandboxes.usual), strict=True))
    slow = [problem for problem in asked if found[problem].status in (Status.TIMEOUT, Status.MEMORY)]
    found |= dict(zip(slow, _run_references(slow, sandboxes.patient), strict=True))
    for problem, outcome in found.items():
        wanted = (len(problem.inputs), len(problem.plus_inputs))
        errors = [one.text for group in outcome.groups for one in group if one.tag == "e"]
        if outcome.status != Status.VALID or tuple(map(len, outcome.groups)) != wanted or errors:
            raise BadSuite(f"problem {problem.problem_id}: its reference fails here: {outcome.detail or errors[:1]}")
    return {problem.problem_id: Reference(outcome.groups, problem in slow) for problem, outcome in found.items()}


def _run_references(problems: Sequence[Problem], sandbox: Sandbox) -> list[Outcome]:
    jobs = (_function(problem, problem.reference, True, plus=True) for problem in problems)
    return [harness.read(verdict, asked=2) for verdict in sandbox.run(jobs)] if problems else []


def score_programs(answers: Sequence[tuple[Problem, str | None]], sandboxes: Sandboxes, expected: Expected) -> list[Score]:
    """Return one score per answer (a problem and a program, or None), in order. Equal answers to a problem run once."""
    distinct = list(dict.fromkeys((problem.problem_id, program) for problem, program in answers))
    problems = {problem.problem_id: problem for problem, _ in answers}
    found: dict[tuple[str, str | None], Score] = {}
    asked: dict[str, list[tuple[Problem, str]]] = {"reference": [], "slow": [], "values": [], "stdin": []}
    for problem_id, program in distinct:
        problem = problems[problem_id]
        if program is None or not program.strip():
            found[problem_id, program] = Score("format", "no program")
        elif len(program) > MAX_SOLUTION:
            found[problem_id, program] = Score("too_long", f"a program of {len(program)} characters, over {MAX_SOLUTION}")
        else:
            asked[_kind(problem, expected)].append((problem, program))
    scored = _by_reference(asked["reference"], sandboxes.usual, expected)
    scored += _by_reference(asked["slow"], sandboxes.patient, expected)
    scored += _by_values(asked["values"], sandboxes.usual)
    scored += _one_by_one(asked["stdin"], sandboxes.usual, _stdin_job, _output_score)
    for (problem, program), score in zip([pair for pairs in asked.values() for pair in pairs], scored, strict=True):
        found[problem.problem_id, program] = score
    return [found[problem.problem_id, program] for problem, program in answers]


def _kind(problem: Problem, expected: Expected) -> str:
    if problem.reference:
        return "slow" if expected[problem.problem_id].slow else "reference"
    return "stdin" if problem.form is Form.STDIN else "values"


def _function(problem: Problem, program: str, reference: bool, plus: bool) -> Job:
    groups = [problem.inputs, *([problem.plus_inputs] if plus else [])]
    shape = evalplus_rules.shape(problem, reference)
    return harness.function_job(program, "", problem.entry_point, shape, groups, extracted=not reference)


def _by_reference(answers: list[tuple[Problem, str]], sandbox: Sandbox, expected: Expected) -> list[Score]:
    """Run base and plus tests together; run programs that then returned no values on the base tests alone."""
    if not answers:
        return []
    verdicts = sandbox.run(_function(problem, program, False, bool(problem.plus_inputs)) for problem, program in answers)
    outcomes = [
        harness.read(verdict, asked=1 + bool(problem.plus_inputs))
        for (problem, _), verdict in zip(answers, verdicts, strict=True)
    ]
    again = [
        number for number, outcome in enumerate(outcomes) if outcome.status != Status.VALID and answers[number][0].plus_inputs
    ]
    alone = sandbox.run(_function(*answers[number], False, False) for number in again) if again else iter(())
    base_only = {number: harness.read(verdict) for number, verdict in zip(again, alone, strict=True)}
    return [
        _judged(problem, outcomes[number], base_only.get(number), expected[problem.problem_id].groups)
        for number, (problem, _) in enumerate(answers)
    ]


def _judged(problem: Problem, both: Outcome, base: Outcome | None, expected: Sequence[Sequence[ReturnedValue]]) -> Score:
    first = base or both
    if first.status != Status.VALID:
        return Score(first.status, first.detail)
    if not first.groups:
        return Score(Status.CRASH, "no values")
    failing = evalplus_rules.failing(problem, problem.inputs, first.groups[0], expected[0])
    if failing:
        return Score(_word(first.groups[0], failing), failing)
    if not problem.plus_inputs:
        return Score("correct")
    if both.status != Status.VALID:
        return Score("base_only", f"plus: {both.status}: {both.detail}")
    given = both.groups[1] if len(both.groups) > 1 else ()
    failing = evalplus_rules.failing(problem, problem.plus_inputs, given, expected[1])
    return Score("base_only", f"plus {failing}") if failing else Score("correct")


def _word(returned: Sequence[ReturnedValue], failing: str) -> str:
    """Return `error` if an exception ended the run at the failed test, else `wrong`."""
    ended = returned[-1].tag == "e" if returned else False
    return "error" if ended and failing.startswith(f"test {len(returned)}:") else "wrong"


def _by_values(answers: list[tuple[Problem, str]], sandbox: Sandbox) -> list[Score]:
    """Call methods for all tests in one process; those over the time limit then have it for each test."""
    jobs = (_method_job(problem, program, problem.inputs) for problem, program in answers)
    outcomes = [harness.read(verdict) for verdict in sandbox.run(jobs)] if answers else []
    scores = [_method_score(problem, outcome) for (problem, _), outcome in zip(answers, outcomes, strict=True)]
    slow = [number for number, score in enumerate(scores) if score.status == Status.TIMEOUT]
    again = _one_by_one([answers[number] for number in slow], sandbox, _one_call, _value_score)
    for number, score in zip(slow, again, strict=True):
        scores[number] = score
    return scores


def _method_job(problem: Problem, program: str, inputs: Sequence[str]) -> Job:
    return harness.function_job(program, PRELUDE, problem.entry_point, "listed", [inputs])


def _one_call(problem: Problem, program: str, test: int) -> Job:
    return _method_job(problem, program, problem.inputs[test : test + 1])


def _stdin_job(problem: Problem, program: str, test: int) -> Job:
    return harness.stdin_job(program, PRELUDE, problem.inputs[test])


def _method_score(problem: Problem, outcome: Outcome) -> Score:
    if outcome.status != Status.VALID:
        return Score(outcome.status, outcome.detail)
    returned = outcome.groups[0] if outcome.groups else ()
    scores = (_returned_score(returned[number:], wanted, number) for number, wanted in enumerate(problem.outputs))
    return next((score for score in scores if not score.correct), Score("correct"))


def _value_score(problem: Problem, outcome: Outcome, test: int) -> Score:
    if outcome.status != Status.VALID:
        return Score(outcome.status, f"test {test + 1}: {outcome.detail}")
    return _returned_score(outcome.groups[0] if outcome.groups else (), problem.outputs[test], test)


def _returned_score(returned: Sequence[ReturnedValue], wanted: str, test: int) -> Score:
    """Return the score of the first of these values, that of a test."""
    if not returned:
        return Score("crash", f"test {test + 1}: the run ended before it")
    if returned[0].tag == "e":
        return Score("error", f"test {test + 1}: {returned[0].text[1:-1]}")
    if not livecode_rules.value_counts(returned[0], wanted):
        return Score("wrong", f"test {test + 1}: another value")
    return Score("correct")


def _one_by_one(
    answers: list[tuple[Problem, str]],
    sandbox: Sandbox,
    job: Callable[[Problem, str, int], Job],
    score: Callable[[Problem, Outcome, int], Score],
) -> list[Score]:
    """Run each test in a process of its own, in waves over all answers; answers that have failed do not run again."""
    failed: dict[int, Score] = {}
    start = 0
    longest = max((len(problem.inputs) for problem, _ in answers), default=0)
    for stop in sorted({*_WAVES, longest}):
        asked = [
            (number, test)
            for number, (problem, _) in enumerate(answers)
            if number not in failed
            for test in range(start, min(stop, len(problem.inputs)))
        ]
        jobs = (job(*answers[number], test) for number, test in asked)
        for (number, test), verdict in zip(asked, sandbox.run(jobs) if asked else (), strict=True):
            found = score(answers[number][0], harness.read(verdict), test)
            if not found.correct:
                failed.setdefault(number, found)
        start = max(start, stop)
    return [failed.get(number, Score("correct")) for number in range(len(answers))]


def _output_score(problem: Problem, outcome: Outcome, test: int) -> Score:
    if outcome.status != Status.VALID:
        return Score(outcome.status, f"test {test + 1}: {outcome.detail}")
    lines = outcome.groups[0] if outcome.groups else ()
    if not lines or lines[0].tag not in "vd":
        return Score(Status.CRASH, f"test {test + 1}: no output")
    if len(lines) > 1:
        return Score("error", f"test {test + 1}: {lines[1].text[1:-1]}")
    if not livecode_rules.output_counts(lines[0], problem.outputs[test]):
        return Score("wrong", f"test {test + 1}: other output")
    return Score("correct")
