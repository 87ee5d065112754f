"""The two masks of packed rows agree, and a model under FlexAttention's computes what it computes under the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from flows.config import ConfigError, load
from stages.core.training.packing import lay_out, pack_rows
from stages.core.training.row_masks import block_mask, dense_mask
from stages.core.training.torch_trainer import TorchTrainer
from tests.stages.core.training.test_torch_trainer import PAD, SETTINGS, lora_of

BLOCK = 128  # positions of a side of FlexAttention's blocks


def branched(seed: int, longest: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions that part at several places; six share each prompt."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(4, 31, longest // 3).tolist() for _ in range(2)]
    begun = [rng.integers(4, 31, longest // 6).tolist() for _ in range(2)]
    rows = [(prompt, begun[number % 2] + rng.integers(4, 31, longest // 5).tolist()) for prompt in prompts for number in range(6)]
    return [row[0] for row in rows], [row[1] for row in rows]


@pytest.mark.parametrize("longest", [12, 400])
def test_both_masks_show_a_position_the_same(longest: int) -> None:
    prompts, completions = branched(0, longest)
    rows = pack_rows([0] * len(prompts), prompts, completions, 4096)
    ends_BL = torch.from_numpy(lay_out(rows, prompts, completions, 1, PAD).ends_BL)
    (count, length), seen = ends_BL.shape, dense_mask(ends_BL, torch.float32) == 0
    blocks = block_mask(ends_BL, torch.float32)
    assert torch.equal(create_mask(blocks.mask_mod, count, 1, length, length, device="cpu"), seen)
    sides = -(-length // BLOCK)
    padded = torch.zeros(count, 1, sides * BLOCK, sides * BLOCK, dtype=torch.bool)
    padded[..., :length, :length] = seen
    assert torch.equal(blocks.to_dense().bool(), padded.view(count, 1, sides, BLOCK, sides, BLOCK).any(-1).any(-2))
    if longest == 400:
        assert blocks.sparsity() > 100 * 15 / 36  # percent of the blocks; 15 of these 36 are above the diagonal


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_model_computes_the_same_under_both_masks() -> None:
    prompts, completions = branched(1, 90)
    batch = lay_out(pack_rows([0] * len(prompts), prompts, completions, 1024), prompts, completions, 1, PAD)
    assert batch.branched
    lora = lora_of(torch.float32)
    hidden = []
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for attention in ("masked", "flex"):
            trainer = TorchTrainer(lora, PAD, replace(SETTINGS, attention=attention))
            hidden.append(trainer._hidden(batch, lora.routed(batch.counts_N)))
    torch.testing.assert_close(hidden[0], hidden[1], rtol=1e-4, atol=1e-5)


def test_flex_attention_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r"learning.attention = flex needs model.device = cuda: "):
        load("smoke", ["learning.attention=flex"])
    assert load("one-gpu", ["learning.attention=flex", "model.device=cuda"]).learning.attention == "flex"
