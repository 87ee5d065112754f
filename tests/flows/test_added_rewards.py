"""A run that rewards traces, graded by a real sandbox: what is stored, what fsck checks, and what a fork may not ask for."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.added_rewards import check_added_rewards
from flows.audit.fsck import fsck
from flows.audit.invariants import GenerationInputs, problems
from flows.backend import Backend
from flows.choices import estimator_of
from flows.config import ConfigError, RunConfig, dump, load
from flows.execution.parts import part_names
from flows.execution.run_stage import Spec, perform
from flows.run.history import KEPT_OUT
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.stage_io import StageIO
from flows.storage import open_store
from stages.core.method.rewards import form, populora
from stages.core.statistics.estimates import only
from stages.core.tables import GENERATION_TABLES
from tests.support import example_run

pytestmark = pytest.mark.timeout(300)
SETTINGS = ("sandbox.kind=local", "engine.max_drift=1e9", "evolution.every=0", "model.style=trace", "reward.trace_weight=0.5")
CHAIN = "def f(a, e):\n    c = a + 5\n    h = c * e\n    k = h % 9\n    return k"
TEXTS = ("c=12\nh=24\nk=6⟨out⟩6", "c=12\nh=24\nk=7⟨out⟩7", "c=12\nh=24\nk=6⟨out⟩7", "c=1⟨out⟩5", "c=12")
REWARDS = (1.0, -0.5 + 0.5 * 2 / 3, -0.5 + 0.5, -0.5, -1.0)


def config_of(*settings: str) -> RunConfig:
    return load("chaos", [*SETTINGS, *settings])


def chained(name: str, table: pa.Table) -> pa.Table:
    """The example's deductions as chains, answered by each of TEXTS in turn; other kinds without an answer."""
    rows, count = table.to_pylist(), 0
    for row in rows:
        deduction = row["kind"] == "deduction" and row.get("status", "valid") == "valid"
        if name == "tasks" and deduction:
            row |= {"program": CHAIN, "inputs": ["7, 2"], "outputs": ["6"], "values": ["6"], "program_key": "chain"}
        if name == "rollouts":
            text = TEXTS[count % len(TEXTS)]
            count += deduction
            row |= {"text": text, "answer": text.partition("⟨out⟩")[2] or None} if deduction else {"answer": None}
    return pa.Table.from_pylist(rows, table.schema)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two generations; proposals and answers are made up, everything from their grades on is real."""
    config, store = config_of(), open_store(str(tmp_path_factory.mktemp("store")))
    backend = Backend(config)
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        run.describe(dump(config), {KEPT_OUT: []}, example_run.CLOCK)
        population = example_run.start(run, backend.initial_adapter())
        for generation in range(2):
            example_run.play(run, population, generation, prompts=3, ungraded=chained)
            for stage in ("grade", "reward", "update", "rate", "evolve"):
                io = StageIO(run, stage, generation, None, config.model.name, config.model.alpha)
                for part in (*part_names(io, config), None) if stage == "update" else (None,):
                    perform(run, Spec(store.url, "r", stage, generation, part, epoch, 2), config, backend)
            population = example_run.population_of(run, generation)
    backend.close()
    return run


def test_a_wrong_deduction_earns_for_the_beginning_of_its_trace(finished: Run) -> None:
    for generation in range(2):
        traces = finished.read_table(generation, "traces").to_pylist()
        assert traces and all((row["steps"], row["lines"]) == (3, ["c=12", "h=24", "k=6"]) for row in traces)
        texts = {row["rollout_id"]: row["text"] for row in finished.read_table(generation, "rollouts").to_pylist()}
        samples = only(finished.read_table(generation, "samples"), role="student", kind="deduction").to_pylist()
        paid = {texts[row["sample_id"]]: row["reward"] for row in samples}
        assert paid == pytest.approx(dict(zip(TEXTS, REWARDS, strict=True)))


def test_the_share_of_right_steps_is_a_metric(finished: Run) -> None:
    rows = only(finished.read_table(0, "metrics"), name="solve.trace_share").to_pylist()
    everybody = next(row for row in rows if row["member_id"] is None)
    assert 0 < everybody["value"] < 1 and everybody["n"] == finished.read_table(0, "traces").num_rows
    assert {row["role"] for row in rows if row["member_id"]} == {"student"}


def test_fsck_finds_nothing(finished: Run) -> None:
    assert list(fsck(finished)) == []


@pytest.mark.parametrize(
    ("values", "where", "problem"),
    [
        ({"lines": ["c=12", "h=25", "k=6"]}, "samples", "reward differs from the recomputed values: g0000-m00-p000-r01"),
        ({"steps": 4}, "traces", "lines do not fit the number of steps: g0000-m00-p000"),
        ({"task_id": "g0000-m00-p005"}, "traces", "task ids are not those of the deductions with a wrong answer, in order"),
    ],
)
def test_fsck_would_find_another_trace(finished: Run, values: dict[str, Any], where: str, problem: str) -> None:
    found = {name: finished.read_table(0, name) for name in (*GENERATION_TABLES, "traces")}
    given = GenerationInputs(None, None, None, config_of(), populora, estimator_of(config_of()), 0)
    assert list(problems(found, given)) == []
    rows = found["traces"].to_pylist()
    rows[0] |= values
    said = list(problems(found | {"traces": pa.Table.from_pylist(rows, found["traces"].schema)}, given))
    assert any(name == where and text.startswith(problem) for name, text in said), said


def test_a_fork_that_shares_grades_without_traces_is_told_so(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        run.describe(dump(config_of("reward.trace_weight=0")), {KEPT_OUT: []}, example_run.CLOCK)
        example_run.play(run, example_run.start(run), 0)
        spec = Spec(store.url, "r", "reward", 0, None, epoch, 2)
        with pytest.raises(ConfigError) as error:
            perform(run, spec, config_of(), Backend(config_of()))
    message = "reward.trace_weight: generation 0 was graded without recording traces; fork it before grade"
    assert str(error.value) == message


def test_a_model_without_traces_and_a_rule_that_pays_them_too_much_are_refused() -> None:
    check_added_rewards(config_of(), "trace", populora)
    with pytest.raises(ConfigError) as error:
        check_added_rewards(config_of("model.style=auto"), "compact", populora)
    expected = "reward.trace_weight: infra/models/seed writes answers without a trace (model.style compact)"
    assert str(error.value) == expected
    with pytest.raises(ConfigError) as error:
        check_added_rewards(config_of("reward.rule=form"), "trace", form)
    assert str(error.value) == (
        "reward.trace_weight: 0.5 with reward.rule form: must be less than 0, by which a right answer earns more than a wrong one"
    )


def test_a_deduction_that_could_undo_a_right_answer_is_refused() -> None:
    narrow = load("chaos", ["reward.trailing_text=0.5"])
    check_added_rewards(narrow, "document", populora)
    with pytest.raises(ConfigError) as error:
        check_added_rewards(narrow, "document", form)
    assert str(error.value) == (
        "reward.trailing_text: 0.5 with reward.rule populora: must be less than 0, by which a right answer "
        "earns more than a wrong one"
    )
    both = config_of("reward.trailing_text=0.9", "reward.trace_weight=0.9")
    with pytest.raises(ConfigError, match=r"reward\.trace_weight and reward\.trailing_text: 0\.9 and 0\.9 with"):
        check_added_rewards(both, "trace", populora)
