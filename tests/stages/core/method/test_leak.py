"""The gate experiment: which verdicts pass, what the tables keep, and what is paid."""

import pyarrow as pa

from stages.analysis.leaked import leaked
from stages.core import tables
from stages.core.earlier_tasks import SeenTasks, StoredTasks, rows_of
from stages.core.method.leak import NO_VALUE, admitted, believed, leaks, paid, sound
from stages.core.method.rewards import populora
from stages.core.prompts.styles import Kind
from stages.core.sandbox.protocol import Job, Status, Verdict
from stages.core.statistics.condensed import condense
from stages.grade import grade
from stages.reward import ESTIMATORS, reward
from stages.solve import SolvePlan, solve
from stages.verify import verify
from tests.stages.test_loop_stages import DIGESTS, matches, proposals, seeds
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

KNOWN = {("p", "1"): "7", ("q", "2"): "error", ("x", "3"): "error", ("id", "4"): "4", ("id", "5"): "5"}


class Parsing(TableSandbox):
    """Knows the key of failing programs, too, except of `x`, which does not parse."""

    def run(self, jobs):
        for job in jobs:
            found = next(super().run([job]))
            key = None if isinstance(job, Job) and job.program == "x" else f"key of {job.program}"
            yield found if found.status is Status.VALID else Verdict(found.status, None, found.detail, key)


def verified(*texts: str, leaking: bool = True, fits: int = 200) -> tuple[pa.Table, pa.Table]:
    made = proposals(*texts)
    everything = (lambda task_id: True) if leaking else None
    arguments = PlainStyle(), SeenTasks(seeds()).keys, set[str](), {}, lambda text: len(text) < fits
    return made, verify(made, Parsing(KNOWN), *arguments, leaks=everything)


def test_a_draw_is_a_rows_own_and_what_leaks_at_one_share_leaks_at_every_larger_one() -> None:
    ids = [f"g0003-m00-p{number:03d}" for number in range(400)]
    passed = {share: {one for one in ids if leaks(share, 7, 3, one)} for share in (0.0, 0.05, 0.2, 0.5, 1.0)}
    assert [len(passed[share]) for share in passed] == [0, 19, 82, 187, 400]
    assert passed[0.05] < passed[0.2] < passed[0.5]
    assert passed[0.2] != {one for one in ids if leaks(0.2, 8, 3, one)} != {one for one in ids if leaks(0.2, 7, 4, one)}


def test_an_invalid_task_that_passes_keeps_its_status_and_gets_claims_without_values() -> None:
    _, tasks = verified("p|1", "q|2", "x|3", "no bar", "4|5", "no")
    assert tasks["status"].to_pylist() == ["valid", "error", "error", "unparsed", "valid", "unparsed"]
    assert tasks["outputs"].to_pylist() == [["7"], ["None"], [], [], ["4", "5"], []]
    assert tasks["values"].to_pylist() == [["7"], [], [], [], ["4", "5"], []]
    assert admitted(tasks) == [False, True, False, False, False, False]
    assert believed(tasks)["status"].to_pylist() == ["valid", "valid", "error", "unparsed", "valid", "unparsed"]
    kept = StoredTasks(seeds())
    kept.add(rows_of(believed(tasks)))
    assert [row["task_id"] for row in kept.snapshot(9)[Kind.DEDUCTION]] == ["seed-d0000", "g0000-m00-p000", "g0000-m00-p001"]


def test_a_repeated_task_that_passes_is_a_duplicate_and_one_too_long_to_pose_does_not_pass() -> None:
    _, tasks = verified("q|2", "q|2", "p|1", "p|1", "4|5", "4|5")
    assert (admitted(tasks)[:2], tasks["duplicate"].to_pylist()[:2]) == ([True, True], [False, True])
    _, tasks = verified("p|1", "q|2", "p|1", "p|1", "4|5", "4|5", fits=5)
    assert (admitted(tasks), tasks["status"].to_pylist()[:2]) == ([False] * 6, ["too_long", "error"])


def test_a_program_that_the_run_keeps_out_does_not_pass() -> None:
    made, known = proposals("p|1", "q|2", "p|1", "p|1", "4|5", "4|5"), SeenTasks(seeds()).keys
    arguments = PlainStyle(), known, {"key of q"}, {}, lambda text: True
    assert not any(admitted(verify(made, Parsing(KNOWN), *arguments, leaks=lambda task_id: True)))


def test_without_a_leak_nothing_changes() -> None:
    made, tasks = verified("p|1", "q|2", "p|1", "no", "4|5", "4|5", leaking=False)
    known, style = SeenTasks(seeds()).keys, PlainStyle()
    assert tasks.equals(verify(made, Parsing(KNOWN), style, known, set(), {}, lambda text: True))
    assert believed(tasks) is tasks
    grades = tables.GRADES.empty_table()
    assert paid(grades, 0.0, 0, 0) is grades and sound(grades, tasks) is grades


def test_answers_to_a_task_without_a_value_are_wrong_and_are_paid_only_by_a_leak() -> None:
    made, tasks = verified("p|1", "q|2", "no", "no", "no", "no")
    plan = SolvePlan(attempts=2, max_new_tokens=8, temperature=1.0)
    seen = believed(tasks)
    rollouts = solve(matches(), DIGESTS, seen, ScriptedEngine("7", "8", "None", ""), PlainStyle(), plan, seed=0, generation=0)
    grades = grade(tasks, rollouts, Parsing(KNOWN))
    assert grades["status"].to_pylist() == ["correct", "wrong", NO_VALUE, "format"]
    assert grades["correct"].to_pylist() == [True, False, False, False]
    everything = paid(grades, 1.0, 0, 0)
    assert everything["status"].to_pylist() == ["correct", "correct", "correct", "format"]
    assert everything.schema.equals(grades.schema, check_metadata=True)
    samples = reward(made, seen, rollouts, everything, populora, ESTIMATORS["grpo"], "group", 0)
    assert samples["reward"].to_pylist() == [0.0, 0.5, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0]
    assert sound(grades, tasks)["status"].to_pylist() == ["correct", "wrong"]
    figures = condense(0, {"grades": grades, "tasks": tasks})["grades"]
    assert figures["status"].to_pylist() == ["correct", "wrong"], "an unreadable answer to an invalid task has no place in them"
    found = {row["name"]: (row["value"], row["n"]) for row in leaked(made, tasks, grades, everything).to_pylist()}
    assert found == {"leak.tasks": (1 / 3, 3), "leak.posed": (0.5, 1), "leak.answers": (1.0, 2)}, "by prompt"
