"""Tasks and answers are run on one input after another, and no further than the input that decides."""

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.core.judging.judge import AnswerItem, Judgement, TaskItem, judge_answers, judge_tasks
from stages.core.sandbox.protocol import IDLE, TICK, Job, Status, Verdict
from tests.support.fakes import TableSandbox

INPUTS = tuple("0123456789")


class Recording(TableSandbox):
    """Writes down what was run; `used` is the processor time of a run, in limits."""

    def __init__(self, known: dict[tuple[str, str], str], used: float = 0.0) -> None:
        super().__init__(known)
        self.ran: list[tuple[str, str]] = []
        self.used = used

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        def seen() -> Iterator[Job]:
            for job in jobs:
                if job is not IDLE:
                    self.ran.append((job.program, job.input))
                yield job

        for verdict in super().run(seen()):
            found = Verdict(verdict.status, verdict.value, verdict.detail, verdict.program_key, verdict.text, (), self.used)
            yield TICK if verdict is TICK else found


class Late(Recording):
    """Keeps verdicts back as long as it gets new jobs, as a sandbox with many jobs in flight does."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        held: list[Job] = []
        for job in jobs:
            if job is not IDLE:
                held.append(job)
                continue
            yield TICK
            yield from super().run(held)
            held = []
        yield from super().run(held)


def induction(answer: str, values: Iterable[str] = "0" * 10) -> AnswerItem:
    return AnswerItem("induction", "", INPUTS, tuple(values), answer)


def says(program: str, **outcomes: str) -> dict[tuple[str, str], str]:
    """Return what a program does with an input ("_3": the value or status at input 3); 0 elsewhere."""
    return {(program, name.removeprefix("_")): outcome for name, outcome in outcomes.items()}


@pytest.mark.parametrize(
    ("known", "runs", "judgement"),
    [
        ({}, 10, Judgement("correct", True, "")),
        (says("p", _0="timeout", _1="timeout"), 1, Judgement("timeout", False, "input 1: as told")),
        (says("p", _2="7"), 3, Judgement("wrong", False, "input 3: another value")),
        (says("p", _9="error"), 10, Judgement("error", False, "input 10: as told")),
    ],
)
def test_an_answer_runs_no_further_than_the_pair_that_decides(
    known: dict[tuple[str, str], str], runs: int, judgement: Judgement
) -> None:
    sandbox = Recording(known)
    assert list(judge_answers(sandbox, [induction("p")])) == [judgement]
    assert sandbox.ran == [("p", text) for text in INPUTS[:runs]]


def test_a_task_runs_no_further_than_its_first_invalid_input() -> None:
    sandbox = Recording(says("loops", _1="timeout"))
    first, second = judge_tasks(sandbox, [TaskItem("loops", INPUTS), TaskItem("fine", ("1", "2"))])
    assert (first.status, first.detail, first.program_key) == (Status.TIMEOUT, "input 2: as told", "key of loops")
    assert (second.status, second.values) == (Status.VALID, ("0", "0"))
    assert sorted(sandbox.ran) == [("fine", "1"), ("fine", "2"), ("loops", "0"), ("loops", "1")]


def test_an_answer_has_processor_time_for_all_its_runs_together() -> None:
    slow, fits = Recording({}, used=0.9), Recording({}, used=0.5)
    assert list(judge_answers(slow, [induction("p")])) == [
        Judgement("timeout", False, "input 7: the runs so far have used all processor time of an answer")
    ]
    assert len(slow.ran) == 6  # 5.4 limits
    assert list(judge_answers(fits, [induction("p")])) == [Judgement("correct", True, "")]
    (task,) = judge_tasks(Recording({}, used=0.9), [TaskItem("p", INPUTS)])
    assert (task.status, task.values) == (Status.TIMEOUT, ())
    assert task.detail == "input 7: the runs so far have used all processor time of an answer"


def test_a_last_run_may_use_up_the_processor_time() -> None:
    (judgement,) = judge_answers(Recording({}, used=5.5), [AnswerItem("induction", "", ("1",), ("0",), "p")])
    assert judgement == Judgement("correct", True, "")


def test_equal_runs_are_made_once() -> None:
    sandbox = Late({})
    assert [each.correct for each in judge_answers(sandbox, [induction("p")] * 3)] == [True] * 3
    assert sandbox.ran == [("p", text) for text in INPUTS]


def test_an_idle_source_holds_no_judgement_back() -> None:
    taken: list[int] = []

    def items() -> Iterator[AnswerItem | None]:
        for number in range(3):
            taken.append(number)
            yield induction(f"p{number}")
            yield from [None] * 12  # long enough for ten runs one after another

    got = []
    for judgement in judge_answers(Recording({}), items()):
        got.append((judgement.correct, len(taken)))
    assert got == [(True, 1), (True, 2), (True, 3)]


def test_many_items_without_a_run_pass_through() -> None:
    items = [AnswerItem("deduction", "", (), ("1",), str(number % 2)) for number in range(2000)]
    assert [each.correct for each in judge_answers(Late({}), items)] == [number % 2 == 1 for number in range(2000)]


OUTCOMES = st.sampled_from(["0", "1", "error", "timeout"])


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.tuples(st.sampled_from("pqr"), st.sampled_from(INPUTS)), OUTCOMES, max_size=30),
    st.lists(st.tuples(st.sampled_from("pqr"), st.text("01", min_size=10, max_size=10)), max_size=12),
    st.booleans(),
)
def test_judgements_are_those_of_running_every_pair(
    known: dict[tuple[str, str], str], asked: list[tuple[str, str]], late: bool
) -> None:
    def every_pair(program: str, values: str) -> Judgement:
        for number, (text, value) in enumerate(zip(INPUTS, values, strict=True), 1):
            outcome = known.get((program, text), "0")
            if outcome in set(Status):
                return Judgement(outcome, False, f"input {number}: as told")
            if outcome != value:
                return Judgement("wrong", False, f"input {number}: another value")
        return Judgement("correct", True, "")

    sandbox = (Late if late else Recording)(known)
    judged = judge_answers(sandbox, [induction(program, values) for program, values in asked])
    assert list(judged) == [every_pair(*pair) for pair in asked]
    assert len(set(sandbox.ran)) == len(sandbox.ran)
