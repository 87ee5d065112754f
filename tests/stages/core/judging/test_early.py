"""Early verdicts: which last, that they replace runs and change nothing, and their text."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from stages.core.judging.early import Recorder, conditions, from_lines, lasts, to_lines
from stages.core.judging.judge import AnswerItem, TaskItem, judge_answers, judge_tasks
from stages.core.sandbox.protocol import IDLE, TICK, Job, Status, Verdict
from tests.support.fakes import TableSandbox

VALUES = {("p", "1"): "7", ("p", "2"): "8", ("q", "1"): "error", ("slow", "1"): "timeout", ("odd", "1"): "nondeterministic"}
TASKS = [
    TaskItem("p", ("1", "2")),
    TaskItem("q", ("1", "2")),
    TaskItem("slow", ("1",)),
    TaskItem("odd", ("1",)),
    TaskItem("p", ("1",)),
]
ANSWERS = [
    AnswerItem("deduction", "p", ("1",), ("7",), "7"),
    AnswerItem("abduction", "p", ("1",), ("7",), "1"),
    AnswerItem("abduction", "p", ("1",), ("7",), "2"),
    AnswerItem("abduction", "p", ("1",), ("7",), "not a literal"),
    AnswerItem("induction", "p", ("1", "2"), ("7", "8"), "p"),
    AnswerItem("induction", "p", ("1",), ("7",), "slow"),
    AnswerItem("induction", "p", ("1",), ("7",), None),
]


class AskedSandbox(TableSandbox):
    """Notes which jobs it is asked for."""

    def __init__(self) -> None:
        super().__init__(VALUES)
        self.asked: list[Job] = []

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        def noted() -> Iterator[Job]:
            for job in jobs:
                self.asked += [job] if job is not IDLE else []
                yield job

        return super().run(noted())


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        (Status.VALID, True),
        (Status.UNPARSED, True),
        (Status.BANNED, True),
        (Status.ERROR, True),
        (Status.OUTPUT_LIMIT, True),
        (Status.UNSUPPORTED_VALUE, True),
        (Status.TIMEOUT, False),
        (Status.MEMORY, False),
        (Status.CRASH, False),
        (Status.NONDETERMINISTIC, False),
    ],
)
def test_a_verdict_that_the_machine_may_have_caused_does_not_last(status: Status, kept: bool) -> None:
    verdict = Verdict(status, None, "", None)
    assert lasts(verdict) == kept
    assert not lasts(replace(verdict, limits_used=0.9)), "near a limit, load may have decided"


def test_a_recorder_notes_what_lasts_and_hands_everything_on() -> None:
    jobs = [Job("p", "1", True), IDLE, Job("slow", "1", False), Job("q", "1", True)]
    recorder = Recorder(TableSandbox(VALUES))
    assert list(recorder.run(jobs)) == list(TableSandbox(VALUES).run(jobs))
    assert list(recorder.known) == [jobs[0], jobs[3]] and recorder.flying == 0
    assert recorder.known[jobs[0]].value == "7" and recorder.known[jobs[3]].status == "error"
    assert recorder.attestation() == {"kind": "table"}


def test_a_recorder_counts_the_jobs_that_have_no_verdict_yet() -> None:
    counts: list[int] = []
    recorder = Recorder(TableSandbox(VALUES))

    def jobs() -> Iterator[Job]:
        for job in (Job("p", "1", True), IDLE, Job("p", "2", True)):
            counts.append(recorder.flying)
            yield job

    assert [verdict is TICK for verdict in recorder.run(jobs())] == [False, True, False]
    assert counts == [0, 0, 0]


def test_what_is_known_is_not_run_again_and_every_verdict_is_the_same() -> None:
    for judge, items, again in (
        (judge_tasks, TASKS, [Job("slow", "1", True), Job("odd", "1", True)]),
        (judge_answers, ANSWERS, [Job("slow", "1", False)]),
    ):
        recorder = Recorder(TableSandbox(VALUES))
        wanted = list(judge(recorder, items))
        early = from_lines(to_lines(recorder.known, "here"), "here")
        assert early == recorder.known
        sandbox = AskedSandbox()
        assert list(judge(sandbox, items, early)) == wanted
        assert sandbox.asked == again


def test_a_part_of_what_is_judged_may_be_known() -> None:
    recorder = Recorder(TableSandbox(VALUES))
    list(judge_tasks(recorder, TASKS[:1]))
    sandbox = AskedSandbox()
    assert list(judge_tasks(sandbox, TASKS, recorder.known)) == list(judge_tasks(TableSandbox(VALUES), TASKS))
    assert Job("p", "1", True) not in sandbox.asked and Job("q", "1", True) in sandbox.asked


def test_a_validated_run_is_no_verdict_on_a_single_one() -> None:
    recorder = Recorder(TableSandbox(VALUES))
    list(judge_tasks(recorder, [TaskItem("p", ("1",))]))
    sandbox = AskedSandbox()
    list(judge_answers(sandbox, [AnswerItem("abduction", "p", ("1",), ("7",), "1")], recorder.known))
    assert sandbox.asked == [Job("p", "1", False)]


def test_verdicts_keep_every_field_as_text() -> None:
    known = {
        Job("def f(x):\n    return {x}", "'\ud800'", True): Verdict(Status.VALID, "{1}", "", "key", "{1}"),
        Job("p", "", False, True): Verdict(Status.ERROR, None, "NameError: ü", None, None, ((1, 2), (3, 4))),
    }
    lines = list(to_lines(known, "here"))
    assert all(line.isascii() and "\n" not in line for line in lines)
    assert from_lines(lines, "here") == known


def test_verdicts_found_under_other_conditions_are_not_used() -> None:
    lines = list(to_lines({Job("p", "1", True): Verdict(Status.VALID, "7", "", None)}, "here"))
    assert from_lines(lines, "there") == {} and from_lines([], "here") == {}
    with pytest.raises(ValueError, match="line 1"):
        from_lines([lines[0], lines[1][:-3]], "here")


def test_conditions_name_the_walls_and_the_limits() -> None:
    walls, limits = {"kind": "docker", "image": "sha256:1", "missing": []}, {"cpu_seconds": 2.0}
    assert conditions(walls, limits) == conditions(dict(reversed(walls.items())), limits)
    others = [conditions(walls | {"image": "sha256:2"}, limits), conditions(walls, {"cpu_seconds": 1.0})]
    assert len({conditions(walls, limits), *others}) == 3
