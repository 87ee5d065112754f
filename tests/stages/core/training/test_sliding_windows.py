"""A model whose layers slide further than any text is long computes what one with full attention does, in engine and trainer."""

from collections.abc import Iterator

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from stages.core.engines.hf_engine import HFEngine
from stages.core.engines.protocol import Request
from stages.core.lora.adapter import Adapter
from stages.core.training.grouped_lora import GroupedLoRA, attach
from stages.core.training.packing import pack_rows
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.engines.test_hf_engine import Letters
from tests.stages.core.training.test_grouped_lora import TARGETS, random_weights
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS, sample_rows

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def models(window: int) -> Iterator[GroupedLoRA]:
    """The same weights with full attention, and with layers that slide over `window` tokens."""
    for kind in ({}, {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}):
        torch.manual_seed(0)
        config = Qwen2Config(**SIZES, num_key_value_heads=1, max_position_embeddings=64, **kind)
        yield attach(Qwen2ForCausalLM(config), TARGETS, 2, 4, 1, window)


def test_a_window_inside_the_sliding_one_gives_the_same_completions() -> None:
    asked = [Request((3, 4, 5), "a", seed, 30) for seed in range(4)]
    full, sliding = (
        HFEngine(lora, Letters(), {"a": random_weights(lora, 0)}, window=40).generate(asked, 1.0) for lora in models(40)
    )
    assert full == sliding


def test_layers_that_slide_further_than_any_text_give_the_same_gradient() -> None:
    """Their row is longer than their window: they must see the row's own mask, not positions behind one another."""
    found = []
    for lora in models(16):
        adapters = {"s0": Adapter(random_weights(lora, 0), {}, 0)}
        samples = sample_rows(adapters, attempts=12)
        rows = pack_rows([0] * len(samples), samples["prompt_ids"].to_pylist(), samples["completion_ids"].to_pylist(), 1024)
        assert max(row.length for row in rows) > 2 * 16
        gradients, _ = TorchTrainer(lora, PAD, SETTINGS).gradients(adapters, samples, {"s0": 100})
        found.append(gradients["s0"].values)
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
