"""The prompts of a decoding batch, each stored once, however many rows continue it. On a CPU.

A new token attends to its prompt and to what its own row has written. Torch's kernel computes either part and returns, beside it,
the log of the sum of the exponentials of its scores. With these sums as weights, both parts add up to attention over everything,
up to rounding (Juravsky et al. 2024, "Hydragen", arXiv 2402.05099). The queries of all rows of a prompt are the rows of one
product, so that its keys and values are read once a step and not once a row.

Axes: B rows · P prompts · R most rows of a prompt · G key-value heads · F query heads that share one · W width of a head.
"""

import numpy as np
import torch

from stages.core.engines.row_cache import RowCache

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FEWEST = 2  # rows of a prompt on average: below, two calls of the kernel cost more than reading every prompt once


class SharedPrompts:
    """Keys and values of at most `prompts` prompts of at most `positions` tokens, and which row continues which prompt."""

    def __init__(self, prompts: int, positions: int) -> None:
        self._cache = RowCache(prompts, positions)
        self._of_B = np.zeros(0, np.int64)
        self._rows_PR = self._places_B = self._mask = torch.empty(0)

    @property
    def lengths_B(self) -> np.ndarray:
        """Tokens of each row's prompt."""
        return self._cache.lengths_B[self._of_B]

    def continued_by(self, prompts_B: np.ndarray, dtype: torch.dtype) -> None:
        """Set which prompt each row continues. Every prompt needs a row."""
        self._of_B = prompts_B
        counts_P = np.bincount(prompts_B, minlength=len(self._cache.lengths_B))
        order_B = np.argsort(prompts_B, kind="stable")
        sorted_B = prompts_B[order_B]
        rank_B = np.arange(len(order_B)) - (np.cumsum(counts_P) - counts_P)[sorted_B]
        rows_PR = np.zeros((len(counts_P), int(counts_P.max())), np.int64)  # a prompt with fewer rows asks for row 0 as well
        rows_PR[sorted_B, rank_B] = order_B
        places_B = np.empty_like(order_B)
        places_B[order_B] = sorted_B * rows_PR.shape[1] + rank_B
        self._rows_PR, self._places_B = torch.from_numpy(rows_PR), torch.from_numpy(places_B)
        lengths_P = torch.from_numpy(self._cache.lengths_B)
        hidden_PS = torch.arange(int(lengths_P.max())) >= lengths_P[:, None]
        self._mask = torch.zeros(hidden_PS.shape, dtype=dtype).masked_fill_(hidden_PS, torch.finfo(dtype).min)[:, None, None]

    def keep(self, rows: np.ndarray) -> np.ndarray:
        """Drop the prompts that none of these rows continues. Return which prompt each of these rows continues from now on."""
        kept_P, prompts_B = np.unique(self._of_B[rows], return_inverse=True)
        self._cache.arrange(kept_P)
        return prompts_B.astype(np.int64)

    def add(self, count: int) -> int:
        """Make room for so many prompts, which `fill` writes. Return the place of the first one."""
        held = len(self._cache.lengths_B)
        self._cache.arrange(np.r_[np.arange(held), np.full(count, -1)])
        return held

    def fill(self, first: int, prompts: RowCache) -> None:
        """Copy prompts that have been read to the places from `first` on."""
        rows = np.arange(len(prompts.lengths_B))
        self._cache.fill(first + rows, prompts, rows)

    def attention(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
    ) -> torch.Tensor:
        """Return attention [B, 1, heads, W] of a new token of each row, [B, heads, 1, W], to its prompt and its row's keys."""
        batch, heads, _, width = query.shape
        groups = key.shape[1]
        query_BGFW = query.reshape(batch, groups, heads // groups, width)
        own_BGFW, own_BGF = _attend(query_BGFW, key, value, attn_mask=mask, scale=scale)
        prompts, most = self._rows_PR.shape
        keys, values = (buffer[:prompts, :, : self._mask.shape[-1]] for buffer in self._cache.buffers[layer])
        asked = query_BGFW.index_select(0, self._rows_PR.flatten()).reshape(prompts, most, groups, -1, width).transpose(1, 2)
        found, sums = _attend(asked.reshape(prompts, groups, -1, width), keys, values, attn_mask=self._mask, scale=scale)
        prompt_BGFW = self._by_row(found.reshape(prompts, groups, most, -1, width))
        share_BGF = torch.sigmoid(own_BGF - self._by_row(sums.reshape(prompts, groups, most, -1)))
        both = torch.lerp(prompt_BGFW.float(), own_BGFW.float(), share_BGF[..., None])
        return both.to(query.dtype).reshape(batch, 1, heads, width)

    def _by_row(self, found_PGR: torch.Tensor) -> torch.Tensor:
        """Return [B, G, …] of [P, G, R, …]."""
        return found_PGR.transpose(1, 2).flatten(0, 1).index_select(0, self._places_B)
