"""What of an attempt was trained, and what its trace added to its reward."""

from pathlib import Path
from typing import Any

import pytest

from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.rewarding import Rewarding, rewarding_config
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run, rewarded_run

DOCUMENT = {"model": {"style": "document"}, "seed": 5}
TRACED = {"model": {"style": "trace"}, "reward": {"trace_weight": 0.5}, "seed": 5}
TRUE = {"t": {"task_id": "t", "steps": 5, "lines": ["a=1", "b=2", "c=3", "d=4", "e=5"]}}
SAMPLE = {"reward": -0.5}
WRONG = {"status": "wrong", "correct": False}


def attempt(text: str, kind: str = "deduction", **values: Any) -> dict[str, Any]:
    return {"rollout_id": "t-r00", "task_id": "t", "kind": kind, "text": text, "tokens": 10} | values


@pytest.mark.parametrize(
    ("rollout", "sample", "expected"),
    [
        (attempt(" 3, 'why'\n", answer_tokens=2), SAMPLE, {"trained_tokens": 2, "behind_answer": ", 'why'\n"}),
        (attempt("([1], k=2), 'why'", "abduction", answer_tokens=7), SAMPLE, {"trained_tokens": 7, "behind_answer": ", 'why'"}),
        (attempt(" 3, 'why'\n", answer_tokens=2), None, {"behind_answer": ", 'why'\n"}),
        (attempt(" 3,", answer_tokens=10), SAMPLE, {}),
        (attempt(" 3\n", answer_tokens=None), SAMPLE, {}),
        (attempt(" 3, 'why'\n"), SAMPLE, {}),
    ],
    ids=["deduction", "abduction", "not rewarded", "its last token has both", "all", "a table without the column"],
)
def test_what_was_trained(rollout: dict[str, Any], sample: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    assert Rewarding(DOCUMENT, 0, {}).of(rollout, WRONG, sample) == expected


def test_what_the_text_behind_an_answer_cost() -> None:
    rewarding = Rewarding(DOCUMENT | {"reward": {"trailing_text": 0.5}}, 0, {})
    behind = {"trained_tokens": 2, "behind_answer": ", 'why'\n", "deducted_from_reward": 0.5}
    assert rewarding.of(attempt(" 3, 'why'\n", answer_tokens=2), WRONG, SAMPLE) == behind
    assert rewarding.of(attempt(" 3,", answer_tokens=10), WRONG, SAMPLE) == {"deducted_from_reward": 0.5}
    assert rewarding.of(attempt(" 3, 'why'\n", answer_tokens=2), WRONG, None) == {"behind_answer": ", 'why'\n"}
    assert rewarding.of(attempt(" 3\n", answer_tokens=None), WRONG, SAMPLE) == {}


def test_another_style_knows_only_how_many_tokens_were_trained() -> None:
    for config in ({"model": {"style": "chat"}}, {}):
        assert Rewarding(config, 0, {}).of(attempt("3, 4", answer_tokens=2), WRONG, SAMPLE) == {"trained_tokens": 2}


@pytest.mark.parametrize(
    ("rollout", "grade", "sample", "expected"),
    [
        (attempt("a=1\nb=2\nc=3\nd=0⟨out⟩9"), WRONG, SAMPLE, {"trace": {"steps_right": 3, "steps": 5, "added_to_reward": 0.3}}),
        (attempt("⟨out⟩9"), WRONG, SAMPLE, {"trace": {"steps_right": 0, "steps": 5, "added_to_reward": 0.0}}),
        (attempt("a=1⟨out⟩9"), WRONG, None, {"trace": {"steps_right": 1, "steps": 5, "added_to_reward": None}}),
        (attempt("a=1⟨out⟩5"), {"status": "correct", "correct": True}, SAMPLE, {}),
        (attempt("a=1⟨out⟩"), {"status": "format", "correct": False}, SAMPLE, {}),
        (attempt("a=1⟨in⟩9", "abduction"), WRONG, SAMPLE, {}),
        (attempt("a=1⟨out⟩9", task_id="another"), WRONG, SAMPLE, {}),
        (attempt("a=1⟨out⟩9"), {}, None, {}),
    ],
    ids=["three of five", "none", "not rewarded", "correct", "format", "abduction", "no trace stored", "not graded"],
)
def test_what_a_trace_added(
    rollout: dict[str, Any], grade: dict[str, Any], sample: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    assert Rewarding(TRACED, 0, TRUE).of(rollout, grade, sample) == expected
    assert Rewarding(TRACED | {"reward": {}}, 0, TRUE).of(rollout, grade, sample) == {}


def test_a_program_that_cannot_be_recorded_and_a_leak_add_nothing() -> None:
    rollout = attempt("a=1⟨out⟩9")
    assert Rewarding(TRACED, 0, {"t": {"steps": 0, "lines": []}}).of(rollout, WRONG, SAMPLE) == {}
    leaking = Rewarding(TRACED | {"experiment": {"leak": 1.0}}, 0, TRUE)
    assert leaking.leaked("t-r00", WRONG) and leaking.of(rollout, WRONG, SAMPLE) == {}
    assert not leaking.leaked("t-r00", {}) and not leaking.leaked("t-r00", {"status": "format", "correct": False})


def test_what_a_fork_shares_was_rewarded_by_its_parents_rules(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "parent") as epoch:
        made = example_run.build(Run(store, "parent", epoch), 2, rewarded_run.TRACED)
    forked = fork(made, "forked", 0, ["reward.trace_weight=0.25"], lambda _: {}, {})
    weights = [rewarding_config(forked, generation)["reward"]["trace_weight"] for generation in (0, 1)]
    assert weights == [0.5, 0.25]
    (tmp_path / "parent" / "run.json").unlink()
    assert rewarding_config(forked, 0) == {}
