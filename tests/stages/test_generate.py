"""The generator in the teachers' place: what it draws, from which record, and what it keeps away from."""

from collections import Counter
from collections.abc import Mapping
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from stages.core import tables
from stages.core.method.curriculum import Cell, Curriculum, Record, success_variance, uniform
from stages.core.method.rating import Rating, Scale
from stages.core.method.rewards import populora
from stages.core.population import Member
from stages.core.prompts.styles import Kind
from stages.core.prompts.trace import TracePrompts
from stages.core.sandbox.local import LocalSandbox
from stages.core.seed_model.chains import depth_of
from stages.core.seed_model.programs import Behaviours, ProgramKeys, program_key
from stages.core.seed_model.steps import TYPES
from stages.core.shards import Shard
from stages.core.statistics.condensed import completions
from stages.generate import CELLS, generate, records_of
from stages.grade import grade
from stages.match import match
from stages.rate import rate
from stages.reward import ESTIMATORS, reward
from stages.verify import verify

NOTHING = ProgramKeys(frozenset(), frozenset())
EMPTY = dict.fromkeys(CELLS, Record())
STUDENTS = [Member(name, "student", f"{name}-start", "sha", Rating(mu, 5.0), 0) for name, mu in (("s0", 25.0), ("s1", 28.0))]


def met(generation: int = 0) -> pa.Table:
    return match(STUDENTS, np.random.default_rng(0), generation, 25 / 6, generator_rating=Rating(24.0, 3.0))


def drawn(
    curriculum: Curriculum = uniform,
    count: int = 30,
    records: Mapping[Cell, Record] = EMPTY,
    held_out: ProgramKeys = NOTHING,
    shard: Shard | None = None,
) -> pa.Table:
    return generate(met(), records, curriculum, count, 10, held_out, 3, 0, *([] if shard is None else [shard]))


def only(*cells: Cell) -> Curriculum:
    return lambda records: dict.fromkeys(cells, 1.0)


def test_every_student_meets_the_generator_which_has_no_weights() -> None:
    rows = met(4).to_pylist()
    assert [(row["match_id"], row["teacher_id"], row["student_id"]) for row in rows] == [
        ("g0004-m00", "generator", "s0"),
        ("g0004-m01", "generator", "s1"),
    ]
    assert {(row["teacher_adapter_id"], row["teacher_mu"], row["teacher_sigma"]) for row in rows} == {("", 24.0, 3.0)}
    assert rows[0]["expected"] < rows[1]["expected"]


def test_tasks_have_the_kind_depth_and_inputs_of_their_cell_and_are_nobodys_completion() -> None:
    table = drawn(count=60)
    assert table.schema == tables.PROPOSALS and table.num_rows == 120
    cells = Counter()
    for row in table.to_pylist():
        cell = Cell(Kind(row["kind"]), depth_of(row["program"]))
        cells[cell] += 1
        assert row["group_id"] == f"{row['match_id']}-{row['kind'][0]}{cell.depth:02d}"
        assert len(row["inputs"]) == (10 if cell.kind is Kind.INDUCTION else 1)
        assert (row["status"], row["adapter_id"], row["adapter_sha256"], row["completion_ids"]) == ("parsed", "", "", [])
    assert set(cells) <= set(CELLS) and len(cells) > 25
    assert completions(table, tables.ROLLOUTS.empty_table()).num_rows == 0


def test_a_row_depends_on_its_place_alone() -> None:
    whole = drawn()
    assert pa.concat_tables([drawn(shard=Shard(number, 3)) for number in range(3)]).equals(whole)
    assert drawn(count=20).slice(0, 20).equals(whole.slice(0, 20))
    assert len(set(whole["program"].to_pylist())) > 50


def test_cells_are_drawn_in_proportion_to_p_times_one_minus_p() -> None:
    fair, hard = Cell(Kind.DEDUCTION, 3), Cell(Kind.ABDUCTION, 1)
    records = {fair: Record(98, 49), hard: Record(98, 4)}
    rows = drawn(success_variance, 200, records).to_pylist()
    found = Counter(Cell(Kind(row["kind"]), depth_of(row["program"])) for row in rows)
    assert set(found) == set(records)
    share = 0.25 / (0.25 + 0.05 * 0.95)
    assert abs(found[fair] / 400 - share) < 4 * np.sqrt(share * (1 - share) / 400)


def test_programs_that_are_kept_out_by_syntax_or_by_behaviour_are_not_written() -> None:
    shallow = only(Cell(Kind.DEDUCTION, 1))
    first = drawn(shallow, 20)["program"][0].as_py()
    arguments = first.partition("):")[0].count(",") + 1
    behaviours = {Behaviours().key(first, "".join(letters)) for letters in product(TYPES, repeat=arguments)}
    for held_out in (ProgramKeys(frozenset({program_key(first)}), frozenset()), ProgramKeys(frozenset(), frozenset(behaviours))):
        found = drawn(shallow, 20, held_out=held_out)["program"].to_pylist()
        assert len(found) == 40 and program_key(first) not in set(map(program_key, found))


def test_a_record_counts_the_attempts_at_what_the_generator_posed() -> None:
    table = drawn(only(Cell(Kind.DEDUCTION, 2), Cell(Kind.INDUCTION, 5)), 5).to_pylist()
    rows = [
        dict.fromkeys(tables.TASKS.names)
        | {name: row[name] for name in ("match_id", "teacher_id", "kind", "program", "inputs", "message")}
        | {"task_id": row["proposal_id"], "status": "valid", "detail": "", "outputs": ["1"], "values": ["1"]}
        | {"duplicate": False, "probe_overlap": False}
        for row in table
    ]
    rows[0]["teacher_id"] = "t0"
    tasks = tables.table(rows, tables.TASKS)
    names = [*tasks["task_id"].to_pylist(), "g0000-m07-p001"]
    grades = tables.table(
        [
            {"rollout_id": f"{name}-r{attempt:02d}", "task_id": name, "match_id": "m", "student_id": "s0", "kind": "deduction"}
            | {"status": "correct", "correct": attempt == 0, "detail": ""}
            for name in names
            for attempt in range(4)
        ],
        tables.GRADES,
    )
    found = records_of([(tasks, grades), (tasks, grades)])
    counted = Counter(Cell(Kind(row["kind"]), depth_of(row["program"])) for row in rows[1:])
    assert found == EMPTY | {cell: Record(8 * count, 2 * count) for cell, count in counted.items()}
    assert records_of([]) == EMPTY
    abductions = records_of([(tasks, grades), (tasks, grades)], kinds=(Kind.ABDUCTION,))
    assert abductions == {cell: record for cell, record in found.items() if cell.kind is Kind.ABDUCTION}
    assert set(drawn(records=abductions)["kind"].to_pylist()) == {"abduction"}


def test_the_sandbox_finds_every_task_valid_and_nobody_is_paid_or_rated_for_it() -> None:
    proposals = drawn(count=9)
    sandbox = LocalSandbox(1)
    try:
        tasks = verify(proposals, sandbox, TracePrompts(), set(), set(), {}, lambda text: True)
        answers = [
            {"rollout_id": f"{row['task_id']}-r00", "task_id": row["task_id"], "match_id": row["match_id"], "attempt": 0}
            | {"student_id": "s0" if row["match_id"].endswith("m00") else "s1", "kind": row["kind"], "adapter_id": "s-start"}
            | {"adapter_sha256": "sha", "seed": 1, "prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-1.0, -1.0]}
            | {"text": "", "truncated": False, "answer": _right(row) if number % 3 else None}
            for number, row in enumerate(tasks.to_pylist())
        ]
        rollouts = tables.table(answers, tables.ROLLOUTS)
        grades = grade(tasks, rollouts, sandbox)
    finally:
        sandbox.close()
    assert set(tasks["status"].to_pylist()) == {"valid"}
    assert Counter(grades["status"].to_pylist()) == {"correct": 12, "format": 6}
    samples = reward(proposals, tasks, rollouts, grades, populora, ESTIMATORS["positive_only"], "group", 0)
    assert Counter(
        zip(samples["role"].to_pylist(), samples["reward"].to_pylist(), samples["advantage"].to_pylist(), strict=True)
    ) == {
        ("student", 1.0, 1.0): 12,
        ("student", -1.0, 0.0): 6,
    }
    rated = rate(STUDENTS, met(), tasks, grades, {}, Scale(), 0.02, 3.0).to_pylist()
    assert [(row["member_id"], row["opponent_id"], row["result"]) for row in rated] == [
        ("s0", "generator", "win"),
        ("s1", "generator", "draw"),
    ]


def _right(task: dict) -> str:
    return {"deduction": task["outputs"][0], "abduction": task["inputs"][0], "induction": task["program"]}[task["kind"]]


def test_a_curriculum_that_weighs_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="not all zero"):
        drawn(lambda records: {})
