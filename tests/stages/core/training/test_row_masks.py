"""The two masks of packed rows agree, and a model under FlexAttention's computes what it computes under the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask

from flows.config import ConfigError, load
from stages.core import tables
from stages.core.lora.adapter import Adapter
from stages.core.training.grouped_lora import attach
from stages.core.training.packing import lay_out, pack_rows
from stages.core.training.row_masks import SKIPPING, block_mask, dense_mask
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.training.test_grouped_lora import TARGETS, random_weights, tiny
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS, lora_of, sample_rows, trained_gradients

BLOCK = 128  # positions of a side of FlexAttention's blocks


def branched(seed: int, longest: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions that part at several places; six share each prompt."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(4, 31, longest // 3).tolist() for _ in range(2)]
    begun = [rng.integers(4, 31, longest // 6).tolist() for _ in range(2)]
    rows = [(prompt, begun[number % 2] + rng.integers(4, 31, longest // 5).tolist()) for prompt in prompts for number in range(6)]
    return [row[0] for row in rows], [row[1] for row in rows]


def test_both_masks_show_a_position_the_same() -> None:
    prompts, completions = branched(0, 400)
    rows = pack_rows([0] * len(prompts), prompts, completions, 4096)
    ends_BL = torch.from_numpy(lay_out(rows, prompts, completions, 1, PAD).ends_BL)
    (count, length), seen = ends_BL.shape, dense_mask(ends_BL, torch.float32) == 0
    blocks = block_mask(ends_BL, torch.float32)
    assert isinstance(blocks, BlockMask)
    assert torch.equal(create_mask(blocks.mask_mod, count, 1, length, length, device="cpu"), seen)
    sides = -(-length // BLOCK)
    padded = torch.zeros(count, 1, sides * BLOCK, sides * BLOCK, dtype=torch.bool)
    padded[..., :length, :length] = seen
    assert torch.equal(blocks.to_dense().bool(), padded.view(count, 1, sides, BLOCK, sides, BLOCK).any(-1).any(-2))
    assert blocks.sparsity() > 100 * 15 / 36  # percent of the blocks; 15 of these 36 are above the diagonal


def test_a_row_without_blocks_to_skip_has_the_additive_mask() -> None:
    ends_BL = torch.tensor([[4, 3, 3, 4, 5]])
    found = block_mask(ends_BL, torch.float32)
    assert isinstance(found, torch.Tensor) and torch.equal(found, dense_mask(ends_BL, torch.float32))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_model_computes_the_same_under_both_masks() -> None:
    prompts, completions = branched(1, 240)
    batch = lay_out(pack_rows([0] * len(prompts), prompts, completions, 1024), prompts, completions, 1, PAD)
    assert batch.branched and batch.ids_BL.shape[1] > SKIPPING
    lora = lora_of(torch.float32)
    hidden = []
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for attention in ("masked", "flex"):
            trainer = TorchTrainer(lora, PAD, replace(SETTINGS, attention=attention))
            hidden.append(trainer._hidden(batch, lora.routed(batch.counts_N)))
    torch.testing.assert_close(hidden[0], hidden[1], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_the_same_under_both_masks(checkpointing: bool) -> None:
    lora = attach(tiny(dtype=torch.float32).cuda(), TARGETS, 2, 4, 1)
    made = {"s0": Adapter(random_weights(lora, 0), {}, 0)}
    prompts, completions = branched(2, 240)
    long = {"prompt_ids": prompts[0], "logprobs": [-3.0] * len(completions[0])}
    rows = [
        row | long | {"completion_ids": tokens} for row, tokens in zip(sample_rows(made).to_pylist(), completions, strict=False)
    ]
    samples = tables.table(rows, tables.SAMPLES)
    chosen = replace(SETTINGS, micro_batch_tokens=4096, max_grad_norm=1e9, gradient_checkpointing=checkpointing)
    gradients = [
        trained_gradients(TorchTrainer(lora, PAD, replace(chosen, attention=name)), made, samples)["s0"]
        for name in ("masked", "flex")
    ]
    assert np.linalg.norm(gradients[1] - gradients[0]) < 0.02 * np.linalg.norm(gradients[0])


def test_flex_attention_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r"learning.attention = flex needs model.device = cuda: "):
        load("smoke", ["learning.attention=flex"])
    assert load("one-gpu", ["learning.attention=flex", "model.device=cuda"]).learning.attention == "flex"
