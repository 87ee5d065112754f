"""Attention of short rows: values of torch's kernel, gradients against double precision as the exact ones."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stages.core.training import attention
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


def results(attend, tensors: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """The attention and the gradients of queries, keys and values, in double precision."""
    leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors[:3]]
    out = attend(*leaves)
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
    assert is_short(query, key, key, None) and is_short(query, key, key, packed_mask(40))
    assert not is_short(query, key, key, packed_mask(40) == 0)  # a mask of truth values
    assert not is_short(query, key, key, packed_mask(40).expand(-1, HEADS, -1, -1))  # one for each head
    assert not is_short(query, key, key[..., :8], None)  # narrower values
    assert not is_short(query.float(), key.float(), key.float(), None)
    assert not is_short(query[:, :, -1:], key, key, None)  # decoding
    assert not is_short(query[:, :, -8:], key, key, None)  # behind a prefix that is known
    long = torch.empty(1, HEADS, SHORT + 1, WIDTH, dtype=torch.bfloat16)
    assert not is_short(long, long, long, None)
    with torch.no_grad():
        assert not is_short(query, key, key, None)


@pytest.mark.parametrize("masked", [False, True])
def test_a_model_calls_it_with_its_own_scale_and_gets_the_bits_of_an_engine(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine computes without gradients, so through transformers' function, which copies keys where there is a mask."""
    calls, own = [], attention.short_attention
    monkeypatch.setattr(attention, "short_attention", lambda *given: calls.append(given[4]) or own(*given))
    query, key, value, grad = inputs(40)
    mask = packed_mask(40) if masked else None
    leaf = query.clone().requires_grad_()
    out, weights = grouped_query_attention(causal_module(), leaf, key, value, mask, scaling=0.5)
    with torch.no_grad():
        engines, _ = grouped_query_attention(causal_module(), query, key, value, mask, scaling=0.5)
    assert calls == [0.5] and weights is None and out.shape == (BATCH, 40, HEADS, WIDTH)
    assert torch.equal(out, engines)
    out.backward(grad.transpose(1, 2))
    exact = query.double().requires_grad_()
    F.scaled_dot_product_attention(
        exact,
        key.double(),
        value.double(),
        None if mask is None else mask.double(),
        is_causal=not masked,
        scale=0.5,
        enable_gqa=True,
    ).backward(grad.double())
    assert (leaf.grad.double() - exact.grad).norm() < 0.01 * exact.grad.norm()


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"is_causal": False}])
def test_other_attention_is_left_to_transformers(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "short_attention", lambda *given: pytest.fail("called"))
    query, key, value, _ = inputs(40)
    grouped_query_attention(causal_module(), query, key, value, None, scaling=0.5, **options)


def causal_module() -> torch.nn.Module:
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, HEADS // GROUPS
    return module.eval()
