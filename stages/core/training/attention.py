"""Attention of a model that engine and trainer use: transformers' function of torch's attention, and two faster cases on a CPU.

One new token folds the query heads that share a key-value head into one query each: keys and values are not copied for every
head, as transformers' own path does where there is a mask. Short rows in bfloat16 get their gradient from `short_attention`.
A mask in blocks (`row_masks.block_mask`) is computed with FlexAttention, on a GPU.

Axes: B rows · S new tokens per row.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stages.core.training.short_attention import is_short, short_attention

GROUPED_QUERIES = "sdpa_grouped_queries"
KERNELS = 64
"""How many kinds of shape FlexAttention may compile a kernel for: with a gradient and without, one row or several, and so on."""


def group_queries(model: Any) -> None:
    """Let a model that uses torch's attention use `grouped_query_attention` in its place."""
    if getattr(model.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(GROUPED_QUERIES, grouped_query_attention)
        AttentionMaskInterface.register(GROUPED_QUERIES, sdpa_mask)
        model.set_attn_implementation(GROUPED_QUERIES)


def grouped_query_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention [B, S, heads, width] as transformers' function of torch's attention does; of FlexAttention under its mask.

    For one new token, the heads of a group are its queries: [B, key-value heads, heads of a group, width]. An engine whose rows
    share prompts passes them as `prompts` (stages.core.engines.shared_prompts).
    """
    if (prompts := options.pop("prompts", None)) is not None:
        return prompts.attention(getattr(module, "layer_idx", -1), query, key, value, attention_mask, scaling), None
    if isinstance(attention_mask, BlockMask):
        found = _flex_attention()(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=True)
        return found.transpose(1, 2).contiguous(), None
    batch, heads, length, width = query.shape
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    plain = (causal or attention_mask is not None) and not options.get("dropout") and options.get("position_bias") is None
    if plain and is_short(query, key, value, attention_mask):
        out = short_attention(query, key, value, attention_mask, width**-0.5 if scaling is None else scaling)
        return out.transpose(1, 2).contiguous(), None
    if length > 1 or heads == key.shape[1] or attention_mask is None or module.training:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return out, None
    folded = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    found = F.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return found.reshape(batch, 1, heads, value.shape[3]), None


@cache
def _flex_attention() -> Any:
    """Return the compiled function. It raises where transformers' would silently compute all scores: after too many kernels."""
    return torch.compile(flex_attention, fullgraph=True, recompile_limit=KERNELS)  # type: ignore[call-overload]  # not in its stub
