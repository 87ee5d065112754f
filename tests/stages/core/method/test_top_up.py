"""Top-up: stored tasks fill the batches of teachers that wrote too few; they train students and move nothing else."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flows.audit.fsck import fsck
from flows.audit.replay_check import replay_problems
from flows.config import load, parse
from flows.run.run import Run
from stages.core import tables
from stages.core.earlier_tasks import StoredTasks
from stages.core.method.top_up import fresh, replay_id, replays, task_of
from stages.core.prompts.styles import Kind
from tests.support.small_run import small_run

STORED = [f"stored-{number}" for number in range(6)]
SETTINGS = (
    "generations=2",
    "threads=1",
    "model.rank=4",
    "seeding.rows=6",
    "propose.group_size=2",
    "propose.max_new_tokens=32",
    "solve.attempts=2",
    "sandbox.containers=1",
)


def matches(*students: str) -> pa.Table:
    rows = [
        {
            "match_id": f"g0001-m{number:02d}",
            "teacher_id": f"t{number}",
            "student_id": student,
            "teacher_adapter_id": "t",
            "student_adapter_id": student,
            "teacher_mu": 25.0,
            "teacher_sigma": 8.0,
            "student_mu": 25.0,
            "student_sigma": 8.0,
            "expected": 0.5,
        }
        for number, student in enumerate(students)
    ]
    return tables.table(rows, tables.MATCHES)


def tasks(*rows: tuple[str, str, str, str | None]) -> pa.Table:
    """(match, kind, status, gate) each, the program's name counts on."""
    filled = [
        dict.fromkeys(tables.TASKS.names)
        | {
            "task_id": f"{match_id}-p{number:03d}",
            "match_id": match_id,
            "kind": kind,
            "status": status,
            "gate": gate,
            "program_key": f"key-{number}",
            "inputs": ["1"],
            "outputs": ["1"],
            "values": ["i1"],
        }
        for number, (match_id, kind, status, gate) in enumerate(rows)
    ]
    return pa.Table.from_pylist(filled, tables.TASKS)


def buffer(key: str = "stored") -> dict[Kind, list[dict[str, Any]]]:
    rows = [
        {"task_id": f"{key}-{number}", "program_key": f"{key}-{number}", "inputs": ["1"], "kind": "deduction"}
        for number in range(6)
    ]
    return {kind: [row | {"kind": kind} for row in rows] for kind in Kind}


def drawn(posed: pa.Table, wanted: int = 2, **buffers: dict[Kind, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    both = {"t0": buffer(), "t1": buffer()} | buffers
    return replays(matches("s0", "s1"), posed, both, wanted, seed=3, generation=1)


def test_a_match_replays_what_its_teacher_lacks_of_each_kind() -> None:
    posed = tasks(
        ("g0001-m00", "deduction", "valid", None),
        ("g0001-m00", "deduction", "valid", None),
        ("g0001-m00", "abduction", "valid", None),
        ("g0001-m00", "abduction", "error", None),
        ("g0001-m00", "induction", "valid", "constant"),
    )
    found = drawn(posed)
    counts = {match_id: Counter(row["kind"] for row in rows) for match_id, rows in found.items()}
    assert counts["g0001-m00"] == {"abduction": 1, "induction": 2}
    assert counts["g0001-m01"] == {"deduction": 2, "abduction": 2, "induction": 2}
    assert found == drawn(posed)
    deductions = replays(matches("s0"), posed, {"t0": buffer()}, 4, seed=3, generation=1, kinds=(Kind.DEDUCTION,))
    assert Counter(row["kind"] for row in deductions["g0001-m00"]) == {"deduction": 2}


def test_nothing_is_posed_twice_in_a_match_and_a_small_buffer_gives_all_it_has() -> None:
    equal = buffer("key")
    posed = tasks(("g0001-m00", "deduction", "valid", None))
    first = drawn(posed, 9, t0=equal)["g0001-m00"]
    assert [row["program_key"] for row in first if row["kind"] == "deduction"].count("key-0") == 0
    assert Counter(row["kind"] for row in first) == {"deduction": 5, "abduction": 6, "induction": 6}
    assert len({(row["kind"], row["program_key"]) for row in first}) == len(first)


class Counted(list[dict[str, Any]]):
    """A buffer that counts how often all its rows are read."""

    readings = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.readings += 1
        return super().__iter__()


def test_a_buffer_is_read_once_and_only_if_a_match_lacks_tasks() -> None:
    shared: dict[Kind, list[dict[str, Any]]] = {kind: Counted(rows) for kind, rows in buffer().items()}
    full = tasks(*((f"g0001-m0{match}", "deduction", "valid", None) for match in (0, 0, 1, 1)))
    found = drawn(full, t0=shared, t1=shared)
    assert {kind.value: rows.readings for kind, rows in shared.items() if isinstance(rows, Counted)} == {
        "deduction": 0,
        "abduction": 1,
        "induction": 1,
    }
    assert found == drawn(full)


def test_every_stored_task_is_as_likely_as_another() -> None:
    counts = Counter[str]()
    for generation in range(600):
        found = replays(matches("s0"), tasks(), {"t0": buffer()}, 1, seed=0, generation=generation)
        counts.update(row["task_id"] for row in found["g0001-m00"])
    expected = 600 * 3 / 6
    assert set(counts) == set(STORED)
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 20.5  # chi-squared, 5 degrees, 0.1 %


def test_ids_of_replays_lead_back_to_their_task() -> None:
    for task_id in ("g0007-m12-p003", "seed-d0003", "g12345-m100-p001"):
        for row_id in (task_id, f"{task_id}-r07", replay_id("g0009-m01", task_id), f"{replay_id('g0009-m01', task_id)}-r00"):
            assert task_of(row_id) == task_id


@pytest.fixture(scope="module")
def topped_up(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tmp_path_factory.mktemp("topped-up"), "azr", SETTINGS)


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_a_run_with_absolute_zeros_plan_fills_every_batch(topped_up: Run) -> None:
    """A student trains on its valid tasks and on replays, one attempt each; ratings and teachers see the former alone."""
    config = load("azr")
    assert config.solve.top_up and config.solve.trained_attempts == 1
    for generation in range(2):
        read = {name: topped_up.read_table(generation, name) for name in ("tasks", "rollouts", "grades", "samples", "proposals")}
        own = set(read["tasks"]["task_id"].to_pylist())
        valid = sum(row["status"] == "valid" and row["gate"] is None for row in read["tasks"].to_pylist())
        assert 0 < valid < 6, "proposals are cut short, so that some of them are not valid"
        again = [row for row in read["rollouts"].to_pylist() if row["task_id"] not in own]
        assert len(again) == 6 - valid and read["rollouts"].num_rows == 2 * valid + len(again)
        students = [row for row in read["samples"].to_pylist() if row["role"] == "student"]
        assert Counter(task_of(row["sample_id"]) in own for row in students) == Counter({True: valid, False: len(again)})
        assert all(row["advantage"] is not None for row in students)
        teachers = [row["sample_id"] for row in read["samples"].to_pylist() if row["role"] == "teacher"]
        assert teachers == read["proposals"]["proposal_id"].to_pylist()
        assert fresh(read["grades"], read["tasks"]).num_rows == 2 * valid
        metrics = topped_up.read_table(generation, "metrics").to_pylist()
        counted = {(row["member_id"], row["kind"]): row["value"] for row in metrics if row["name"] == "solve.replayed"}
        assert counted[None, None] == len(again)
    assert list(fsck(topped_up)) == []


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_fsck_draws_the_replays_again(topped_up: Run) -> None:
    config = parse(topped_up.history.description()["config"])
    past = StoredTasks(topped_up.read_table(None, "seeds"), [topped_up.read_table(0, "tasks")])
    found = {name: topped_up.read_table(1, name) for name in ("matches", "tasks", "rollouts")}
    assert list(replay_problems(found, config, past, 1)) == []
    own = set(found["tasks"]["task_id"].to_pylist())
    rows = found["rollouts"].to_pylist()
    kept = [row for row in rows if row["task_id"] in own]
    fewer = tables.table([*kept, *[row for row in rows if row["task_id"] not in own][1:]], tables.ROLLOUTS)
    [(table, problem)] = replay_problems(found | {"rollouts": fewer}, config, past, 1)
    assert table == "rollouts" and problem.startswith("replays that were due are missing")
    swapped = [row if row["task_id"] in own else row | {"task_id": "seed-none"} for row in rows]
    problems = [
        text for _, text in replay_problems(found | {"rollouts": tables.table(swapped, tables.ROLLOUTS)}, config, past, 1)
    ]
    assert any(text.startswith("replays that were not due") for text in problems)
    twice = tables.table([*rows, *[row for row in rows if row["task_id"] not in own]], tables.ROLLOUTS)
    assert any("not attempted 1 times" in text for _, text in replay_problems(found | {"rollouts": twice}, config, past, 1))
