"""The gradient of attention over short rows on a CPU in bfloat16; the values are those of torch's kernel, bit for bit.

O_hsd = sum_k softmax_k(c Q_hsd . K_gkd + mask_sk) V_gkd, with g the key-value head of query head h (Vaswani et al. 2017, eq. 1;
Ainslie et al. 2023). For rows of 64 to 256 tokens, the backward pass of torch's kernel for a CPU needs much the same time per
token, little of it for products. Here the query heads of a group are the rows of one product and scores are fp32. That is faster,
and the gradient is as close to the exact one or closer. The forward pass stays the kernel's: the engine uses it, too, and both
round alike.

Axes: B rows of the batch · H query heads · G key-value heads · F = H / G query heads of a group · S tokens · D width of a head.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

SHORT = 192  # tokens of a row; with the forward pass on two cores, two fifths of the time at 64, half at 128, the same at 256
SCORES = 2**19  # at once in fp32: 2 MiB, which stays in the caches


def is_short(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether `short_attention` fits and is faster: whole rows [B, H, S, D], one mask for all heads, a gradient."""
    fits = query.device.type == "cpu" and query.dtype == torch.bfloat16 and 1 < query.shape[2] <= SHORT
    whole = query.shape[2] == key.shape[2] and query.shape[3] == value.shape[3]
    return fits and whole and torch.is_grad_enabled() and (mask is None or (mask.is_floating_point() and mask.shape[1] == 1))


def short_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Return attention [B, H, S, D] of queries [B, H, S, D] to keys and values [B, G, S, D].

    `mask` is added to the scores, [B or 1, 1, S, S]; None means that each token sees those up to itself.
    """
    attended: torch.Tensor = _ShortAttention.apply(query, key, value, mask, scale)  # type: ignore[no-untyped-call]
    return attended


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, scale: float) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale = scale
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """With P the probabilities: dV = P' dO, dP = dO V', dS = P (dP - sum_k P dP), dQ = c dS K, dK = c dS' Q."""
        query, key, value, mask = ctx.saved_tensors
        batch, groups, length, width = key.shape
        folded, grad_out = (one.reshape(batch, groups, -1, width) for one in (query, grads[0]))  # [B, G, F * S, D]
        added_BSS = (_later_tokens(length) if mask is None else mask[:, 0]).expand(batch, -1, -1)
        grad_query, grad_key, grad_value = torch.empty_like(folded), torch.empty_like(key), torch.empty_like(value)
        for rows in _blocks(batch, folded.shape[1] * folded.shape[2] * length):
            probabilities = _probabilities(folded[rows], key[rows], added_BSS[rows], ctx.scale)
            grad_value[rows] = probabilities.to(value.dtype).mT @ grad_out[rows]
            towards = grad_out[rows].float() @ value[rows].float().mT
            towards.sub_((towards * probabilities).sum(-1, keepdim=True)).mul_(probabilities).mul_(ctx.scale)
            grad_scores = towards.to(folded.dtype)
            grad_query[rows] = grad_scores @ key[rows]
            grad_key[rows] = grad_scores.mT @ folded[rows]
        return grad_query.view(query.shape), grad_key, grad_value, None, None


def _probabilities(folded: torch.Tensor, key: torch.Tensor, added_BSS: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the softmax of the scores, [B, G, F * S, S] in fp32."""
    batch, groups, _, _ = folded.shape
    length = key.shape[2]
    scores = (folded.float() * scale) @ key.float().mT
    scores.view(batch, groups, -1, length, length).add_(added_BSS[:, None, None])
    return scores.softmax(-1)


def _later_tokens(length: int) -> torch.Tensor:
    return torch.full((1, length, length), -torch.inf).triu(1)


def _blocks(batch: int, scores_of_a_row: int) -> Iterator[slice]:
    """Yield slices of the batch's rows, so that a slice has at most SCORES scores."""
    size = max(1, SCORES // scores_of_a_row)
    yield from (slice(start, start + size) for start in range(0, batch, size))
