"""Micro-batches by token budget, and models that the chunked loss declines."""

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from stages.core.training.grouped_lora import attach
from stages.core.training.packing import lay_out, micro_batches, pack_rows
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.training.test_grouped_lora import SIZES, TARGETS
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS


def test_packing_keeps_every_token_and_budget() -> None:
    rng = np.random.default_rng(0)
    prompts = [[5, 6, 7]] * 5 + [[8]] * 3
    completions = [rng.integers(2, 30, rng.integers(1, 9)).tolist() for _ in prompts]
    rows = pack_rows([0, 0, 1, 1, 1, 0, 0, 0], prompts, completions, row_tokens=16)
    assert sorted(sample for row in rows for sample in row.samples) == list(range(8))
    for batch in micro_batches(rows, tokens=48):
        laid_out = lay_out(batch, prompts, completions, 2, PAD)
        assert len(batch) == 1 or laid_out.ids_BL.size <= 48
        assert [row.slot for row in batch] == sorted(row.slot for row in batch)
        for sample in {sample for row in batch for sample in row.samples}:
            mine = laid_out.samples_T == sample
            assert laid_out.targets_T[mine].tolist() == completions[sample]
            read = laid_out.ids_BL.reshape(-1)[laid_out.places_T[mine]].tolist()
            assert read == [prompts[sample][-1], *completions[sample][:-1]]
            positions = laid_out.positions_BL.reshape(-1)[laid_out.places_T[mine]]
            assert positions.tolist() == [len(prompts[sample]) - 1 + k for k in range(len(completions[sample]))]


class Scaled(LlamaForCausalLM):
    """A model that changes its logits after the output head, as some families do."""

    def forward(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 2
        return out


def test_models_that_the_loss_would_compute_wrongly_are_refused() -> None:
    for made, message in [
        (Scaled(LlamaConfig(**SIZES)), "after the output head"),
        (LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1)), "dropout"),
    ]:
        with pytest.raises(ValueError, match=message):
            TorchTrainer(attach(made, TARGETS, 2, 4, 1), PAD, SETTINGS)
    sliding = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    with pytest.raises(ValueError, match="sliding_attention"):
        attach(Qwen2ForCausalLM(sliding), TARGETS, 2, 4, 1)
