"""Metrics of a generation: counted by hand on a small one, and against slow references."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flows.config import load
from flows.run.planned import benchmarks_at
from stages.analysis.measure import OffspringRecord, costs, explore, measure, relate
from stages.core import tables
from stages.core.earlier_tasks import SeenTasks
from stages.core.judging.complexity import measure as measure_program
from stages.core.judging.shapes import cell, shape_of
from stages.core.lora.distances import distances, inner_products
from stages.core.method.rating import Rating
from stages.core.population import GENERATOR, Member
from stages.core.statistics.condensed import condense, with_clusters
from stages.core.statistics.disagreement import disagreement
from stages.core.statistics.metric_rows import clustered
from stages.core.statistics.novelty import distance, novelty
from stages.figures.tasks import program_complexity
from tests.stages.core.judging.test_complexity import PADDED, SHORT
from tests.support.example_run import adapter

DRAWS = [(0, "valid"), (1, "valid"), (2, "error"), (3, "valid")]
"""What the generator drew: three tasks of depth 1 and one of depth 2, by number and verdict."""


def task(number: int, teacher: str, program: str, status: str = "valid", **more: object) -> dict:
    shape = shape_of(measure_program(program)) if status == "valid" else None
    row = {"task_id": f"p{number}", "match_id": f"m-{teacher}", "teacher_id": teacher, "kind": "deduction", "program": program}
    row |= {"inputs": ["1"], "outputs": ["1"], "values": ["1"], "message": "", "status": status, "detail": "", "duplicate": False}
    row |= {"probe_overlap": False, "program_key": program, "value_types": "(int) -> int"}
    return row | (shape.columns() if shape else {}) | more


def completion(member: str, tokens: int) -> dict:
    ids = list(range(tokens))
    own = {"adapter_id": f"{member}-start", "adapter_sha256": "0", "seed": 1, "prompt_ids": [1, 2], "text": "t"}
    return own | {"completion_ids": ids, "logprobs": [-0.5] * tokens, "truncated": tokens > 4}


@pytest.fixture
def found() -> dict[str, pa.Table]:
    """Two teachers with two proposals each (one of t0's invalid), a student each, two attempts a task."""
    tasks = [task(0, "t0", SHORT), task(1, "t0", "no", "unparsed"), task(2, "t1", PADDED), task(3, "t1", SHORT + " + 1")]
    proposals = [
        {name: row[name] for name in ("match_id", "teacher_id", "kind", "program", "inputs", "message", "status", "detail")}
        | {"proposal_id": row["task_id"], "group_id": f"g-{row['teacher_id']}", "reference_ids": []}
        | completion(row["teacher_id"], 2 + number)
        for number, row in enumerate(tasks)
    ]
    rollouts, grades, samples = [], [], []
    for row in tasks:
        student = row["teacher_id"].replace("t", "s")
        for attempt in range(2 if row["status"] == "valid" else 0):
            own = {"rollout_id": f"{row['task_id']}-{attempt}", "task_id": row["task_id"], "match_id": row["match_id"]}
            own |= {"student_id": student, "kind": row["kind"]}
            correct = attempt == 0 or row["task_id"] == "p0"
            rollouts.append(own | {"attempt": attempt, "answer": "1"} | completion(student, 3))
            grades.append(own | {"status": "correct" if correct else "wrong", "correct": correct, "detail": ""})
            sample = {"sample_id": own["rollout_id"], "member_id": student, "role": "student", "kind": row["kind"]}
            sample |= {"group_id": row["task_id"], "adapter_id": "a", "adapter_sha256": "0", "prompt_ids": [1]}
            sample |= {"completion_ids": [1, 2, 3], "logprobs": [-0.5] * 3, "reward": float(correct), "baseline": 0.0}
            samples.append(sample | {"centred": 0.0 if row["task_id"] == "p0" else 0.5, "advantage": 0.0})
    lists = {"proposals": proposals, "tasks": tasks, "rollouts": rollouts, "grades": grades, "samples": samples}
    return {name: tables.table(rows, schema_of(name)) for name, rows in lists.items()}


def schema_of(name: str) -> pa.Schema:
    return tables.GENERATION_TABLES[name]


def values(metrics: pa.Table, name: str) -> dict[tuple, tuple]:
    scopes = ("member_id", "role", "kind", "opponent_id")
    return {
        tuple(row[scope] for scope in scopes if row[scope] is not None): (row["value"], row["n"], row["stderr"])
        for row in metrics.to_pylist()
        if row["name"] == name
    }


def test_every_metric_counts_clusters_and_carries_its_error(found: dict[str, pa.Table]) -> None:
    metrics = measure(**found)
    assert values(metrics, "propose.valid_share") == {
        (): (0.75, 2, 0.25),
        ("deduction",): (0.75, 2, 0.25),
        ("t0", "teacher"): (0.5, 1, None),
        ("t1", "teacher"): (1.0, 1, None),
    }
    assert values(metrics, "propose.status.unparsed") == {(): (1.0, 4, None)}
    assert values(metrics, "program.lines")["t1", "teacher"] == (8.5, 1, None)
    assert values(metrics, "program.stripped_lines")["t1", "teacher"] == (3.0, 1, None)
    mean, n, stderr = values(metrics, "solve.rate")[()]
    assert (mean, n) == (pytest.approx(2 / 3), 3) and stderr == pytest.approx(np.std([1, 0.5, 0.5], ddof=1) / 3**0.5)
    assert values(metrics, "pair.solve_rate") == {
        ("s0", "student", "t0"): (1.0, 1, None),
        ("s0", "student", "deduction", "t0"): (1.0, 1, None),
        ("s1", "student", "t1"): (0.5, 2, 0.0),
        ("s1", "student", "deduction", "t1"): (0.5, 2, 0.0),
    }
    assert values(metrics, "solve.entropy")["s1", "student"] == (0.5, 2, 0.0)
    assert values(metrics, "propose.truncated_share")["t1", "teacher"] == (0.5, 1, None)
    assert values(metrics, "cost.generated_tokens")[()] == (2 + 3 + 4 + 5 + 6 * 3, 10, None)
    assert values(metrics, "reward.zero_variance_share")["s0", "student"] == (1.0, 1, None)
    assert values(metrics, "reward.zero_variance_share")["student",][0] == pytest.approx(1 / 3)


def test_the_generator_s_programs_count_by_task_not_by_depth(found: dict[str, pa.Table]) -> None:
    drawn = [task(number, GENERATOR, "def f(x):\n    return x" + " + 1" * (number == 3), status) for number, status in DRAWS]
    rows = [
        {name: row[name] for name in ("match_id", "teacher_id", "kind", "program", "inputs", "message", "status", "detail")}
        | {"proposal_id": row["task_id"], "group_id": "d01" if number < 3 else "d02", "reference_ids": []}
        | completion("", 0)
        | {"adapter_id": ""}
        for (number, _), row in zip(DRAWS, drawn, strict=True)
    ]
    tasks, proposals = tables.table(drawn, tables.TASKS), tables.table(rows, tables.PROPOSALS)
    shallow, deep = (drawn[number]["depth"] for number in (0, 3))
    metrics = measure(**found | {"tasks": tasks, "proposals": proposals})
    mean, n, stderr = values(metrics, "program.depth")[()]
    assert (mean, n) == ((2 * shallow + deep) / 3, 3) and shallow < deep
    assert stderr == pytest.approx(np.std([shallow, shallow, deep], ddof=1) / 3**0.5)
    assert values(metrics, "propose.valid_share")[()] == (0.75, 4, 0.25)
    plate = program_complexity(condense(0, {"tasks": tasks, "proposals": proposals}, ["tasks"])["tasks"])
    assert "standard error over tasks; n = 3 tasks per generation" in plate.caption


def test_only_adapters_that_stepped_have_trained_on_their_tokens(found: dict[str, pa.Table]) -> None:
    metrics = costs(found["samples"], {"s0": False, "s1": True})
    assert values(metrics, "cost.trained_tokens") == {(): (12.0, 4, None)}
    assert values(metrics, "cost.optimizer_steps") == {(): (1.0, 2, None)}
    assert values(costs(found["samples"].slice(0, 0), {"s1": True}), "cost.trained_tokens") == {(): (0.0, 0, None)}


def test_a_teachers_prompt_is_one_observation_of_its_pay_whatever_its_baseline(found: dict[str, pa.Table]) -> None:
    """Without a baseline a proposal is a group of its own, but four proposals of one prompt are still alike."""
    template = found["samples"].to_pylist()[0]
    rewards = {f"p{number}": [0.0, 0.0, 1.0, 1.0][number] for number in range(4)}
    rows = [
        template | {"sample_id": name, "member_id": "t0", "role": "teacher", "group_id": name, "reward": reward}
        for name, reward in rewards.items()
    ]
    tables_of = found | {"samples": tables.table(rows, tables.SAMPLES)}
    metrics = measure(*(tables_of[name] for name in ("proposals", "tasks", "rollouts", "grades", "samples")))
    assert values(metrics, "reward.mean")["t0", "teacher"] == (0.5, 2, 0.5), "two prompts"


def before(*earlier: pa.Table) -> SeenTasks:
    return SeenTasks(tables.SEEDS.empty_table(), earlier)


def test_coverage_counts_cells_against_all_the_past(found: dict[str, pa.Table]) -> None:
    tasks, proposals = found["tasks"], found["proposals"]
    first, again = explore(proposals, tasks, before()), explore(proposals, tasks, before(tasks))
    assert values(first, "coverage.cells") == {(): (3.0, 3, None)} == values(again, "coverage.cells") | {(): (3.0, 3, None)}
    assert values(first, "coverage.new_cells") == {(): (3.0, 3, None)}
    assert values(again, "coverage.new_cells") == {(): (0.0, 3, None)}
    assert values(again, "coverage.new_share") == dict.fromkeys([("t0", "teacher"), ("t1", "teacher")], (0.0, 1, None))
    assert values(again, "coverage.novelty")[()][0] < 0.3 < 0.9 < values(first, "coverage.novelty")[()][0]
    assert 0 < values(first, "pair.program_distance")["t0", "teacher", "t1"][0] <= 1
    assert explore(proposals, tasks, before(tasks)).equals(again)


def test_a_cell_forgets_names_and_constants_and_knows_constructs_types_and_execution() -> None:
    base = task(0, "t0", "def f(x):\n    return x + 1")
    table = tables.table(
        [
            base,
            task(1, "t0", "def f(longer):\n    # why\n    return longer + 7"),
            task(2, "t0", "def f(x):\n    return [x]"),
            base | {"value_types": "(str) -> str"},
            base | {"executed_lines": 1},
            base | {"executed_lines": 9},
            task(3, "t0", "no", "unparsed"),
        ],
        tables.TASKS,
    )
    found = [cell(row) for row in table.to_pylist()]
    assert found[0] == found[1] and found[-1] is None
    assert len({*found[1:-1]}) == 5


def member(name: str, role: str, born: int = 0) -> Member:
    return Member(name, role, f"{name}-start", "0", Rating(), born)  # type: ignore[arg-type]


def test_members_are_related_by_ratings_weights_and_birth(found: dict[str, pa.Table]) -> None:
    members = [member("t0", "teacher"), member("t1", "teacher"), member("s0", "student"), member("s1", "student", born=2)]
    weights = {one.adapter_id: adapter(number, 0).weights for number, one in enumerate(members)}
    row = {"teacher_mu": 25.0, "teacher_sigma": 8.0, "student_mu": 25.0, "student_sigma": 8.0}
    row |= {"teacher_adapter_id": "t", "student_adapter_id": "s"}
    played = [
        row | {"match_id": f"m-t{n}", "teacher_id": f"t{n}", "student_id": f"s{n}", "expected": expected}
        for n, expected in enumerate((0.5, 0.75))
    ]
    births = {"s1": OffspringRecord(("s0",), "M1", 0.25, 0.3)}
    matches = tables.table(played, tables.MATCHES)
    samples = with_clusters(found["samples"], found["proposals"])
    metrics = relate(members, matches, found["grades"], samples, weights, births, 2.0, 4)
    assert values(metrics, "calibration.error") == {(): (0.125, 2, 0.375)}
    assert values(metrics, "child.age") == {("s1", "student"): (2.0, None, None)}
    assert values(metrics, "child.gain") == {("s1", "student"): (0.25, 2, 0.3)}
    assert values(metrics, "child.lead")["s1", "student"][0] == pytest.approx(0.5 - 2 / 3)
    assert values(metrics, "child.lead")["s1", "student"][1:] == (2, None), "of one task of the others there is no error"
    assert set(values(metrics, "pair.adapter_distance")) == {("t0", "teacher", "t1"), ("s0", "student", "s1")}
    dense = [dense_delta(weights[one.adapter_id]) for one in members]
    assert values(metrics, "adapter.norm")["t1", "teacher"][0] == pytest.approx(2 * np.linalg.norm(dense[1]))
    expected_distance = 2 * np.linalg.norm(dense[2] - dense[3])
    assert values(metrics, "pair.adapter_distance")["s0", "student", "s1"][0] == pytest.approx(expected_distance)


def dense_delta(weights: dict[str, np.ndarray]) -> np.ndarray:
    a, b = sorted(weights)
    return weights[b].astype(np.float64) @ weights[a].astype(np.float64)


def test_distances_do_not_depend_on_the_gauge_and_are_undefined_at_zero() -> None:
    weights = adapter(1, 0).weights
    a, b = sorted(weights)
    gauge = np.array([[2.0, 1.0], [0.0, 0.5]], np.float32)
    turned = {a: np.linalg.inv(gauge).astype(np.float32) @ weights[a], b: weights[b] @ gauge}
    zero = {a: weights[a], b: np.zeros_like(weights[b])}
    norms, apart, cosines = distances(inner_products([weights, turned, zero]))
    assert apart[0, 1] < 1e-6 * norms[0] and cosines[0, 1] == pytest.approx(1) and norms[2] == 0
    assert math.isnan(cosines[0, 2]) and apart[0, 2] == pytest.approx(norms[0])


def test_novelty_falls_with_repetition_and_is_undefined_for_nothing() -> None:
    rng = np.random.default_rng(3)
    first, second = (["".join(map(str, rng.integers(0, 10, 400)))] for _ in range(2))
    assert novelty(first, "") == pytest.approx(1, abs=0.05) and novelty(second, "\n".join(first)) > 0.7
    assert novelty(first, "\n".join([*second, *first])) < 0.1
    assert math.isnan(novelty([], "\n".join(first))) and math.isnan(distance(first, []))
    assert distance(first, first) < 0.1 < 0.7 < distance(first, second)


def test_clusters_count_once_and_what_is_not_finite_not_at_all() -> None:
    mean, stderr, n = clustered([1.0, 1.0, 0.0, math.nan], ["a", "a", "b", "c"])
    assert (mean, n) == (0.5, 2) and stderr == pytest.approx(0.5)
    assert clustered([3.0]) == (3.0, None, 1)
    assert math.isnan(clustered([])[0])


def test_a_nullable_column_may_be_absent_and_a_needed_one_may_not() -> None:
    row = {"name": "a", "value": 1.0}
    assert tables.table([row], tables.METRICS).to_pylist() == [row | dict.fromkeys(tables.METRICS.names[2:])]
    older = pa.table({"name": ["a"], "value": [1.0], "role": ["teacher"]})
    assert tables.conform(older, tables.METRICS)["role"].to_pylist() == ["teacher"]
    with pytest.raises(ValueError, match=r"row 0: missing \['value'\], unknown \['vale'\]"):
        tables.table([{"name": "a", "vale": 1.0}], tables.METRICS)
    with pytest.raises(ValueError, match="columns"):
        tables.conform(pa.table({"name": ["a"]}), tables.METRICS)


def test_offspring_are_scored_at_their_ages_and_members_at_theirs() -> None:
    settings = ["generations=12", "evolution.every=3", "benchmark.every=0", "benchmark.children_at=[0, 4]"]
    config = load("chaos", settings)
    # events end generations 2, 5, 8, 11: newborns play in 3, 6, 9 and have four generations behind them after 6 and 9
    assert [generation for generation in range(12) if benchmarks_at(config, generation)] == [3, 6, 9, 11]
    lone = load("chaos", [*settings, "population.students=1"])
    assert [generation for generation in range(12) if benchmarks_at(lone, generation)] == [11]
    assert [g for g in range(12) if benchmarks_at(load("chaos", [*settings, "benchmark.every=5"]), g)] == [3, 4, 6, 9, 11]


def test_members_disagree_where_exactly_one_of_them_is_right() -> None:
    solved = {"s0": [True, True, False, False], "s1": [True, False, True, False], "s2": [True, True, False, False]}
    rows = [
        {"suite": "probe", "problem_id": f"p{number}", "member_id": name, "kind": "deduction", "band": 1, "attempt": 0}
        | {"greedy": True, "adapter_id": name, "adapter_sha256": "0", "text": "", "status": "", "correct": correct}
        for name, outcomes in solved.items()
        for number, correct in enumerate(outcomes)
    ]
    found = disagreement(tables.table(rows, tables.ANSWERS))
    assert {key: value[:2] for key, value in values(found, "pair.disagreement").items()} == {
        ("s0", "s1"): (0.5, 4),
        ("s0", "s2"): (0.0, 4),
        ("s1", "s2"): (0.5, 4),
    }
    assert values(found, "disagreement")[()][:2] == (pytest.approx(1 / 3), 4)
    assert disagreement(tables.ANSWERS.empty_table()).num_rows == 0


def test_a_group_is_still_if_its_rewards_are_equal_whatever_the_baseline(found: dict[str, pa.Table]) -> None:
    samples = found["samples"]
    place = samples.schema.get_field_index("centred")
    apart = samples.set_column(place, samples.schema.field(place), pc.add(samples["centred"], 0.3))
    same = [values(measure(**(found | {"samples": one})), "reward.zero_variance_share") for one in (samples, apart)]
    assert same[1]["student",] == same[0]["student",]


def test_a_group_of_unequal_rewards_without_a_gradient_is_still(found: dict[str, pa.Table]) -> None:
    """Paid for the best of k, most of a student's groups can be such."""
    samples = found["samples"]
    place = samples.schema.get_field_index("centred")
    nothing = samples.set_column(place, samples.schema.field(place), pa.array([0.0] * len(samples), pa.float64()))
    shares = values(measure(**(found | {"samples": nothing})), "reward.zero_variance_share")
    assert {share for share, *_ in shares.values()} == {1.0}
