"""Rows that share a prompt: attention is what it would be over the prompt and the row's own keys, and so are completions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stages.core.engines.row_cache import RowCache
from stages.core.engines.shared_prompts import SharedPrompts

LENGTHS, WIDTH = (5, 9, 2), 8


def held(*lengths: int, groups: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0) -> RowCache:
    """A cache of one layer whose rows hold random keys and values of these lengths."""
    rng = torch.Generator().manual_seed(seed)
    cache = RowCache(len(lengths), max(lengths))
    cache.lengths_B = np.array(lengths)
    shape = (len(lengths), groups, max(lengths) + 1, WIDTH)
    cache.buffers = [[torch.randn(shape, generator=rng).to(dtype) for _ in range(2)]]
    return cache


def expected(prompts: RowCache, of: list[int], own: RowCache, query: torch.Tensor) -> torch.Tensor:
    """Attention of each row alone, over its prompt and then its own positions."""
    found = []
    for row, prompt in enumerate(of):
        pair = []
        for kind in (0, 1):
            before = prompts.buffers[0][kind][prompt, :, : prompts.lengths_B[prompt]]
            after = own.buffers[0][kind][row, :, : own.lengths_B[row]]
            pair.append(torch.cat([before, after], 1).float().repeat_interleave(query.shape[1] // before.shape[0], 0))
        found.append(F.scaled_dot_product_attention(query[row].float(), *pair))
    return torch.stack(found).transpose(1, 2)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("of", [[0, 0, 1, 1, 2, 2], [2, 0, 0, 1, 0, 2], [1, 0, 2, 0, 0, 0]])
def test_attention_is_that_over_the_prompt_and_the_row(of: list[int], heads: int, dtype: torch.dtype, bound: float) -> None:
    read, own = held(*LENGTHS, dtype=dtype), held(1, 4, 2, 3, 4, 1, dtype=dtype, seed=1)
    shared = SharedPrompts(3, max(LENGTHS))
    shared.fill(shared.add(3), read)
    shared.continued_by(np.array(of), dtype)
    assert shared.lengths_B.tolist() == [LENGTHS[one] for one in of]
    query = torch.randn(6, heads, 1, WIDTH, generator=torch.Generator().manual_seed(2)).to(dtype)
    keys, values = (buffer[:, :, :4] for buffer in own.buffers[0])
    hidden = torch.arange(4)[None] >= torch.from_numpy(own.lengths_B)[:, None]
    mask = torch.zeros(6, 1, 1, 4, dtype=dtype).masked_fill_(hidden[:, None, None], torch.finfo(dtype).min)
    found = shared.attention(0, query, keys, values, mask, None)
    assert found.dtype == dtype and found.shape == (6, 1, heads, WIDTH)
    assert (found.float() - expected(read, of, own, query)).abs().max() < bound


def test_prompts_that_no_row_continues_leave_and_others_come() -> None:
    shared = SharedPrompts(3, 9)
    shared.fill(shared.add(3), held(*LENGTHS))
    shared.continued_by(np.array([0, 0, 1, 2]), torch.float32)
    of = shared.keep(np.array([1, 3]))  # a row of the first prompt, and one of the third
    assert of.tolist() == [0, 1]
    first = shared.add(1)
    shared.fill(first, held(7, seed=3))
    shared.continued_by(np.r_[of, first], torch.float32)
    assert shared.lengths_B.tolist() == [5, 2, 7]
