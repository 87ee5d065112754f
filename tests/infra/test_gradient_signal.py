"""How much of a gradient is signal: known gradients, and the parts of a table of samples."""

import importlib.util
from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from flows.config import PROJECT
from stages.core import tables
from stages.core.lora.adapter import Adapter, Gradient


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("gradient_signal", PROJECT / "infra/experiments/gradient_signal.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def samples() -> pa.Table:
    """Four groups of two attempts, of 1, 2, 3 and 4 tokens."""
    rows = [
        {
            "sample_id": f"r{group}{attempt}", "member_id": "s0", "role": "student", "kind": "deduction", "group_id": f"g{group}",
            "adapter_id": "s0-start", "adapter_sha256": "0", "prompt_ids": [1], "completion_ids": [2] * (group + 1),
            "logprobs": [0.0] * (group + 1), "reward": 0.0, "baseline": 0.0, "centred": 0.0, "advantage": 0.0,
        }
        for group in range(4)
        for attempt in range(2)
    ]  # fmt: skip
    return tables.table(rows, tables.SAMPLES)


class Counting:
    """A trainer whose gradient is the sum of the advantages it is given, and the tokens it divides by."""

    def gradients(
        self, adapters: Mapping[str, Adapter], samples: pa.Table, tokens: Mapping[str, int]
    ) -> tuple[dict[str, Gradient], None]:
        advantages = np.array([sum(samples["advantage"].to_pylist())], np.float32)
        size = np.array([float(samples.num_rows), float(tokens["s0-start"])], np.float32)
        return {"s0-start": Gradient({"b": size, "a": advantages}, 8)}, None


def test_signal_is_told_from_noise(script: ModuleType) -> None:
    rng = np.random.default_rng(0)
    noise_KP = rng.normal(size=(64, 4096))
    ratio, cosine = script.signal_and_noise(noise_KP)
    assert abs(ratio) < 0.002 and abs(cosine) < 0.05
    ratio, cosine = script.signal_and_noise(noise_KP + 0.5 * rng.normal(size=4096))
    assert ratio == pytest.approx(0.25, rel=0.1) and cosine > 0.85
    assert np.isnan(script.signal_and_noise(np.zeros((4, 2)))).all()


def test_groups_are_dealt_whole_into_parts_with_one_denominator(script: ModuleType) -> None:
    found_KP = script.gradients(Counting(), {}, samples(), 2)
    assert found_KP.tolist() == [[0.0, 4.0, 20.0], [0.0, 4.0, 20.0]]


def test_each_reward_gives_advantages_of_its_own(script: ModuleType) -> None:
    correct = {f"r{group}{attempt}": attempt == 0 or group == 3 for group in range(4) for attempt in range(2)}
    found = {name: rows["advantage"].to_pylist() for name, rows in script.rewarded(samples(), correct)}
    assert found["as trained"] == [0.0] * 8
    assert found["right answers alone"] == [1, 0, 1, 0, 1, 0, 1, 1]
    outcome = found["outcome alone"]
    assert outcome[6:] == [0, 0] and outcome[0] == -outcome[1] > 0
