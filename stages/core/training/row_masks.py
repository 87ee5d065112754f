"""What a position of a packed row sees: position i sees j if j <= i < end_j, its prompt and its own completion so far.

As an additive mask for torch's kernels, which compute all L * L scores, or as blocks for FlexAttention (Dong et al. 2024), which
skips those that hold nothing to see: of a prompt and k completions that part at its end, about k - 1 of k scores between
completions.

Axes: B rows · L positions.
"""

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def dense_mask(ends_BL: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive mask [B, 1, L, L]."""
    query, key = (torch.arange(ends_BL.shape[1], device=ends_BL.device).view(shape) for shape in ((1, -1, 1), (1, 1, -1)))
    seen = (key <= query) & (query < ends_BL[:, None, :])
    mask = torch.zeros(seen.shape, dtype=dtype, device=ends_BL.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


def block_mask(ends_BL: torch.Tensor, dtype: torch.dtype) -> BlockMask:
    """Return a mask [B, 1, L, L] in blocks; `dtype` is not needed."""

    def seen(row: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends_BL[row, key])

    rows, length = ends_BL.shape
    return create_block_mask(seen, rows, None, length, length, device=str(ends_BL.device))
