"""What propose and solve hand on while completions are written is what verify and grade judge."""

from collections.abc import Callable, Iterable, Iterator

from stages.core.earlier_tasks import SeenTasks, StoredTasks
from stages.core.judging.early import Item, Recorder
from stages.core.judging.judge import judge_answers, judge_tasks
from stages.core.sandbox.protocol import IDLE, Job, Verdict
from stages.grade import grade
from stages.propose import propose
from stages.solve import SolvePlan, solve
from stages.verify import verify
from tests.stages.test_loop_stages import DIGESTS, PLAN, matches, seeds
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

BUFFERS = {"t0": StoredTasks(seeds()).snapshot(100)}
KNOWN = {("p", "1"): "7", ("p", "2"): "8", ("id", "4"): "4", ("id", "5"): "5", ("g", "4"): "4", ("g", "5"): "5"}


class UnusedSandbox(TableSandbox):
    """Fails the test if it has to run one of these programs."""

    def __init__(self, *programs: str) -> None:
        super().__init__(KNOWN)
        self.programs = programs

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        def checked() -> Iterator[Job]:
            for job in jobs:
                assert job is IDLE or job.program not in self.programs, job
                yield job

        return super().run(checked())


def test_the_stages_find_every_verdict_that_was_found_early() -> None:
    ended: list[Callable[[], Item | None]] = []
    texts = ("p|1", "no", "p|2", "p|1", "4|5", "no")
    proposals = propose(matches(), DIGESTS, BUFFERS, ScriptedEngine(*texts), PlainStyle(), PLAN, 0, 0, early=ended.append)
    assert proposals.equals(propose(matches(), DIGESTS, BUFFERS, ScriptedEngine(*texts), PlainStyle(), PLAN, 0, 0))
    items = [read() for read in ended]
    assert [item is None for item in items] == [False, True, False, False, False, True], "what cannot be read is not judged"
    recorder = Recorder(TableSandbox(KNOWN))
    list(judge_tasks(recorder, [item for item in items if item is not None]))  # type: ignore[list-item]

    seen, style = SeenTasks(seeds()).keys, PlainStyle()
    tasks = verify(proposals, TableSandbox(KNOWN), style, seen, set(), {}, lambda text: True)
    unused = UnusedSandbox("p", "id")
    assert tasks.equals(verify(proposals, unused, style, seen, set(), {}, lambda text: True, early=recorder.known))

    ended.clear()
    plan, answers = SolvePlan(attempts=2, max_new_tokens=8, temperature=1.0), ("7", "8", "2", "1", "1", "", "g", "x")
    rollouts = solve(matches(), DIGESTS, tasks, ScriptedEngine(*answers), style, plan, 0, 0, early=ended.append)
    assert rollouts.equals(solve(matches(), DIGESTS, tasks, ScriptedEngine(*answers), style, plan, 0, 0))
    recorder = Recorder(TableSandbox(KNOWN))
    list(judge_answers(recorder, [read() for read in ended]))  # type: ignore[misc]
    grades = grade(tasks, rollouts, TableSandbox(KNOWN))
    assert grades["status"].to_pylist() == ["correct", "wrong", "correct", "wrong", "correct", "format", "correct", "wrong"]
    assert grades.equals(grade(tasks, rollouts, UnusedSandbox("p", "g", "x"), early=recorder.known))
