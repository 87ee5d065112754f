"""The step of an evolution strategy from SAMPLES."""

import numpy as np
import pytest

from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256
from stages.core.lora.strategy import NoiseKey, Strategy, noise
from stages.core.training.strategy_step import StrategyUpdater
from stages.update import update

WEIGHTS = {"b": np.ones((2, 2), np.float32), "a": np.zeros((2, 3), np.float32)}
ADAPTERS = {name: Adapter(WEIGHTS, {}, 4) for name in ("s0-g0001", "s1-g0001", "a0-g0001")}
UPDATER = StrategyUpdater(Strategy(2, 0.1, 0.01), seed=3, generation=2)


def samples(*rows: tuple[str, str, float], sha256: str = weights_sha256(WEIGHTS)):
    """SAMPLES of (adapter, role, reward)."""
    return tables.table(
        [
            {
                "sample_id": f"{number}",
                "member_id": adapter.partition("-")[0],
                "role": role,
                "kind": "deduction",
                "group_id": f"{role} {number // 2}",
                "adapter_id": adapter,
                "adapter_sha256": sha256,
                "prompt_ids": [1],
                "completion_ids": [2, 3],
                "logprobs": [0.0, 0.0],
                "reward": reward,
                "baseline": 0.0,
                "centred": reward,
                "advantage": reward,
            }
            for number, (adapter, role, reward) in enumerate(rows)
        ],
        tables.SAMPLES,
    )


def test_an_adapter_moves_towards_the_copies_that_earned_more_and_others_stay() -> None:
    rows = [("s0-g0001", "student", reward) for reward in (1.0, -0.5, 1.0, 1.0)]
    rows += [("s1-g0001", "student", 1.0)] * 4
    found = UPDATER.update({name: ADAPTERS[name] for name in ("s0-g0001", "s1-g0001")}, samples(*rows))
    moved, still = found["s0-g0001"], found["s1-g0001"]
    drawn = noise(WEIGHTS, NoiseKey(3, 2, "s0-g0001"), 0)
    for name, before in WEIGHTS.items():  # fitness 1 and -1: a step of 0.01 / (2 x 0.1) x 2
        np.testing.assert_allclose(moved.adapter.weights[name], before + 0.1 * drawn[name], atol=1e-6)
    assert (moved.stepped, moved.adapter.step, moved.adapter.moments) == (True, 5, {})
    rms = np.sqrt(
        np.mean([np.square(0.1 * array).mean() for array in (np.concatenate([drawn["a"].ravel(), drawn["b"].ravel()]),)])
    )
    assert moved.metrics == {
        "samples": 4.0,
        "response_tokens": 8.0,
        "groups": 2.0,
        "zero_variance_groups": 1.0,
        "varied": 1.0,
        "copies_spread_student": 0.375,
        "nonfinite": 0.0,
        "step_rms": pytest.approx(rms, rel=1e-5),
    }
    assert not still.stepped and still.adapter is ADAPTERS["s1-g0001"]
    assert still.metrics["copies_spread_student"] == 0.0


def test_a_step_to_infinite_weights_is_not_taken() -> None:
    rows = [("s0-g0001", "student", reward) for reward in (1.0, -0.5, 1.0, 1.0)]
    updater = StrategyUpdater(Strategy(2, 0.1, 1e39), 3, 2)
    found = updater.update({"s0-g0001": ADAPTERS["s0-g0001"]}, samples(*rows))["s0-g0001"]
    assert not found.stepped and found.adapter is ADAPTERS["s0-g0001"] and found.metrics["nonfinite"] == 1.0


def test_both_roles_of_one_agent_count() -> None:
    rows = [
        ("a0-g0001", role, reward) for role, reward in (("teacher", 1.0), ("teacher", 0.0), ("student", -1.0), ("student", 1.0))
    ]
    adapters = {"a0-g0001": ADAPTERS["a0-g0001"]}
    assert not UPDATER.update(adapters, samples(*rows))["a0-g0001"].stepped, "the roles say opposite things"
    assert UPDATER.update(adapters, samples(*rows[:2]))["a0-g0001"].stepped


def test_the_update_stage_takes_it_for_a_trainer() -> None:
    rows = [("s0-g0001", "student", 1.0), ("s0-g0001", "student", 0.0)]
    stepped, metrics = update({"s0-g0001": ADAPTERS["s0-g0001"]}, {"s0-g0001": ("s0", "student")}, samples(*rows), UPDATER)
    assert list(stepped) == ["s0"]
    found = {row["name"]: row["value"] for row in metrics.to_pylist()}
    assert found["update.stepped"] == 1.0 and found["update.copies_spread_student"] == 0.5


def test_rows_of_stale_weights_and_uneven_rows_are_refused() -> None:
    adapters = {"s0-g0001": ADAPTERS["s0-g0001"]}
    with pytest.raises(ValueError, match="written by weights"):
        UPDATER.update(adapters, samples(("s0-g0001", "student", 1.0), sha256="0" * 64))
    with pytest.raises(ValueError, match="3 completions cannot be dealt out evenly over 2 copies"):
        UPDATER.update(adapters, samples(*[("s0-g0001", "student", 1.0)] * 3))
