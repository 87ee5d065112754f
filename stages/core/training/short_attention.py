"""Attention over short rows on a CPU in bfloat16, with its gradient.

O_hsd = sum_k softmax_k(c Q_hsd . K_gkd + mask_sk) V_gkd, with g the key-value head of query head h (Vaswani et al. 2017, eq. 1;
Ainslie et al. 2023). torch's own kernel for a CPU needs much the same time per token for rows of 64 to 256 tokens, little of it
for products. Here the query heads of a group are the rows of one product and scores are fp32. The probabilities are kept for the
backward pass, in bfloat16. The gradient is as close to the exact one as the kernel's or closer.

Axes: B rows of the batch · H query heads · G key-value heads · F = H / G query heads of a group · S tokens · D width of a head.
"""

from collections.abc import Iterator
from typing import Any

import torch

SHORT = 256  # tokens of a row: on two cores in bfloat16 a quarter of the kernel's time at 64, two thirds at 256, no less at 512
SCORES = 2**19  # at once in fp32: 2 MiB, which stays in the caches


def is_short(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether `short_attention` is the faster one: whole rows [B, H, S, D] that need a gradient."""
    fits = query.device.type == "cpu" and query.dtype == torch.bfloat16 and 1 < query.shape[2] <= SHORT
    return fits and torch.is_grad_enabled() and query.shape[2] == key.shape[2] and (mask is None or mask.is_floating_point())


def short_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Return attention [B, H, S, D] of queries [B, H, S, D] to keys and values [B, G, S, D].

    `mask` is added to the scores, [B or 1, 1, S, S]; None means that each token sees those up to itself.
    """
    if mask is None:
        length = query.shape[2]
        mask = torch.full((1, 1, length, length), -torch.inf).triu(1)
    attended: torch.Tensor = _ShortAttention.apply(query, key, value, mask.expand(len(query), -1, -1, -1), scale)  # type: ignore[no-untyped-call]
    return attended


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask_B1SS: Any, scale: float) -> torch.Tensor:
        batch, _, length, width = query.shape
        groups = key.shape[1]
        folded = query.reshape(batch, groups, -1, width)  # [B, G, F * S, D]
        out = torch.empty_like(folded)
        kept = folded.new_empty(*folded.shape[:3], length)  # probabilities
        for rows in _blocks(kept):
            scores = (folded[rows].float() * scale) @ key[rows].float().mT
            scores.view(-1, groups, folded.shape[2] // length, length, length).add_(mask_B1SS[rows][:, None])
            kept[rows] = scores.softmax(-1)
            out[rows] = kept[rows] @ value[rows]
        ctx.save_for_backward(folded, key, value, kept)
        ctx.scale = scale
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """With P the probabilities: dV = P' dO, dP = dO V', dS = P (dP - sum_k P dP), dQ = c dS K, dK = c dS' Q."""
        folded, key, value, kept = ctx.saved_tensors
        grad_out = grads[0].reshape(folded.shape)
        grad_query, grad_key, grad_value = torch.empty_like(folded), torch.empty_like(key), torch.empty_like(value)
        for rows in _blocks(kept):
            grad_value[rows] = kept[rows].mT @ grad_out[rows]
            towards = grad_out[rows].float() @ value[rows].float().mT
            exact = kept[rows].float()
            towards.sub_((towards * exact).sum(-1, keepdim=True)).mul_(exact).mul_(ctx.scale)
            grad_scores = towards.to(folded.dtype)
            grad_query[rows] = grad_scores @ key[rows]
            grad_key[rows] = grad_scores.mT @ folded[rows]
        return grad_query.view(grads[0].shape), grad_key, grad_value, None, None


def _blocks(kept: torch.Tensor) -> Iterator[slice]:
    """Yield slices of the batch's rows, so that a slice has at most SCORES scores."""
    size = max(1, SCORES // kept[0].numel())
    yield from (slice(start, start + size) for start in range(0, len(kept), size))
