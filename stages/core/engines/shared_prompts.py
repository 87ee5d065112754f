"""The prompts of a decoding batch, each stored once, however many rows continue it. On a CPU.

A new token attends to its prompt and to what its own row has written. Torch's kernel computes either part and returns, beside it,
the log of the sum of the exponentials of its scores. With these sums as weights, both parts add up to attention over everything,
up to rounding (Juravsky et al. 2024, "Hydragen", arXiv 2402.05099). The queries of all rows of a prompt are the rows of one
product, so that its keys and values are read once a step and not once a row.

Axes: B rows · P prompts · R most rows of a prompt · G key-value heads · F query heads that share one · W width of a head.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from stages.core.engines.row_cache import RowCache
from stages.core.training.attention import GROUPED_QUERIES
from stages.core.training.grouped_lora import GroupedLoRA

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FEWEST = 2  # rows of a prompt on average: below, two calls of the kernel cost more than reading every prompt once
UNEVEN = 2  # times the rows that are in use: so many queries a call of the kernel may have at most, with those that fill up
WORTH_A_CALL = 0.8  # divide the prompts into two calls where that leaves at most this share of the queries


def pays(rows: Sequence[int]) -> bool:
    """Return whether prompts with so many rows each are better shared than copied to every row."""
    return sum(rows) >= FEWEST * len(rows) and len(rows) * max(rows) <= UNEVEN * sum(rows)


class SharedPrompts:
    """Keys and values of at most `prompts` prompts of at most `positions` tokens, and which row continues which prompt."""

    def __init__(self, prompts: int, positions: int) -> None:
        self._cache = RowCache(prompts, positions)
        self._of_B = np.zeros(0, np.int64)
        self._calls: list[tuple[slice, torch.Tensor]] = []  # prompts, and the rows of each, [P, R]
        self._places_B = self._mask = torch.empty(0)

    @property
    def lengths_B(self) -> np.ndarray:
        """Tokens of each row's prompt."""
        return self._cache.lengths_B[self._of_B]

    def continued_by(self, prompts_B: np.ndarray, dtype: torch.dtype) -> None:
        """Set which prompt each row continues. Every prompt needs a row."""
        self._of_B = prompts_B
        counts_P = np.bincount(prompts_B, minlength=len(self._cache.lengths_B))
        order_B = np.argsort(prompts_B, kind="stable")
        rank_B = np.arange(len(order_B)) - (np.cumsum(counts_P) - counts_P)[prompts_B[order_B]]
        places_B, begun = np.empty_like(order_B), 0
        self._calls = []
        for prompts in _divided(counts_P):
            inside = (prompts_B[order_B] >= prompts.start) & (prompts_B[order_B] < prompts.stop)
            rows_B, ranks_B = order_B[inside], rank_B[inside]
            at_B = prompts_B[rows_B] - prompts.start
            rows_PR = np.zeros((prompts.stop - prompts.start, int(counts_P[prompts].max())), np.int64)
            rows_PR[at_B, ranks_B] = rows_B  # a prompt with fewer rows also asks for row 0
            places_B[rows_B] = begun + at_B * rows_PR.shape[1] + ranks_B
            begun += rows_PR.size
            self._calls.append((prompts, torch.from_numpy(rows_PR)))
        self._places_B = torch.from_numpy(places_B)
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
        found, sums = zip(*(self._of_prompts(call, layer, query_BGFW, scale) for call in self._calls), strict=True)
        prompt_BGFW, prompt_BGF = (torch.cat(parts).index_select(0, self._places_B) for parts in (found, sums))
        both = torch.lerp(prompt_BGFW.float(), own_BGFW.float(), torch.sigmoid(own_BGF - prompt_BGF)[..., None])
        return both.to(query.dtype).reshape(batch, 1, heads, width)

    def _of_prompts(
        self, call: tuple[slice, torch.Tensor], layer: int, query_BGFW: torch.Tensor, scale: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return attention to prompts of the rows that continue them, [P * R, G, F, W], and the logs of the sums."""
        places, rows_PR = call
        (prompts, most), (_, groups, folded, width) = rows_PR.shape, query_BGFW.shape
        keys, values = (buffer[places, :, : self._mask.shape[-1]] for buffer in self._cache.buffers[layer])
        asked = query_BGFW.index_select(0, rows_PR.flatten()).reshape(prompts, most, groups, folded, width).transpose(1, 2)
        asked = asked.reshape(prompts, groups, most * folded, width)
        found, sums = _attend(asked, keys, values, attn_mask=self._mask[places], scale=scale)
        found = found.reshape(prompts, groups, most, folded, width).transpose(1, 2).flatten(0, 1)
        return found, sums.reshape(prompts, groups, most, folded).transpose(1, 2).flatten(0, 1)


def _divided(counts_P: np.ndarray) -> list[slice]:
    """Return the prompts of each call: all in one, or, where that saves queries, those up to some prompt and those after it.

    A call has as many queries for every prompt as the prompt with the most rows needs. Prompts whose rows have ended one after
    another come first, and those that have just begun last.
    """
    count = len(counts_P)
    before, after = np.maximum.accumulate(counts_P), np.maximum.accumulate(counts_P[::-1])[::-1]
    queries = [int(at * before[at - 1] + (count - at) * after[at]) for at in range(1, count)]
    if queries and min(queries) <= WORTH_A_CALL * count * int(counts_P.max()):
        at = 1 + queries.index(min(queries))
        return [slice(0, at), slice(at, count)]
    return [slice(0, count)]


class _Heard:
    """Stands in for prompts in one step, and notes whether attention asks it as it would ask `SharedPrompts`."""

    def __init__(self, cache: RowCache) -> None:
        self._cache, self.layers, self.as_cached = cache, list[int](), True

    def attention(self, layer: int, query: Any, key: Any, value: Any, mask: Any, scale: float | None) -> torch.Tensor:
        held = [buffer.data_ptr() for buffer in self._cache.buffers[layer]] if self._cache.buffers else []
        alike = query.shape[3] == key.shape[3] == value.shape[3]
        self.as_cached = self.as_cached and alike and held == [key.data_ptr(), value.data_ptr()]
        self.layers.append(layer)
        return torch.zeros_like(query).transpose(1, 2)


def can_share(lora: GroupedLoRA) -> bool:
    """Return whether the rows of a model may share prompts: on a CPU, if attention of every layer asks for them, exactly once.

    Some models refuse what they do not know or do not pass it on, or hand attention other keys and values than they have cached:
    one step shows it. Adapters are loaded.
    """
    model: Any = lora.model
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or model.config._attn_implementation != GROUPED_QUERIES:
        return False
    cache = RowCache(1, 1)
    cache.lengths_B = np.zeros(1, np.int64)
    cache.reserve(np.zeros((1, 1), np.int64), parameter.device)
    heard, zero = _Heard(cache), torch.zeros(1, 1, dtype=torch.int64)
    mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype)
    with lora.routed([1] + [0] * (lora.num_adapters - 1)), suppress(TypeError):  # of a function that takes no such argument
        model(zero, attention_mask=mask, position_ids=zero, past_key_values=cache, use_cache=True, prompts=heard)
    return heard.as_cached and bool(heard.layers) and sorted(heard.layers) == list(range(len(cache.buffers)))
