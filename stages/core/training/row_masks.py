"""What a position of a packed row sees: position i sees j if j <= i < end_j, its prompt and its own completion so far.

As an additive mask for torch's kernels, which compute all L * L scores, or as blocks for FlexAttention (Dong et al. 2024), which
skips blocks in which no query sees a key. Of the k * k squares of completion against completion, that leaves k.

Axes: B rows · L positions.
"""

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

SKIPPING = 256  # positions from which a row has blocks of 128 to skip; each further kind of shape compiles another kernel


def dense_mask(ends_BL: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive mask [B, 1, L, L]."""
    query, key = (torch.arange(ends_BL.shape[1], device=ends_BL.device).view(shape) for shape in ((1, -1, 1), (1, 1, -1)))
    seen = (key <= query) & (query < ends_BL[:, None, :])
    mask = torch.zeros(seen.shape, dtype=dtype, device=ends_BL.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


def block_mask(ends_BL: torch.Tensor, dtype: torch.dtype) -> BlockMask | torch.Tensor:
    """Return a mask [B, 1, L, L] in blocks; for short rows, which have none to skip, the additive one."""
    rows, length = ends_BL.shape
    if length < SKIPPING:
        return dense_mask(ends_BL, dtype)

    def seen(row: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends_BL[row, key])

    return create_block_mask(seen, rows, None, length, length, device=str(ends_BL.device))
