"""The trainer against a naive double loop, against itself alone, and against torch's own AdamW."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from stages.core import tables
from stages.core.engines.agreement import BOUNDS, Disagreement, check_agreement
from stages.core.engines.hf_engine import HFEngine
from stages.core.engines.protocol import Request
from stages.core.lora.adapter import Adapter
from stages.core.lora.adapter_files import weights_sha256
from stages.core.training.grouped_lora import GroupedLoRA, attach
from stages.core.training.loss import Objective
from stages.core.training.packing import MicroBatch
from stages.core.training.settings import Settings
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.engines.test_hf_engine import Letters
from tests.stages.core.training.test_grouped_lora import TARGETS, random_weights, tiny

PAD = 0
SETTINGS = Settings(objective=Objective(entropy_bonus=0.01, temperature=0.8), learning_rate=1e-3, micro_batch_tokens=96)


def lora_of(dtype: torch.dtype = torch.float64) -> GroupedLoRA:
    return attach(tiny(dtype=dtype), TARGETS, 2, 4, 1)


@pytest.fixture(scope="module")
def adapters() -> dict[str, Adapter]:
    lora = lora_of()
    return {f"s{n}": Adapter(random_weights(lora, n), {}, 0) for n in range(3)}


def sample_rows(adapters: dict[str, Adapter], seed: int = 0, prompts: int = 3, attempts: int = 4) -> pa.Table:
    rng = np.random.default_rng(seed)
    rows = []
    for number, (adapter_id, adapter) in enumerate(adapters.items()):
        for group in range(prompts):
            prompt = rng.integers(2, 31, rng.integers(1, 9)).tolist()
            centred = rng.normal(size=attempts)
            centred -= centred.mean()
            for attempt in range(attempts + number):  # groups of different sizes
                completion = rng.integers(1, 31, rng.integers(1, 7)).tolist()
                value = float(centred[attempt % attempts])
                rows.append(
                    {
                        "sample_id": f"{adapter_id}-{group}-{attempt}",
                        "member_id": adapter_id,
                        "role": "student",
                        "kind": "deduction",
                        "group_id": f"{adapter_id}-{group}",
                        "adapter_id": adapter_id,
                        "adapter_sha256": weights_sha256(adapter.weights),
                        "prompt_ids": prompt,
                        "completion_ids": completion,
                        "logprobs": rng.normal(-3, 0.1, len(completion)).tolist(),
                        "reward": value,
                        "baseline": 0.0,
                        "centred": value,
                        "advantage": value,
                    }
                )
    return tables.table(rows, tables.SAMPLES)


def naive_gradient(adapter: Adapter, samples: Sequence[dict], objective: Objective) -> tuple[float, np.ndarray]:
    """Loss and gradient [P] from one sample and one token at a time."""
    lora = lora_of()
    lora.load([adapter.weights])
    num_tokens = sum(len(sample["completion_ids"]) for sample in samples)
    total = 0.0
    for sample in samples:
        ids = sample["prompt_ids"] + sample["completion_ids"]
        for place, target in enumerate(sample["completion_ids"], len(sample["prompt_ids"])):
            with lora.routed([1]):
                logits = lora.model(torch.tensor([ids[:place]]), use_cache=False).logits[0, -1] / objective.temperature
            row = logits.log_softmax(-1)
            entropy = -(row.exp() * row).sum()
            loss = -(sample["advantage"] * row[target] + objective.entropy_bonus * entropy) / num_tokens
            loss.backward()
            # the value of the surrogate is -A (ratio 1); its gradient is that of -A logp
            total += float((-sample["advantage"] - objective.entropy_bonus * entropy.detach()) / num_tokens)
    return total, lora.gradients_NP[0].numpy()


@pytest.fixture(scope="module")
def naive_gradients(adapters: dict[str, Adapter]) -> dict[str, tuple[float, np.ndarray]]:
    samples = sample_rows(adapters).to_pylist()
    own = {name: [row for row in samples if row["adapter_id"] == name] for name in adapters}
    return {name: naive_gradient(adapter, own[name], SETTINGS.objective) for name, adapter in adapters.items()}


def trained_gradients(trainer: TorchTrainer, adapters: dict[str, Adapter], samples: pa.Table) -> dict[str, np.ndarray]:
    """Gradients read back from the first moment of a fresh adapter: m = (1 - beta1) g, g unclipped."""
    updates = trainer.update(adapters, samples)
    names = trainer._lora.names()
    moments = {adapter_id: update.adapter.moments for adapter_id, update in updates.items()}
    return {
        adapter_id: np.concatenate([moment["exp_avg." + name].reshape(-1) for name in names]) / 0.1
        for adapter_id, moment in moments.items()
    }


@pytest.mark.parametrize("row_tokens", [0, 20, 1024])
@pytest.mark.parametrize(("checkpointing", "above"), [(False, 0), (True, 0), (True, 8)])
def test_loss_and_gradients_equal_a_naive_double_loop(
    adapters: dict[str, Adapter],
    naive_gradients: dict[str, tuple[float, np.ndarray]],
    row_tokens: int,
    checkpointing: bool,
    above: int,
) -> None:
    chosen = replace(SETTINGS, row_tokens=row_tokens, max_grad_norm=1e9)
    settings = replace(chosen, gradient_checkpointing=checkpointing, recompute_above=above)
    trainer = TorchTrainer(lora_of(), PAD, settings)
    updates, found = trainer.update(adapters, sample_rows(adapters)), trained_gradients(trainer, adapters, sample_rows(adapters))
    for name, (loss, gradient_P) in naive_gradients.items():
        assert updates[name].metrics["loss"] == pytest.approx(loss, rel=1e-10)
        assert updates[name].metrics["grad_norm"] == pytest.approx(np.linalg.norm(gradient_P), rel=1e-10)
        np.testing.assert_allclose(found[name], gradient_P, rtol=1e-4, atol=1e-8)  # moments are stored in fp32


def test_only_passes_that_are_too_wide_recompute(adapters: dict[str, Adapter], monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[tuple[int, bool]] = []
    hidden = TorchTrainer._hidden

    def noted(self: TorchTrainer, batch: MicroBatch, routing: Any) -> torch.Tensor:
        widths.append((batch.ids_BL.size, bool(self._model.training)))  # recomputation needs train mode
        return hidden(self, batch, routing)

    monkeypatch.setattr(TorchTrainer, "_hidden", noted)
    for above in (0, 8, 10_000):
        widths.clear()
        settings = replace(SETTINGS, row_tokens=0, gradient_checkpointing=True, recompute_above=above)
        TorchTrainer(lora_of(), PAD, settings).update(adapters, sample_rows(adapters))
        assert widths and all(recomputed == (size > above) for size, recomputed in widths)
        assert len({recomputed for _, recomputed in widths}) == (2 if above == 8 else 1), widths
    assert replace(settings, gradient_checkpointing=False, recompute_above=1).pass_tokens == settings.micro_batch_tokens


def test_groups_without_an_advantage_are_measured_and_cost_no_backward_pass(
    adapters: dict[str, Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sample_rows(adapters).to_pylist()
    equal = [row | {"advantage": 0.0} if row["group_id"].endswith("-1") else row for row in rows]
    samples = tables.table(equal, tables.SAMPLES)
    passes: list[int] = []
    loss = TorchTrainer._loss

    def counted(self: TorchTrainer, batch: MicroBatch, *rest: Any) -> torch.Tensor:
        found = loss(self, batch, *rest)
        passes.append(len(batch.targets_T) if found.requires_grad else 0)
        return found

    monkeypatch.setattr(TorchTrainer, "_loss", counted)
    found = {}
    for bonus in (0.0, 1e-300):  # a bonus, however small, needs every gradient
        passes.clear()
        settings = replace(SETTINGS, objective=Objective(entropy_bonus=bonus), max_grad_norm=1e9)
        trainer = TorchTrainer(lora_of(), PAD, settings)
        found[bonus] = trainer.update(adapters, samples), trained_gradients(trainer, adapters, samples)
        learned = [row for row in equal if row["advantage"] or bonus]
        assert sum(passes) == 2 * sum(len(row["completion_ids"]) for row in learned)  # both calls
    for name in adapters:
        np.testing.assert_allclose(found[0.0][1][name], found[1e-300][1][name], rtol=1e-6, atol=1e-12)
        one, other = (found[bonus][0][name].metrics for bonus in (0.0, 1e-300))
        assert one == {key: pytest.approx(value, rel=1e-9) for key, value in other.items()}


def with_zero_groups(adapters: dict[str, Adapter], *ends: str) -> pa.Table:
    """Samples whose groups with these endings have no advantage."""
    rows = sample_rows(adapters).to_pylist()
    return tables.table(
        [row | {"advantage": 0.0} if row["group_id"].endswith(ends) else row for row in rows],
        tables.SAMPLES,
    )


PLAIN = replace(SETTINGS, objective=Objective(entropy_bonus=0.0, temperature=0.8))


def test_skipped_groups_change_no_byte_of_a_step(adapters: dict[str, Adapter]) -> None:
    samples = with_zero_groups(adapters, "-1")
    kept, skipped = (
        TorchTrainer(lora_of(torch.float32), PAD, replace(PLAIN, skip_zero_groups=skips)).update(adapters, samples)
        for skips in (False, True)
    )
    for name in adapters:
        for found in ("weights", "moments"):
            one, other = getattr(kept[name].adapter, found), getattr(skipped[name].adapter, found)
            assert {key: array.tobytes() for key, array in one.items()} == {key: array.tobytes() for key, array in other.items()}
        own = [row for row in samples.to_pylist() if row["adapter_id"] == name]
        silent = sum(len(row["completion_ids"]) for row in own if row["group_id"].endswith("-1"))
        assert (skipped[name].metrics["skipped_groups"], skipped[name].metrics["skipped_tokens"]) == (1.0, float(silent))
        assert not kept[name].metrics.keys() & {"skipped_groups", "skipped_tokens"}
        same = ("samples", "response_tokens", "groups", "loss", "grad_norm")
        assert [kept[name].metrics[key] for key in same] == [pytest.approx(skipped[name].metrics[key], abs=1e-15) for key in same]


def test_an_adapter_without_any_advantage_steps_as_if_nothing_were_skipped(adapters: dict[str, Adapter]) -> None:
    """An estimator of the user's may give none although centred rewards vary: the step is on a gradient of zero."""
    samples = with_zero_groups(adapters, "s1-0", "s1-1", "s1-2")
    settings = [replace(PLAIN, weight_decay=0.1, skip_zero_groups=skips) for skips in (False, True)]
    kept, skipped = (TorchTrainer(lora_of(torch.float32), PAD, one).update(adapters, samples) for one in settings)
    assert skipped["s1"].stepped and skipped["s1"].metrics["skipped_groups"] == 3 and "entropy" not in skipped["s1"].metrics
    assert weights_sha256(skipped["s1"].adapter.weights) == weights_sha256(kept["s1"].adapter.weights)
    alone = TorchTrainer(lora_of(torch.float32), PAD, settings[1])
    only = samples.filter(pa.compute.equal(samples["adapter_id"], "s1"))
    assert weights_sha256(alone.update({"s1": adapters["s1"]}, only)["s1"].adapter.weights) == weights_sha256(
        kept["s1"].adapter.weights
    )
    gradients, tokens = alone.gradients({"s1": adapters["s1"]}, only, {"s1": 99})
    assert tokens.num_rows == 0 and not any(array.any() for array in gradients["s1"].values.values())


def test_groups_are_not_skipped_where_entropy_or_divergence_train_them() -> None:
    for objective in (Objective(entropy_bonus=0.001), Objective(entropy_bonus=0.0, kl=0.1)):
        with pytest.raises(ValueError, match="cannot be skipped under Objective"):
            Settings(objective, skip_zero_groups=True)


def test_fp64_gradients_of_a_group_equal_each_alone(adapters: dict[str, Adapter]) -> None:
    samples = sample_rows(adapters)
    gradients = {}
    for names in (tuple(adapters), *((name,) for name in adapters)):
        lora = lora_of()
        trainer = TorchTrainer(lora, PAD, SETTINGS)
        kept: list[torch.Tensor] = []
        lora.clear_gradients = lambda lora=lora, kept=kept: kept.append(lora.gradients_NP)  # type: ignore[method-assign]
        own = samples.filter(pa.compute.is_in(samples["adapter_id"], pa.array(names)))
        trainer.update({name: adapters[name] for name in names}, own)
        gradients |= {(name, len(names)): kept[-1][slot] for slot, name in enumerate(names)}
    for name in adapters:
        torch.testing.assert_close(gradients[name, 3], gradients[name, 1], rtol=1e-10, atol=1e-14)


def test_a_group_updates_each_adapter_as_alone(adapters: dict[str, Adapter]) -> None:
    samples = sample_rows(adapters)
    trainer = TorchTrainer(lora_of(torch.float32), PAD, SETTINGS)
    together = trainer.update(adapters, samples)
    for name in adapters:
        own = samples.filter(pa.compute.equal(samples["adapter_id"], name))
        alone = trainer.update({name: adapters[name]}, own)[name].adapter
        for key, array in alone.weights.items():
            np.testing.assert_allclose(together[name].adapter.weights[key], array, rtol=1e-4, atol=2e-5)
        assert together[name].adapter.step == alone.step == 1


def test_steps_are_those_of_torch_adamw(adapters: dict[str, Adapter]) -> None:
    """Three updates, against torch.optim.AdamW on the gradients that the first moments reveal."""
    settings = replace(SETTINGS, weight_decay=0.1, max_grad_norm=0.05, betas=(0.8, 0.99))
    lora = lora_of()
    trainer, adapter = TorchTrainer(lora, PAD, settings), adapters["s1"]
    rows_P = [np.concatenate([adapter.weights[name].reshape(-1) for name in lora.names()])]
    parameter = torch.nn.Parameter(torch.tensor(rows_P[0]))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, betas=(0.8, 0.99), eps=1e-8, weight_decay=0.1)
    before_P = np.zeros_like(rows_P[0])
    for turn in range(3):
        samples = sample_rows({"s1": adapter}, seed=turn)
        update = trainer.update({"s1": adapter}, samples)["s1"]
        after_P = np.concatenate([update.adapter.moments["exp_avg." + name].reshape(-1) for name in lora.names()])
        parameter.grad = torch.tensor((after_P - 0.8 * before_P) / 0.2)
        assert float(parameter.grad.norm()) == pytest.approx(0.05, rel=1e-3)  # clipped
        optimizer.step()
        adapter, before_P = update.adapter, after_P
        moved_P = np.concatenate([adapter.weights[name].reshape(-1) for name in lora.names()])
        np.testing.assert_allclose(moved_P, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert adapter.step == 3


def test_a_warm_up_scales_the_first_steps_after_fresh_moments_only(adapters: dict[str, Adapter]) -> None:
    """With a warm-up of four the second step is half as long; an adapter that has taken four goes the whole way."""
    samples, weights = sample_rows({"s1": adapters["s1"]}), adapters["s1"].weights

    def moved(step: int, warmup: int) -> np.ndarray:
        lora = lora_of(torch.float32)
        moments = {
            f"{kind}.{name}": np.zeros_like(array) for kind in ("exp_avg", "exp_avg_sq") for name, array in weights.items()
        }
        before = replace(adapters["s1"], moments=moments, step=step)
        after = TorchTrainer(lora, PAD, replace(SETTINGS, warmup=warmup)).update({"s1": before}, samples)["s1"].adapter
        return np.concatenate([(after.weights[name] - before.weights[name]).reshape(-1) for name in lora.names()])

    np.testing.assert_allclose(moved(1, 4), moved(1, 0) / 2, rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(moved(4, 4), moved(4, 0))


def test_a_positive_advantage_raises_the_log_probability(adapters: dict[str, Adapter]) -> None:
    rows = sample_rows({"s0": adapters["s0"]}, prompts=1, attempts=2).to_pylist()
    for row, sign in zip(rows, (1.0, -1.0), strict=True):
        row["advantage"] = row["centred"] = sign
    settings = replace(SETTINGS, objective=Objective(entropy_bonus=0.0), learning_rate=1e-4)
    lora = lora_of()
    after = TorchTrainer(lora, PAD, settings).update(adapters, tables.table(rows, tables.SAMPLES))["s0"].adapter

    def logprob(weights: dict, row: dict) -> float:
        lora.load([weights])
        ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
        with torch.no_grad(), lora.routed([1]):
            logprobs = lora.model(ids).logits[0].log_softmax(-1)
        start = len(row["prompt_ids"])
        return sum(float(logprobs[start + k - 1, token]) for k, token in enumerate(row["completion_ids"]))

    assert logprob(after.weights, rows[0]) > logprob(adapters["s0"].weights, rows[0])
    assert logprob(after.weights, rows[1]) < logprob(adapters["s0"].weights, rows[1])


def test_no_step_without_variance_without_samples_or_with_wild_gradients(adapters: dict[str, Adapter]) -> None:
    rows = sample_rows(adapters).to_pylist()
    rows = [row for row in rows if row["adapter_id"] != "s2"]
    for row in rows:
        if row["adapter_id"] == "s0":
            row |= {"centred": 0.0, "advantage": 0.0}
        elif row["adapter_id"] == "s1":
            row["advantage"] = float("inf")
    updates = TorchTrainer(lora_of(), PAD, SETTINGS).update(adapters, tables.table(rows, tables.SAMPLES))
    for name, update in updates.items():
        assert not update.stepped and update.adapter is adapters[name]
    assert updates["s0"].metrics["zero_variance_groups"] == 3 and updates["s2"].metrics["samples"] == 0
    assert updates["s1"].metrics["nonfinite"] == 1


def test_engine_and_trainer_agree_and_stale_weights_are_refused(adapters: dict[str, Adapter]) -> None:
    lora = lora_of(torch.float32)
    engine = HFEngine(lora, Letters(), {name: adapter.weights for name, adapter in adapters.items()})
    rows = sample_rows(adapters).to_pylist()
    asked = [Request(tuple(row["prompt_ids"]), row["adapter_id"], seed, 6) for seed, row in enumerate(rows)]
    for row, completion in zip(rows, engine.generate(asked, 0.8), strict=True):
        row["completion_ids"], row["logprobs"] = list(completion.token_ids), list(completion.logprobs)
    trainer = TorchTrainer(lora, PAD, SETTINGS)
    samples = tables.table(rows, tables.SAMPLES)
    updates = trainer.update(adapters, samples)
    assert all(update.metrics["drift_max"] < 1e-4 for update in updates.values())
    with pytest.raises(ValueError, match="were written by weights"):
        trainer.update({name: update.adapter for name, update in updates.items()}, samples)
    with pytest.raises(ValueError, match="not among"):
        trainer.update({"s0": adapters["s0"]}, samples)


def test_the_start_up_check_catches_a_stale_adapter(adapters: dict[str, Adapter]) -> None:
    """One adapter has taken a step, which the engine has not heard of."""
    lora, bounds = lora_of(torch.float32), BOUNDS["float32"]
    engine = HFEngine(lora, Letters(), {name: adapter.weights for name, adapter in adapters.items()})
    trainer = TorchTrainer(lora, PAD, replace(SETTINGS, learning_rate=0.05))  # a tiny model hardly moves in a step
    found = check_agreement(engine, trainer, adapters, 0.8, bounds)
    assert all(drift.mean <= drift.largest < 1e-4 for drift in found.values())
    stepped = trainer.update({"s1": adapters["s1"]}, sample_rows({"s1": adapters["s1"]}))["s1"].adapter
    with pytest.raises(Disagreement, match=r"\{'s1': 'mean 0\.\d+, 0\.\d+ or more at two of \d+ tokens'\}"):
        check_agreement(engine, trainer, adapters | {"s1": stepped}, 0.8, bounds)
    fresh = {name: adapter.weights for name, adapter in (adapters | {"s1": stepped}).items()}
    engine.set_adapters(fresh)
    check_agreement(engine, trainer, adapters | {"s1": stepped}, 0.8, bounds)


def test_rows_that_no_loss_can_use_are_refused(adapters: dict[str, Adapter]) -> None:
    rows = sample_rows({"s0": adapters["s0"]}).to_pylist()
    trainer = TorchTrainer(lora_of(torch.float32), PAD, SETTINGS)
    for change, message in [({"completion_ids": [], "logprobs": []}, "empty completion_ids"), ({"logprobs": [0.0] * 9}, "fewer")]:
        with pytest.raises(ValueError, match=message):
            trainer.update(adapters, tables.table([rows[0] | change], tables.SAMPLES))


def test_drift_is_measured_and_bounded(adapters: dict[str, Adapter]) -> None:
    """Engine log-probabilities that are off by a known amount show up as such; weights are capped."""
    settings = replace(SETTINGS, objective=Objective(importance_cap=2.0))
    rows = sample_rows({"s0": adapters["s0"]}).to_pylist()
    exact = TorchTrainer(lora_of(), PAD, SETTINGS).update(adapters, tables.table(rows, tables.SAMPLES))["s0"].metrics
    for row in rows[:4]:
        row["logprobs"] = [value - 5.0 for value in row["logprobs"]]
    drifted = TorchTrainer(lora_of(), PAD, settings).update(adapters, tables.table(rows, tables.SAMPLES))["s0"].metrics
    assert drifted["drift_max"] > exact["drift_max"] + 3 and drifted["truncated_share"] > 0
    assert exact["truncated_share"] == 0


def test_the_same_update_twice_is_the_same_bit_for_bit(adapters: dict[str, Adapter]) -> None:
    trainer, samples = TorchTrainer(lora_of(torch.float32), PAD, SETTINGS), sample_rows(adapters)
    first, second = trainer.update(adapters, samples), trainer.update(adapters, samples)
    for name in adapters:
        assert first[name].metrics == second[name].metrics
        assert weights_sha256(first[name].adapter.weights) == weights_sha256(second[name].adapter.weights)
