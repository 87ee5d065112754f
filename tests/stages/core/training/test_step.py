"""Steps from summed gradients: as one pass over all rows, up to the order of the sums; and what makes an adapter take none."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from stages.core import tables
from stages.core.lora.adapter import Adapter, Gradient
from stages.core.lora.adapter_files import adapter_bytes, gradient_bytes, read_gradient
from stages.core.shards import Shard
from stages.core.training.loss import Objective
from stages.core.training.settings import Settings
from stages.core.training.step import SumStepper, gradient_norm
from stages.core.training.torch_trainer import TorchTrainer
from stages.update import gradients, share_of, step, update
from tests.stages.core.training.test_grouped_lora import random_weights
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS, lora_of, sample_rows, with_zero_groups

BY_ROWS = replace(SETTINGS, weight_decay=0.1)
MEMBERS = {f"s{n}": (f"m{n}", "student") for n in range(3)}


@pytest.fixture(scope="module")
def adapters() -> dict[str, Adapter]:
    lora = lora_of()
    return {name: Adapter(random_weights(lora, n), {}, 0) for n, name in enumerate(MEMBERS)}


@pytest.fixture(scope="module")
def trainer() -> TorchTrainer:
    return TorchTrainer(lora_of(torch.float32), PAD, BY_ROWS)


def by_rows(
    adapters: dict[str, Adapter], samples: pa.Table, count: int, trainer: TorchTrainer, settings: Settings = BY_ROWS
) -> tuple[dict[str, Adapter], dict[tuple[str, str], float]]:
    """The stepped adapters and METRICS of an update in so many shares, through the bytes that the store would hold."""
    found, measured, skips = dict[str, list[Gradient]](), [], settings.skip_zero_groups
    for shard in (Shard(number, count) for number in range(count)):
        names = dict.fromkeys(share_of(samples, shard, skips)["adapter_id"].to_pylist())
        if not names:
            continue
        part, tokens = gradients({name: adapters[name] for name in names}, samples, shard, trainer, skips)
        measured.append(tokens)
        for name, gradient in part.items():
            found.setdefault(name, []).append(read_gradient(gradient_bytes(gradient)))
    everything, stepped, metrics = tables.join(measured, tables.TOKENS), dict[str, Adapter](), []
    for name, adapter in adapters.items():
        parts = iter(found.get(name, ()))
        own = step(adapter, name, MEMBERS[name], samples, parts, everything, SumStepper(settings), skips)
        metrics.append(own[1])
        if own[0] is not None:
            stepped[MEMBERS[name][0]] = own[0]
    return stepped, values(tables.join(metrics, tables.METRICS))


def values(metrics: pa.Table) -> dict[tuple[str, str], float]:
    return {(row["member_id"], row["name"]): row["value"] for row in metrics.to_pylist()}


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_any_number_of_shares_gives_the_step_of_one_pass_within_the_order_of_its_sums(
    adapters: dict[str, Adapter], trainer: TorchTrainer, count: int
) -> None:
    """In fp32: moments within 1e-4 of their largest, weights within 5 % of a step, metrics within 1e-5."""
    samples = sample_rows(adapters)
    whole, metrics = update(adapters, MEMBERS, samples, trainer)
    found, measured = by_rows(adapters, samples, count, trainer)
    assert list(found) == list(whole)
    for name, adapter in whole.items():
        assert found[name].step == adapter.step == 1
        for key, moment in adapter.moments.items():
            np.testing.assert_allclose(found[name].moments[key], moment, rtol=1e-3, atol=1e-4 * np.abs(moment).max(), err_msg=key)
        for key, weights in adapter.weights.items():
            np.testing.assert_allclose(found[name].weights[key], weights, atol=0.05 * BY_ROWS.learning_rate, err_msg=key)
    expected = values(metrics)
    assert measured == {key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in expected.items()}
    assert list(measured) == list(expected), "METRICS have the same rows in the same order"


@pytest.mark.parametrize("count", [1, 3])
def test_shares_without_the_groups_that_are_skipped_give_the_step_of_one_pass(adapters: dict[str, Adapter], count: int) -> None:
    """Also for an adapter all of whose groups are skipped: it is in no share, and steps on a gradient of zero."""
    settings = replace(BY_ROWS, objective=Objective(entropy_bonus=0.0), skip_zero_groups=True)
    trainer, samples = (
        TorchTrainer(lora_of(torch.float32), PAD, settings),
        with_zero_groups(adapters, "s0-1", "s1-0", "s1-1", "s1-2"),
    )
    whole, metrics = update(adapters, MEMBERS, samples, trainer)
    found, measured = by_rows(adapters, samples, count, trainer, settings)
    assert list(found) == list(whole) == ["m0", "m1", "m2"]
    for name, adapter in whole.items():
        for key, weights in adapter.weights.items():
            np.testing.assert_allclose(found[name].weights[key], weights, atol=0.05 * BY_ROWS.learning_rate, err_msg=key)
    expected = values(metrics)
    assert measured == {key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in expected.items()}
    skipped = [expected[member, "update.skipped_groups"] for member in ("m0", "m1", "m2")]
    assert skipped == [1.0, 3.0, 0.0] and expected["m2", "update.skipped_tokens"] == 0.0


def test_the_same_shares_give_the_same_bytes(adapters: dict[str, Adapter]) -> None:
    samples = sample_rows(adapters)
    one, other = (by_rows(adapters, samples, 3, TorchTrainer(lora_of(torch.float32), PAD, BY_ROWS)) for _ in range(2))
    assert one[1] == other[1]
    assert {name: adapter_bytes(adapter, "b", 1.0) for name, adapter in one[0].items()} == {
        name: adapter_bytes(adapter, "b", 1.0) for name, adapter in other[0].items()
    }


def test_gradients_of_shares_add_up_to_that_of_all_rows(adapters: dict[str, Adapter]) -> None:
    """In fp64, stored as fp32. A share's loss is divided by the tokens of all rows, not by its own."""
    samples, exact = sample_rows(adapters), TorchTrainer(lora_of(), PAD, SETTINGS)
    whole, _ = gradients(adapters, samples, Shard(), exact)
    total: dict[str, dict[str, np.ndarray]] = {}
    for shard in (Shard(number, 4) for number in range(4)):
        names = dict.fromkeys(share_of(samples, shard)["adapter_id"].to_pylist())
        for name, gradient in gradients({name: adapters[name] for name in names}, samples, shard, exact)[0].items():
            own = total.setdefault(name, {key: np.zeros_like(array) for key, array in gradient.values.items()})
            total[name] = {key: own[key] + array for key, array in gradient.values.items()}
    for name, gradient in whole.items():
        for key, array in gradient.values.items():
            np.testing.assert_allclose(total[name][key], array, rtol=1e-5, atol=1e-7 * np.abs(array).max(), err_msg=key)


def test_an_adapter_whose_rewards_are_equal_and_one_with_a_gradient_that_is_not_finite_take_no_step(
    adapters: dict[str, Adapter], trainer: TorchTrainer
) -> None:
    rows = sample_rows(adapters).to_pylist()
    equal = {"reward": 0.0, "centred": 0.0, "advantage": 0.0}
    rows = [row | equal if row["adapter_id"] == "s0" else row for row in rows]
    rows = [row | {"advantage": float("inf")} if row["sample_id"] == "s1-2-0" else row for row in rows]
    samples = tables.table(rows, tables.SAMPLES)
    whole, metrics = update(adapters, MEMBERS, samples, trainer)
    found, measured = by_rows(adapters, samples, 4, trainer)
    assert list(found) == list(whole) == ["m2"]
    assert measured["m1", "update.nonfinite"] == 1.0 and measured["m1", "update.stepped"] == 0.0
    assert measured["m0", "update.varied"] == 0.0 and ("m0", "update.loss") not in measured
    expected = {key: value for key, value in values(metrics).items() if key[0] != "m1"}
    assert {key: value for key, value in measured.items() if key[0] != "m1"} == {
        key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in expected.items()
    }
    assert list(measured) == list(values(metrics))


def test_opposite_infinities_and_an_overflowing_sum_are_not_finite(adapters: dict[str, Adapter]) -> None:
    adapter = adapters["s0"]
    tokens = pa.table({name: pa.array([0.5], pa.float32()) for name in ("loss", "entropy", "drift")})
    for one, other in ((np.inf, -np.inf), (3e38, 3e38), (np.nan, 0.0)):
        parts = [Gradient({k: np.full_like(a, value) for k, a in adapter.weights.items()}, 8) for value in (one, other)]
        result = SumStepper(BY_ROWS).step(adapter, iter(parts), tokens, {})
        assert not result.stepped and result.adapter is adapter and result.metrics["nonfinite"] == 1.0


def test_a_step_that_makes_weights_infinite_is_not_taken(adapters: dict[str, Adapter]) -> None:
    adapter = adapters["s0"]
    tokens = pa.table({name: pa.array([0.5], pa.float32()) for name in ("loss", "entropy", "drift")})
    part = Gradient({k: np.ones_like(a) for k, a in adapter.weights.items()}, 8)
    result = SumStepper(replace(BY_ROWS, learning_rate=1e39)).step(adapter, iter([part]), tokens, {})
    assert not result.stepped and result.adapter is adapter and result.metrics["nonfinite"] == 1.0


def test_a_step_that_makes_a_moment_infinite_is_not_taken(adapters: dict[str, Adapter]) -> None:
    adapter = adapters["s0"]
    tokens = pa.table({name: pa.array([0.5], pa.float32()) for name in ("loss", "entropy", "drift")})
    part = Gradient({k: np.full_like(a, 1e25) for k, a in adapter.weights.items()}, 8)  # finite, its square is not
    result = SumStepper(replace(BY_ROWS, max_grad_norm=1e30)).step(adapter, iter([part]), tokens, {})
    assert np.isfinite(result.metrics["grad_norm"]) and result.metrics["nonfinite"] == 1.0
    assert not result.stepped and result.adapter is adapter


def test_the_norm_of_many_entries_loses_no_digits() -> None:
    gradient_P = torch.full((1 << 23,), 0.1)
    assert gradient_norm(gradient_P) == pytest.approx(float(np.float32(0.1)) * 2**11.5, rel=1e-7)
    assert gradient_norm(torch.full((4,), 3e38)) == float("inf")


def test_a_pass_that_was_halved_in_one_part_shows_in_the_metrics(adapters: dict[str, Adapter]) -> None:
    adapter = adapters["s0"]
    tokens = pa.table({name: pa.array([0.5], pa.float32()) for name in ("loss", "entropy", "drift")})
    parts = [Gradient({k: np.ones_like(a) for k, a in adapter.weights.items()}, budget) for budget in (64, 32)]
    assert SumStepper(BY_ROWS).step(adapter, iter(parts), tokens, {}).metrics["micro_batch_tokens"] == 32.0


def test_samples_of_stale_weights_are_refused_in_a_share(adapters: dict[str, Adapter], trainer: TorchTrainer) -> None:
    samples = sample_rows(adapters)
    stale = {name: replace(adapter, weights=adapters["s0"].weights) for name, adapter in adapters.items()}
    with pytest.raises(ValueError, match="samples of s1 were written by weights"):
        gradients(stale, samples, Shard(), trainer)


def test_the_count_of_steps_begins_with_the_moments(adapters: dict[str, Adapter], trainer: TorchTrainer) -> None:
    """An evolution strategy counts steps and keeps no moments: the first gradient step after it is as one from the start."""
    samples = sample_rows(adapters)
    fresh, _ = update(adapters, MEMBERS, samples, trainer)
    moved, _ = update({name: replace(one, step=1000) for name, one in adapters.items()}, MEMBERS, samples, trainer)
    for name, adapter in fresh.items():
        assert moved[name].step == adapter.step == 1
        for key, weights in adapter.weights.items():
            np.testing.assert_array_equal(moved[name].weights[key], weights)
