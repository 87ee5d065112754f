"""Attention of short rows: values of torch's kernel, gradients against double precision as the exact ones."""

import pytest
import torch
import torch.nn.functional as F

from stages.core.training.attention import grouped_query_attention
from stages.core.training.short_attention import SHORT, is_short, short_attention

BATCH, HEADS, GROUPS, WIDTH = 3, 6, 2, 16


def inputs(length: int) -> list[torch.Tensor]:
    """Queries, keys, values and the gradient of the result."""
    random = torch.Generator().manual_seed(length)
    heads = (HEADS, GROUPS, GROUPS, HEADS)
    return [torch.randn(BATCH, count, length, WIDTH, generator=random).bfloat16() for count in heads]


def packed_mask(length: int) -> torch.Tensor:
    """Two completions behind a prompt; the last position is padding, which sees itself."""
    segments = torch.tensor([0] * (length // 2) + [1] * (length // 4) + [2] * (length - length // 2 - length // 4 - 1) + [-1])
    own = (segments[:, None] == segments) | ((segments == 0) & (segments[:, None] > 0))
    seen = own & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(length, length).masked_fill_(~seen, torch.finfo(torch.bfloat16).min)
    return mask.bfloat16().expand(BATCH, 1, length, length)


def results(attention, tensors: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """The attention and the gradients of queries, keys and values, in double precision."""
    leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors[:3]]
    out = attention(*leaves)
    out.backward(tensors[3].to(dtype))
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves)]


@pytest.mark.parametrize("length", [8, 40, SHORT])
@pytest.mark.parametrize("masked", [False, True])
def test_values_are_those_of_torchs_kernel_and_gradients_as_close_to_the_exact_ones(length: int, masked: bool) -> None:
    tensors, mask = inputs(length), packed_mask(length) if masked else None

    def torchs(query, key, value):
        chosen = None if mask is None else mask.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=chosen, is_causal=not masked, enable_gqa=True)

    exact = results(torchs, tensors, torch.float64)
    kernel = results(torchs, tensors, torch.bfloat16)
    ours = results(lambda *heads: short_attention(*heads, mask, WIDTH**-0.5), tensors, torch.bfloat16)
    assert torch.equal(ours[0], kernel[0])
    for name, right, own, theirs in zip("qkv", exact[1:], ours[1:], kernel[1:], strict=True):
        error, allowed = (own - right).norm() / right.norm(), (theirs - right).norm() / right.norm()
        assert error < max(1.5 * allowed, 0.004), (name, error, allowed)


def test_gradients_of_a_row_do_not_depend_on_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = inputs(40)
    whole = results(lambda *heads: short_attention(*heads, None, 0.25), tensors, torch.bfloat16)
    monkeypatch.setattr("stages.core.training.short_attention.SCORES", 1)  # a row at a time
    alone = results(lambda *heads: short_attention(*heads, None, 0.25), tensors, torch.bfloat16)
    for one, other in zip(whole, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01)


def test_only_training_on_short_whole_rows_in_bfloat16_uses_it() -> None:
    query, key, *_ = inputs(40)
    assert is_short(query, key, None) and is_short(query, key, packed_mask(40))
    assert not is_short(query, key, packed_mask(40) == 0)  # a mask of truth values
    assert not is_short(query.float(), key.float(), None)
    assert not is_short(query[:, :, -1:], key, None)  # decoding
    assert not is_short(query[:, :, -8:], key, None)  # behind a prefix that is known
    long = torch.empty(1, HEADS, SHORT + 1, WIDTH, dtype=torch.bfloat16)
    assert not is_short(long, long, None)
    with torch.no_grad():
        assert not is_short(query, key, None)


def test_a_model_calls_it_with_its_own_scale_and_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, _ = inputs(40)
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, HEADS // GROUPS
    out, weights = grouped_query_attention(module.eval(), query, key, value, None, scaling=0.5)
    with torch.no_grad():
        kernel, _ = grouped_query_attention(module.eval(), query, key, value, None, scaling=0.5)
    assert weights is None and out.shape == kernel.shape == (BATCH, 40, HEADS, WIDTH)
    assert torch.equal(out, kernel)
