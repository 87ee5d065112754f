"""Rows that share a prompt: attention is what it would be over the prompt and the row's own keys, and so are completions."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

from stages.core.engines.hf_engine import HFEngine
from stages.core.engines.protocol import Request
from stages.core.engines.row_cache import RowCache
from stages.core.engines.shared_prompts import SharedPrompts, can_share, pays
from stages.core.training.grouped_lora import attach
from tests.stages.core.engines.test_hf_engine import Letters, naive
from tests.stages.core.training.test_grouped_lora import TARGETS, random_weights, tiny

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


def test_prompts_with_few_rows_and_with_many_are_asked_apart() -> None:
    """As where the rows of older prompts have ended one after another: three prompts of a row each, and one of eight."""
    of, lengths = [3, 0, 3, 3, 1, 3, 3, 3, 2, 3, 3], (5, 9, 2, 7)
    read, own = held(*lengths), held(*[1 + row % 4 for row in range(11)], seed=1)
    shared = SharedPrompts(4, 9)
    shared.fill(shared.add(4), read)
    shared.continued_by(np.array(of), torch.float32)
    assert [rows.shape for _, rows in shared._calls] == [(3, 1), (1, 8)]
    query = torch.randn(11, 2, 1, WIDTH, generator=torch.Generator().manual_seed(2))
    hidden = torch.arange(4)[None] >= torch.from_numpy(own.lengths_B)[:, None]
    mask = torch.zeros(11, 1, 1, 4).masked_fill_(hidden[:, None, None], torch.finfo(torch.float32).min)
    keys, values = (buffer[:, :, :4] for buffer in own.buffers[0])
    found = shared.attention(0, query, keys, values, mask, None)
    assert (found - expected(read, of, own, query)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("rows", "shared"), [((8, 8), True), ((2,), True), ((1, 1, 1), False), ((33, *[1] * 31), False), ((8, 4, 6), True)]
)
def test_prompts_are_shared_where_it_pays(rows: tuple[int, ...], shared: bool) -> None:
    assert pays(rows) == shared


MODELS = {"LlamaForCausalLM": True, "Qwen2ForCausalLM": True, "NemotronForCausalLM": False, "DiffLlamaForCausalLM": False}


@pytest.mark.parametrize(("name", "can"), MODELS.items())
def test_only_models_whose_attention_asks_for_prompts_share_them(name: str, can: bool) -> None:
    """Nemotron's layers do not pass them on, and DiffLlama's attention has other values than it caches."""
    made = getattr(transformers, name)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 30}
    torch.manual_seed(0)
    model = made(made.config_class(**shape, num_key_value_heads=2, max_position_embeddings=64)).eval()
    targets = [one for one in ("q_proj", "v_proj", "up_proj", "down_proj") if any(one in key for key, _ in model.named_modules())]
    lora = attach(model, targets, 2, 4, 1)
    lora.load([random_weights(lora, 0)])
    with torch.inference_mode(), lora.rounded():
        assert can_share(lora) == can
    engine = HFEngine(lora, Letters(), {"a": random_weights(lora, 0)})
    asked = [Request((2, 3 + n, 5), "a", 10 * n + k, 5) for n in range(2) for k in range(3)]
    for request, completion in zip(asked, engine.generate(asked, 1.0), strict=True):
        alone = naive(engine, lora, request, 1.0)  # which knows one end token, where a model may have others
        assert completion.token_ids == alone.token_ids[: len(completion.token_ids)]


def test_a_model_that_refuses_unknown_arguments_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lora = attach(tiny(dtype=torch.float32), TARGETS, 2, 4, 1)
    lora.load([random_weights(lora, 0)])
    with torch.inference_mode(), lora.rounded():
        assert can_share(lora)
        forward = lora.model.forward

        def old(ids: Any, attention_mask: Any, position_ids: Any, past_key_values: Any, use_cache: bool) -> Any:
            return forward(ids)

        monkeypatch.setattr(lora.model, "forward", old)
        assert not can_share(lora)


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
