"""Replays of recent tasks: which count as easy or mixed, and how many a match poses again."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from flows.audit.fsck import fsck
from flows.audit.reference_check import reference_problems
from flows.audit.replay_check import replay_problems
from flows.config import RunConfig, parse
from flows.run.run import Run
from stages.core import tables
from stages.core.earlier_tasks import StoredTasks, rows_of
from stages.core.method.proposing import shown_from
from stages.core.method.recent_replay import Reason, easy_tasks, mixed_tasks, reason_of, recent_replays
from stages.core.prompts.styles import Kind
from tests.stages.core.method.test_top_up import matches, tasks
from tests.support.small_run import small_run


def graded(*outcomes: tuple[str, str]) -> pa.Table:
    """(task, attempts as a text of 1 and 0) each."""
    rows = [
        {
            "rollout_id": f"{task_id}-r{number:02d}",
            "task_id": task_id,
            "match_id": "g0000-m00",
            "student_id": "s0",
            "kind": "deduction",
            "status": "correct" if right == "1" else "wrong",
            "correct": right == "1",
            "detail": "",
        }
        for task_id, all_ in outcomes
        for number, right in enumerate(all_)
    ]
    return tables.table(rows, tables.GRADES)


def stored(name: str) -> dict:
    return {"task_id": name, "kind": "deduction", "program_key": name, "inputs": ["1"]}


QUARTER, HALF = Reason("easy", 0.25, partial(easy_tasks, rate=0.8)), Reason("mixed", 0.5, mixed_tasks)


def test_easy_is_what_most_attempts_solved_in_its_own_generation() -> None:
    posed = tasks(*[("g0000-m00", "deduction", "valid", None)] * 3)
    names = posed["task_id"].to_pylist()
    grades = graded((names[0], "11110"), (names[1], "1110"), ("replayed", "1111"))
    assert easy_tasks([(posed, grades)], 0.8) == [names[0]]
    assert easy_tasks([(posed, grades)], 0.75) == names[:2]
    assert easy_tasks([], 0.8) == []


def test_a_share_of_a_matchs_tasks_is_easy_and_none_is_posed_twice() -> None:
    two = matches("s0", "s1")
    posed = tasks(*[("g0001-m00", "deduction", "valid", None)] * 6, ("g0001-m01", "deduction", "timeout", None))
    equal = posed.slice(0, 1).to_pylist()[0] | {"task_id": "equal"}
    easy = [equal, *(stored(f"old-{number}") for number in range(9))]
    drawn = recent_replays(QUARTER, two, posed, easy, {"g0001-m00": [stored("old-3")]}, 7, 1)
    assert list(drawn) == ["g0001-m00", "g0001-m01"]
    first = [row["task_id"] for row in drawn["g0001-m00"]]
    assert len(first) == len(set(first)) == 2  # 6 tasks are three quarters of 8
    assert set(first) <= {f"old-{number}" for number in range(9) if number != 3}
    assert drawn["g0001-m01"] == []  # it posed nothing
    assert drawn == recent_replays(QUARTER, two, posed, easy, {"g0001-m00": [stored("old-3")]}, 7, 1)
    assert drawn != recent_replays(QUARTER, two, posed, easy, {"g0001-m00": [stored("old-3")]}, 8, 1)


def test_the_share_is_of_all_tasks_those_that_fill_the_batch_too() -> None:
    posed, filling = tasks(*[("g0001-m00", "deduction", "valid", None)] * 2), [stored(f"top-up-{number}") for number in range(4)]
    easy = [stored(f"old-{number}") for number in range(9)]
    drawn = recent_replays(QUARTER, matches("s0"), posed, easy, {"g0001-m00": filling}, 7, 1)
    assert len(drawn["g0001-m00"]) == 2  # of 8


def test_too_few_easy_tasks_are_all_posed() -> None:
    posed = tasks(*[("g0001-m00", "deduction", "valid", None)] * 6)
    drawn = recent_replays(HALF, matches("s0"), posed, [stored("old")], {}, 0, 1)
    assert [row["task_id"] for row in drawn["g0001-m00"]] == ["old"]
    assert recent_replays(HALF, matches("s0"), posed, [], {}, 0, 1) == {"g0001-m00": []}


def test_mixed_is_what_the_last_attempts_solved_in_part() -> None:
    first = tasks(*[("g0000-m00", "deduction", "valid", None)] * 4)
    names = first["task_id"].to_pylist()
    second = tasks(("g0001-m00", "deduction", "valid", None))
    (later,) = second["task_id"].to_pylist()
    before = (first, graded((names[0], "0110"), (names[1], "1111"), (names[2], "0100"), (names[3], "0000")))
    after = (second, graded((names[2], "1111"), (names[3], "0001"), ("of long ago", "01"), (later, "10")))
    assert mixed_tasks([before]) == [names[0], names[2]]
    assert mixed_tasks([before, after]) == [names[0], names[3], later]
    assert mixed_tasks([]) == []
    assert mixed_tasks([before], rate=0.5) == [names[0], names[2]], "two of four are at most a half"
    assert mixed_tasks([before], rate=0.4) == [names[2]]


def test_each_reason_has_its_own_draw() -> None:
    assert reason_of(0.0, 0.8, 0.0, 1.0) is None
    found = reason_of(0.0, 0.8, 0.5, 1.0)
    assert found is not None and (found.name, found.share) == (HALF.name, HALF.share)
    posed = tasks(*[("g0001-m00", "deduction", "valid", None)] * 2)
    old = [stored(f"old-{number}") for number in range(40)]
    easy, mixed = (recent_replays(one, matches("s0"), posed, old, {}, 7, 1) for one in (replace(QUARTER, share=0.5), HALF))
    assert [len(one["g0001-m00"]) for one in (easy, mixed)] == [2, 2] and easy != mixed


SETTINGS = (
    "generations=3",
    "model.rank=4",
    "seeding.rows=6",
    "population.teachers=1",
    "propose.curriculum=",
    "propose.groups=2",
    "propose.references=2",
    "propose.references_from=mixed",
    "solve.attempts=4",
    "solve.mixed_share=0.5",
    "solve.mixed_rate=0.75",
    "benchmark.every=0",
    "benchmark.start=false",
    "sandbox.containers=1",
)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tmp_path_factory.mktemp("replayed"), "reasoner", SETTINGS)


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_a_run_poses_tasks_with_mixed_results_again(replayed: Run) -> None:
    assert again(replayed, 0) == set()
    mixed: set[str] = set()
    for generation in (1, 2):
        past = [tables_of(replayed, number) for number in range(generation)]
        mixed |= set(mixed_tasks(past, rate=0.75))
        assert again(replayed, generation) <= set(mixed_tasks(past, rate=0.75))
    assert mixed and again(replayed, 2)
    assert list(fsck(replayed)) == []


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_fsck_draws_mixed_replays_again(replayed: Run) -> None:
    config, past, recent = before(replayed, 2)
    found = {name: replayed.read_table(2, name) for name in ("matches", "tasks", "rollouts")}
    assert list(replay_problems(found, config, past, 2, recent)) == []
    rows, own = found["rollouts"].to_pylist(), set(found["tasks"]["task_id"].to_pylist())
    fewer = found | {"rollouts": tables.table([row for row in rows if row["task_id"] in own], tables.ROLLOUTS)}
    [(table, problem)] = replay_problems(fewer, config, past, 2, recent)
    assert table == "rollouts" and problem.startswith("replays that were due are missing")
    assert list(replay_problems(fewer, config, past, 2, None)) == [], "nothing is due where earlier tables cannot be read"


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_a_run_shows_its_teachers_tasks_with_mixed_results(replayed: Run) -> None:
    config, past, _ = before(replayed, 0)
    for generation in (0, 1, 2):
        recent = [tables_of(replayed, number) for number in range(generation)]
        (pools,) = past.mixed_snapshots(config.propose.buffer_size, ["t0"], False, mixed_tasks(recent, rate=0.75), 2).values()
        proposals = replayed.read_table(generation, "proposals")
        for row in proposals.to_pylist():
            assert set(row["reference_ids"]) <= {one["task_id"] for pool in shown_from(Kind(row["kind"]), pools) for one in pool}
        past.add(rows_of(replayed.read_table(generation, "tasks")))
    assert len(pools[Kind.ABDUCTION]) < len(past.snapshot(config.propose.buffer_size)[Kind.ABDUCTION]) / 2, "no kind is limited"


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_fsck_finds_references_that_may_not_be_shown(replayed: Run) -> None:
    config, past, recent = before(replayed, 2)
    proposals = replayed.read_table(2, "proposals")
    assert list(reference_problems({"proposals": proposals}, config, past, recent)) == []
    first, *others = sorted(proposals.to_pylist(), key=lambda row: row["kind"] != Kind.ABDUCTION)
    seed_row = past.snapshot(100)[Kind.ABDUCTION].task_ids()[0]
    other = tables.table([first | {"reference_ids": [*first["reference_ids"], seed_row]}, *others], tables.PROPOSALS)
    [(table, problem)] = reference_problems({"proposals": other}, config, past, recent)
    assert (table, problem) == ("proposals", f"references that propose.references_from does not allow: {first['proposal_id']}")
    assert list(reference_problems({"proposals": other}, config, past, None)) == [], "earlier tables cannot be read"


def before(run: Run, generation: int) -> tuple[RunConfig, StoredTasks, list[tuple[pa.Table, pa.Table]]]:
    """Return the run's configuration, and the stored tasks and the tables that it had before a generation."""
    recent = [tables_of(run, number) for number in range(generation)]
    past = StoredTasks(run.read_table(None, "seeds"), [tasks for tasks, _ in recent])
    return parse((run.history.description() or {})["config"]), past, recent


def tables_of(run: Run, generation: int) -> tuple[pa.Table, pa.Table]:
    return run.read_table(generation, "tasks"), run.read_table(generation, "grades")


def again(run: Run, generation: int) -> set[str]:
    return set(run.read_table(generation, "rollouts")["task_id"].to_pylist()) - set(
        run.read_table(generation, "tasks")["task_id"].to_pylist()
    )
