"""Completions that begin alike share positions and states of a row, and train as if each had a row of its own."""

from dataclasses import replace

import numpy as np
import pytest

from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.training import packing
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS, adapters, lora_of, sample_rows, trained_gradients

__all__ = ["adapters"]  # a fixture


@pytest.mark.parametrize("row_tokens", [14, 1024])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_completions_that_begin_alike_give_the_gradients_of_each_in_a_row_of_its_own(
    adapters: dict[str, Adapter], row_tokens: int, checkpointing: bool, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their log-probabilities by the engine and their advantages differ, and so do the weights of equal tokens."""
    if cut:  # each micro-batch into passes of one adapter
        monkeypatch.setattr(packing, "PASS_POSITIONS", 0)
        monkeypatch.setattr(packing, "ADAPTER_POSITIONS", 0)
    begun = {0: [4, 5, 6, 7], 1: [4, 5, 6, 7], 2: [4, 5, 9], 3: [4, 5], 4: [8]}
    rows = [row | {"completion_ids": begun[number % 5]} for number, row in enumerate(sample_rows(adapters).to_pylist())]
    rows = [row | {"logprobs": [-3 + 0.1 * number] * len(row["completion_ids"])} for number, row in enumerate(rows)]
    samples = tables.table(rows, tables.SAMPLES)
    objective = replace(SETTINGS.objective, importance_cap=1.5, kl=0.1)
    settings = replace(SETTINGS, objective=objective, max_grad_norm=1e9)
    together = TorchTrainer(lora_of(), PAD, replace(settings, row_tokens=row_tokens, gradient_checkpointing=checkpointing))
    apart = TorchTrainer(lora_of(), PAD, replace(settings, row_tokens=0))
    found, expected = (trained_gradients(trainer, adapters, samples) for trainer in (together, apart))
    shared, alone = (trainer.update(adapters, samples) for trainer in (together, apart))
    for name in adapters:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-9)  # moments are stored in fp32
        for metric in ("loss", "entropy", "drift_mean", "drift_max"):
            assert shared[name].metrics[metric] == pytest.approx(alone[name].metrics[metric], rel=1e-6)
