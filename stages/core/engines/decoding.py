"""Decode groups of requests in the rows of one cache: prompts are read, rows step together, and free rows are filled again.

Axes: U distinct prompts · B rows in use · S new tokens per row · K cache positions · V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch

from stages.core.engines import sampling
from stages.core.engines.row_cache import RowCache
from stages.core.engines.shared_prompts import SharedPrompts, pays
from stages.core.progress import Progress
from stages.core.training.grouped_lora import GroupedLoRA

PASS_BYTES = 2**29  # limit for the widest activations while prompts are read, and for the distributions sampled from at once
CPU_PASS = 2e12  # floating-point operations of one pass over prompts on a CPU: a few seconds, so that progress is visible
PART_TOKENS = 8192  # of such a pass that a CPU computes at once, where memory is the limit
PADDING = 256  # tokens of padding that a pass over prompts may always have: more costs more than a second pass
PADDING_SHARE = 16  # a large pass may have one token of padding in so many
_COMPACT_BELOW = 0.8  # drop finished rows when fewer than this share are unfinished: moving the cache costs about one step
REFILL_AT = 0.25  # let waiting groups in when this share of the rows is free: small passes over prompts use a machine badly


@dataclass(frozen=True)
class Group:
    """Requests (by index in the call) that share an adapter's stack row and a prompt. Others begin with its `shared` tokens."""

    slot: int
    prompt_ids: tuple[int, ...]
    places: tuple[int, ...]
    positions: int  # cache positions that the longest of them may need
    shared: int = 0

    @property
    def prefix(self) -> tuple[int, tuple[int, ...]]:
        """What the keys and values of the shared tokens depend on."""
        return self.slot, self.prompt_ids[: self.shared]


@dataclass
class Draft:
    """A completion in progress. `ended` is True after an end token or a stop sequence."""

    limit: int
    uniforms: np.ndarray
    stops: tuple[str, ...] = ()
    ended: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether nothing is written any more."""
        return self.ended or len(self.token_ids) == self.limit

    @property
    def uniform(self) -> float:
        """The uniform of the next token."""
        return float(self.uniforms[min(len(self.token_ids), self.limit - 1)])


@dataclass
class _Rows:
    """The rows in use: stack row, draft and last token of each."""

    slots_B: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    places_B: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    tokens_B: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.slots_B)


class Decoder:
    """Writes the drafts of one call. `ends` says whether the draft's last token ended it.

    `finished` is called with the place of each draft once nothing more is written to it. `shares_prompts`: the model can
    (stages.core.engines.shared_prompts).
    """

    def __init__(
        self,
        lora: GroupedLoRA,
        drafts: Sequence[Draft],
        temperature: float,
        ends: Callable[[Draft], bool],
        pass_bytes: int,
        progress: Progress,
        finished: Callable[[int], None],
        shares_prompts: bool = False,
    ) -> None:
        model: Any = lora.model
        self._lora, self._model, self._device = lora, model, next(model.parameters()).device
        self._drafts, self._temperature, self._ends = drafts, temperature, ends
        self._pass_bytes, self._progress, self._finished = pass_bytes, progress, finished
        self._shares_prompts = shares_prompts
        self._prefixes: dict[tuple[int, tuple[int, ...]], tuple[RowCache, int]] = {}
        self._done, self._tokens = 0.0, 0
        progress("completions", 0, len(drafts))

    def complete(self, groups: Sequence[Group], max_rows: int) -> None:
        """Write the completions of these groups, in their order as rows become free. No group is larger than `max_rows`."""
        waiting, rows = deque(groups), _Rows()
        total = sum(len(group.places) for group in groups)
        count = min(max_rows, total)
        if self._shares_prompts and pays([len(group.places) for group in groups]):
            prompts = SharedPrompts(min(count, len(groups)), max(len(group.prompt_ids) for group in groups))
            cache = RowCache(count, max(group.positions - len(group.prompt_ids) for group in groups))
        else:
            prompts, cache = None, RowCache(count, max(group.positions for group in groups))
        while True:
            alive_B = np.array([not self._drafts[place].finished for place in rows.places_B], bool)
            new = self._next(waiting, cache.rows, cache.rows - int(alive_B.sum()))
            if new:
                rows = self._admit(new, rows, np.flatnonzero(alive_B), cache, prompts)
                needed = {group.prefix for group in waiting}
                self._prefixes = {prefix: kept for prefix, kept in self._prefixes.items() if prefix in needed}
                continue
            if not alive_B.any():
                return
            if alive_B.mean() < _COMPACT_BELOW:
                rows = self._chosen(rows, np.flatnonzero(alive_B), cache, prompts)
                alive_B = np.ones(len(rows), bool)
            at_B = np.where(alive_B, cache.lengths_B, -1)
            logits_BV = self._forward(rows.tokens_B[:, None], at_B[:, None], rows.slots_B, cache, prompts=prompts)
            rows.tokens_B = self._sample(logits_BV, rows.places_B)

    def _next(self, waiting: deque[Group], rows: int, free: int) -> list[Group]:
        """Take the groups that are let in now: as many as fit, once enough rows are free."""
        new: list[Group] = []
        if free >= REFILL_AT * rows:
            while waiting and len(waiting[0].places) <= free:
                new.append(waiting.popleft())
                free -= len(new[-1].places)
        return new

    def _admit(self, groups: list[Group], rows: _Rows, kept: np.ndarray, cache: RowCache, shared: SharedPrompts | None) -> _Rows:
        """Read the prompts of new groups into the cache, next to the kept rows, and sample the first token of each new row.

        Where rows share prompts, these have a place of their own, and new rows begin empty.
        """
        new = [(group, place) for group in groups for place in group.places]
        slots_B = np.r_[rows.slots_B[kept], [group.slot for group, _ in new]].astype(np.int64)
        order = np.argsort(slots_B, kind="stable")  # the order of the stack
        cache.arrange(np.r_[kept, np.full(len(new), -1)].astype(np.int64)[order])
        merged = _Rows(
            slots_B[order],
            np.r_[rows.places_B[kept], [place for _, place in new]].astype(np.int64)[order],
            np.r_[rows.tokens_B[kept], np.zeros(len(new))].astype(np.int64)[order],
        )
        row_of = {place: row for row, place in enumerate(merged.places_B.tolist())}
        of_B = np.r_[shared.keep(kept) if shared else kept, np.zeros(len(new))].astype(np.int64)[order]
        first = shared.add(len(groups)) if shared else 0
        self._share(groups)
        self._progress("prompts", 0, len(groups))
        read = 0
        for part, length, positions in self._prompt_passes(groups):
            logits_UV, prompts = self._read(part, length, positions)
            read += len(part)
            self._progress("prompts", read, len(groups))
            sizes = [len(group.places) for group in part]
            own = np.array([row_of[place] for group in part for place in group.places])
            source = np.repeat(np.arange(len(part)), sizes)
            if shared:
                shared.fill(first, prompts)
                of_B[own] = first + source
                first += len(part)
            else:
                cache.fill(own, prompts, source)
            merged.tokens_B[own] = self._sample(logits_UV.index_select(0, self._tensor(source)), merged.places_B[own])
        if shared:
            shared.continued_by(of_B, self._model.dtype)
        return merged

    def _chosen(self, rows: _Rows, kept: np.ndarray, cache: RowCache, shared: SharedPrompts | None) -> _Rows:
        """Return these rows only, and drop the others from the cache."""
        cache.arrange(kept)
        if shared:
            shared.continued_by(shared.keep(kept), self._model.dtype)
        return _Rows(rows.slots_B[kept], rows.places_B[kept], rows.tokens_B[kept])

    def _share(self, groups: Sequence[Group]) -> None:
        """Compute the shared beginnings that these groups need for the first time."""
        missing = {group.prefix: group for group in groups if group.shared and group.prefix not in self._prefixes}
        for part in self._passes([*missing.values()], [group.shared for group in missing.values()]):
            cache = RowCache(len(part), max(group.shared for group in part))
            cache.lengths_B = np.zeros(len(part), np.int64)
            self._append([group.prompt_ids[: group.shared] for group in part], part, cache, cache.positions, head=False)
            self._prefixes |= {group.prefix: (cache, row) for row, group in enumerate(part)}

    def _prompt_passes(self, groups: Sequence[Group]) -> Iterator[tuple[list[Group], int, int]]:
        """Yield groups, the new tokens to which their prompts are padded, and the positions of their cache.

        A CPU reads a large pass in parts, so that it holds the activations and the cache of few prompts at once. They are
        padded as the whole pass, so that each prompt's arithmetic stays the same.
        """
        for whole in self._passes(groups, [len(group.prompt_ids) - group.shared for group in groups]):
            length = max(len(group.prompt_ids) - group.shared for group in whole)
            positions = max(len(group.prompt_ids) for group in whole)
            count = min(len(whole), -(-len(whole) * length // PART_TOKENS)) if self._device.type == "cpu" else 1
            bounds = [len(whole) * part // count for part in range(count + 1)]
            yield from ((whole[start:stop], length, positions) for start, stop in pairwise(bounds))

    def _read(self, groups: Sequence[Group], length: int, positions: int) -> tuple[torch.Tensor, RowCache]:
        """Return the logits after each prompt, and the prompts' cache. See `_prompt_passes`."""
        prompts = RowCache(len(groups), positions)
        prompts.lengths_B = np.zeros(len(groups), np.int64)
        for shared, members in groupby(range(len(groups)), key=lambda row: bool(groups[row].shared) and groups[row].prefix):
            if shared:
                rows, (source, row) = np.array([*members]), self._prefixes[shared]
                prompts.fill(rows, source, np.full(len(rows), row))
        return self._append([group.prompt_ids[group.shared :] for group in groups], groups, prompts, length), prompts

    def _append(
        self, parts: Sequence[tuple[int, ...]], groups: Sequence[Group], cache: RowCache, length: int, head: bool = True
    ) -> torch.Tensor:
        """Append tokens to the cache's rows, padded on the left to `length`, and return what `_forward` returns.

        Attention sees all positions of the cache.
        """
        ids_BS, at_BS = np.zeros((len(parts), length), np.int64), np.full((len(parts), length), -1)
        for row, part in enumerate(parts):
            ids_BS[row, length - len(part) :] = part
            at_BS[row, length - len(part) :] = cache.lengths_B[row] + np.arange(len(part))
        return self._forward(ids_BS, at_BS, np.array([group.slot for group in groups]), cache, cache.positions, head)

    def _passes(self, groups: Sequence[Group], lengths: Sequence[int]) -> Iterator[list[Group]]:
        """Yield groups of similar length whose pass stays within the limits, each pass in the order of the stack.

        The activations of all prompts together may exceed the machine's memory.
        """
        config = self._model.config
        width = int(getattr(config, "intermediate_size", 4 * config.hidden_size))
        tokens = self._pass_bytes // (width * self._model.dtype.itemsize)
        if self._device.type == "cpu":
            tokens = min(tokens, int(CPU_PASS / (2 * sum(parameter.numel() for parameter in self._model.parameters()))))
        part: list[int] = []
        held = 0  # tokens of the part without padding
        for index in sorted(range(len(groups)), key=lambda index: lengths[index]):
            filled = len(part) * lengths[index]
            if part and (filled + lengths[index] > tokens or filled - held > max(PADDING, filled // PADDING_SHARE)):
                yield _by_prefix(groups[member] for member in part)
                part, held = [], 0
            part.append(index)
            held += lengths[index]
        if part:
            yield _by_prefix(groups[member] for member in part)

    def _forward(
        self,
        ids_BS: np.ndarray,
        at_BS: np.ndarray,
        slots_B: np.ndarray,
        cache: RowCache,
        seen: int | None = None,
        head: bool = True,
        prompts: SharedPrompts | None = None,
    ) -> torch.Tensor:
        """Compute new tokens at these positions of their rows (-1: padding). Return the logits after each row's last token.

        Attention sees `seen` positions, by default those up to the last of the new tokens. Without `head`, only the cache is
        filled, and hidden states are returned. Rows that continue one of `prompts` count their positions from its end on.
        """
        stop, positions_BS = cache.reserve(at_BS, self._device, seen), self._tensor(np.maximum(at_BS, 0))
        hidden_BSK = torch.arange(stop, device=self._device) > positions_BS[:, :, None]
        mask = torch.zeros(len(ids_BS), 1, ids_BS.shape[1], stop, dtype=self._model.dtype, device=self._device)
        mask.masked_fill_(hidden_BSK[:, None], torch.finfo(mask.dtype).min)
        inputs = {"attention_mask": mask, "position_ids": positions_BS, "past_key_values": cache, "use_cache": True}
        if prompts is not None:
            inputs |= {"position_ids": positions_BS + self._tensor(prompts.lengths_B)[:, None], "prompts": prompts}
        counts_N = np.bincount(slots_B, minlength=self._lora.num_adapters).tolist()
        with self._lora.routed(counts_N):
            if not head:
                states: torch.Tensor = self._model.base_model(self._tensor(ids_BS), **inputs).last_hidden_state
            else:
                # an index copies the last positions; for a slice torch makes a batched product with one copy of the head per row
                last = self._tensor([ids_BS.shape[1] - 1])
                states = self._model(self._tensor(ids_BS), logits_to_keep=last, **inputs).logits[:, -1]
        cache.lengths_B = cache.lengths_B + (at_BS >= 0).sum(1)
        return states

    def _sample(self, logits_BV: torch.Tensor, places_B: np.ndarray) -> np.ndarray:
        """Sample one token per row and write it to the unfinished drafts."""
        places = places_B.tolist()
        drafts = [self._drafts[place] for place in places]
        uniforms_B = torch.tensor([draft.uniform for draft in drafts], dtype=torch.float64, device=self._device)
        size = max(1, self._pass_bytes // (logits_BV.shape[1] * sampling.BYTES))
        pairs = zip(logits_BV.split(size), uniforms_B.split(size), strict=True)
        pieces = [sampling.draw(logits, uniforms, self._temperature) for logits, uniforms in pairs]
        tokens_B, logprobs_B = (torch.cat(parts).tolist() for parts in zip(*pieces, strict=True))
        for place, draft, token, logprob in zip(places, drafts, tokens_B, logprobs_B, strict=True):
            if not draft.finished:
                draft.token_ids.append(token)
                draft.logprobs.append(logprob)
                draft.ended = self._ends(draft)
                self._count(draft)
                if draft.finished:
                    self._finished(place)
        self._progress("completions", self._done, len(self._drafts), self._tokens)
        return np.array(tokens_B, np.int64)

    def _count(self, draft: Draft) -> None:
        """Count one more token of the draft; an unfinished completion counts by the share of its limit."""
        written = len(draft.token_ids)
        self._done += 1 - (written - 1) / draft.limit if draft.finished else 1 / draft.limit
        self._tokens += 1

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), device=self._device)


def _by_prefix(groups: Iterator[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group.slot, group.prefix))
