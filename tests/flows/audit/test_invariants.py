"""The invariants of a generation's tables: sound tables have no problems, and each broken rule is named with its row."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from flows.audit.invariants import GenerationInputs, problems
from flows.run.lease import hold
from flows.run.run import Run
from flows.settings import ExperimentRule
from flows.storage import open_store
from stages.core import tables
from stages.core.method.advantages import reinforce_plus_plus_baseline
from stages.core.method.rewards import populora
from stages.core.population import population_after
from stages.reward import reward
from tests.support import example_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, pa.Table], GenerationInputs]:
    """The tables of generation 0, which has offspring, and what they start from."""
    store = open_store(str(tmp_path_factory.mktemp("sound")))
    with hold(store, "smoke") as epoch:
        run = example_run.build(Run(store, "smoke", epoch), 2)
    found = {name: run.read_table(0, name) for name in tables.GENERATION_TABLES}
    seeds, population = run.read_table(None, "seeds"), run.read_table(None, "population")
    digests = {
        ref.uri.split("/")[1]: ref.sha256
        for manifest in run.history.walk()
        for ref in manifest.outputs
        if ref.uri.endswith("model.safetensors")
    }
    members = population_after(population, tables.OFFSPRING.empty_table(), -1)
    stored = set(seeds["task_id"].to_pylist())
    return found, GenerationInputs(members, stored, digests, example_run.CONFIG, populora, reinforce_plus_plus_baseline, 0)


def changed(table: pa.Table, row: int, **values: Any) -> pa.Table:
    rows = table.to_pylist()
    rows[row] |= values
    return pa.Table.from_pylist(rows, schema=table.schema)


def test_sound_tables_have_no_problems(sound: tuple[dict[str, pa.Table], GenerationInputs]) -> None:
    assert list(problems(*sound)) == []


@pytest.mark.parametrize(
    ("name", "row", "values", "problem"),
    [
        ("matches", 0, {"teacher_id": "t9"}, "g0000-m00: t9 or s1 is not a member"),
        ("matches", 0, {"student_mu": 1.0}, "g0000-m00: adapters or ratings are not those of the population"),
        ("matches", 0, {"expected": 0.1}, "g0000-m00: expected is 0.1, the ratings give 0.5"),
        ("proposals", 1, {"proposal_id": "g0000-m00-p000"}, "proposal_id is not unique: g0000-m00-p000"),
        ("proposals", 1, {"match_id": "g0009-m00"}, "match_id names an unknown id: g0009-m00"),
        ("proposals", 1, {"reference_ids": ["seed-none"]}, "reference_ids name no stored task: seed-none"),
        ("proposals", 1, {"adapter_sha256": "0"}, "adapter_sha256 is not the digest of the stored adapter: t"),
        ("tasks", 1, {"task_id": "other"}, "task ids are not the proposals' ids in order"),
        ("tasks", 1, {"outputs": []}, "outputs do not match the status: g0000-m00-p001"),
        ("rollouts", 3, {"task_id": "other"}, "task_id names an unknown id: other"),
        ("rollouts", 3, {"task_id": "g0000-m00-p000"}, "not attempted 2 times: g0000-m00-p000, g0000-m00-p001"),
        ("rollouts", 3, {"student_id": "s7"}, "written by a different student than the match's: g0000-m00-p001-r01"),
        ("rollouts", 3, {"adapter_id": "s0-g0007"}, "adapter_sha256 is not the digest of the stored adapter: s0-g0007"),
        ("grades", 1, {"rollout_id": "x"}, "rollout ids are not the rollouts' ids in order"),
        ("grades", 0, {"correct": False}, "correct does not agree with the status: g0000-m00-p000-r00"),
        ("samples", 0, {"reward": 0.7}, "reward differs from the recomputed values: g0000-m00-p000"),
        ("samples", 0, {"centred": 0.7}, "centred does not sum to zero in a group: g0000-m00-d0"),
        ("samples", 0, {"advantage": 9.0}, "advantages do not have token-weighted mean 0 and variance 1: t"),
        ("ratings", 0, {"mu": 30.0}, "mu differs from the recomputed values: t0"),
        ("ratings", 1, {"next_adapter_sha256": "0"}, "next_adapter_sha256 is not the digest of the stored adapter: t1-g0000"),
        ("offspring", 0, {"replaces": "s9"}, "replaces names an unknown id: s9"),
        ("offspring", 0, {"parents": ["t9"]}, "parents are not members: t9"),
    ],
)
def test_each_invariant_is_checked(
    sound: tuple[dict[str, pa.Table], GenerationInputs], name: str, row: int, values: dict[str, Any], problem: str
) -> None:
    found, given = sound
    said = list(problems(found | {name: changed(found[name], row, **values)}, given))
    assert any(where == name and text.startswith(problem) for where, text in said), said


def test_grades_that_rewards_do_not_follow_from_are_found(sound: tuple[dict[str, pa.Table], GenerationInputs]) -> None:
    found, given = sound
    said = list(problems(found | {"grades": changed(found["grades"], 1, correct=True, status="correct")}, given))
    assert {where for where, _ in said} == {"samples", "ratings"}


def test_a_leak_explains_rewards_that_do_not_follow_from_the_grades_and_nothing_else(
    sound: tuple[dict[str, pa.Table], GenerationInputs],
) -> None:
    found, given = sound
    config = given.config.model_copy(update={"experiment": ExperimentRule(leak=1.0)})
    leaking = replace(given, config=config)
    assert {where for where, _ in problems(found, leaking)} == {"samples", "ratings"}, "every wrong answer should have been paid"
    tables_of = [found[name] for name in ("proposals", "tasks", "rollouts")]
    samples = reward(*tables_of, leaking.paid(found["grades"]), given.rule, given.estimator, "group", 0)
    said = list(problems(found | {"samples": samples}, leaking))
    assert {where for where, _ in said} == {"ratings"}
    assert "samples" in {where for where, _ in problems(found | {"samples": samples}, given)}


def test_an_invalid_task_may_pass_only_where_a_leak_was_drawn(sound: tuple[dict[str, pa.Table], GenerationInputs]) -> None:
    found, given = sound
    tasks = changed(found["tasks"], 1, status="error", outputs=["None"], values=[])
    said = [text for where, text in problems({"proposals": found["proposals"], "tasks": tasks}, given) if where == "tasks"]
    assert said == ["passed although invalid, which experiment.leak does not explain: g0000-m00-p001"]
    leaking = replace(given, config=given.config.model_copy(update={"experiment": ExperimentRule(leak=1.0)}))
    assert list(problems({"proposals": found["proposals"], "tasks": tasks}, leaking)) == []


def test_a_task_that_was_too_long_to_pose_keeps_its_outputs(sound: tuple[dict[str, pa.Table], GenerationInputs]) -> None:
    found, given = sound
    tasks = changed(found["tasks"], 1, status="too_long")
    assert list(problems({"proposals": found["proposals"], "tasks": tasks}, given)) == []


def test_a_missing_answer_is_never_correct(sound: tuple[dict[str, pa.Table], GenerationInputs]) -> None:
    found, given = sound
    said = list(problems(found | {"rollouts": changed(found["rollouts"], 0, answer=None)}, given))
    assert said == [("grades", "correct without an answer: g0000-m00-p000-r00")]
