"""The transformers engine: completions from many adapters in one batch, on CPU or CUDA, bitwise reproducible on a CPU.

A batch holds whole groups of requests that share an adapter and a prompt: the prompt is computed once, and its cache is expanded
to the group's rows. Rows follow the order of the adapter stack (see grouped_lora); prompts are padded on the left. Finished rows
leave the batch. Sampling inverts the cumulative distribution with uniforms drawn beforehand from the request's own seed, at the
given temperature without truncation (top_p 1, top_k off), so a draw depends on nothing else in the batch.

Axes: U distinct prompts · B rows · K cache positions · V vocabulary.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

from stages.core.engines.protocol import Completion, EngineUnavailable, Request
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import parameter_shapes
from stages.core.progress import Progress, silent
from stages.core.training.grouped_lora import GroupedLoRA

PASS_BYTES = 2**29  # limit for the widest activations while prompts are read, and for the distributions sampled from at once
CPU_PASS = 2e12  # floating-point operations of one pass over prompts on a CPU: a few seconds, so that progress is visible
_DRAW_BYTES = 32  # per entry of a distribution: two float32 and three float64 at the peak
_COMPACT_BELOW = 0.8  # drop finished rows when fewer than this share are unfinished: moving the cache costs about one step


def load_model(path_or_name: str, device: str = "auto", dtype: str = "bfloat16") -> nn.Module:
    """Load a causal language model in eval mode. `auto` takes the first GPU. bfloat16 checkpoints compute in float32 on a CPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and dtype == "bfloat16":
        dtype = "float32"
    logging.disable_progress_bar()  # a run shows its own progress bars
    model = AutoModelForCausalLM.from_pretrained(path_or_name, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    loaded: nn.Module = model.to(device).eval()
    return loaded


def load_tokenizer(path_or_name: str) -> Any:
    """Load the model's tokenizer."""
    return AutoTokenizer.from_pretrained(path_or_name)


@dataclass(frozen=True)
class _Group:
    """Requests (by index in the call) that share an adapter's stack row and a prompt."""

    slot: int
    prompt_ids: tuple[int, ...]
    places: tuple[int, ...]
    positions: int  # cache positions that the longest of them may need


@dataclass
class _Draft:
    """A completion in progress."""

    limit: int
    uniforms: np.ndarray
    stops: tuple[str, ...] = ()
    stopped: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class _Tally:
    """Count of completions written (an unfinished one by the share of its limit) and of their tokens."""

    completions: float = 0.0
    tokens: int = 0

    def add(self, draft: _Draft, finished: bool) -> None:
        """Count one more token of the draft."""
        written = len(draft.token_ids)
        self.completions += 1 - (written - 1) / draft.limit if finished else 1 / draft.limit
        self.tokens += 1


class _RowCache:
    """Keys and values of every layer in buffers allocated once, [B, heads, K, width]; `length` positions are filled."""

    def __init__(self, rows: int, positions: int) -> None:
        self.rows, self.positions, self.length = rows, positions, 0
        self.buffers: list[tuple[torch.Tensor, ...]] = []

    def fill(self, prompts: DynamicCache, start: int, prompts_B: torch.Tensor) -> None:
        """Fill the rows from `start` on with the prompts that `prompts_B` names."""
        self.length = prompts.layers[0].keys.shape[2]
        self.buffers = self.buffers or [
            tuple(self._empty(states) for states in (layer.keys, layer.values)) for layer in prompts.layers
        ]
        for pair, layer in zip(self.buffers, prompts.layers, strict=True):
            for buffer, states in zip(pair, (layer.keys, layer.values), strict=True):
                buffer[start : start + len(prompts_B), :, : self.length] = states.index_select(0, prompts_B)

    def _empty(self, states: torch.Tensor) -> torch.Tensor:
        return states.new_empty(self.rows, states.shape[1], self.positions, states.shape[3])

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append one position and return all filled positions. Called by the model's attention."""
        stop = self.length + 1
        for buffer, states in zip(self.buffers[layer], (keys, values), strict=True):
            buffer[:, :, self.length : stop] = states
        own_keys, own_values = self.buffers[layer]
        return own_keys[:, :, :stop], own_values[:, :, :stop]

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows except these."""
        for pair in self.buffers:
            for buffer in pair:
                buffer[: len(rows), :, : self.length] = buffer[:, :, : self.length].index_select(0, rows)
        self.buffers = [tuple(buffer[: len(rows)] for buffer in pair) for pair in self.buffers]


class HFEngine:
    """Implements `Engine` on grouped LoRA layers. The model stays loaded; `set_adapters` exchanges adapters."""

    def __init__(
        self,
        lora: GroupedLoRA,
        tokenizer: Any,
        adapters: Mapping[str, Weights],
        batch_tokens: int = 65536,
        progress: Progress = silent,
        pass_bytes: int = PASS_BYTES,
    ) -> None:
        self._lora, self._tokenizer, self._batch_tokens, self._pass_bytes = lora, tokenizer, batch_tokens, pass_bytes
        self._progress = progress
        model: Any = lora.model
        self._model, self._device = model, next(model.parameters()).device
        self._size = sum(parameter.numel() for parameter in model.parameters())
        self._width = int(getattr(model.config, "intermediate_size", 4 * model.config.hidden_size))
        ends = getattr(model.generation_config, "eos_token_id", None)
        self._ends = frozenset(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
        shapes = parameter_shapes(lora.shapes(), lora.rank)
        self._base: Weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self.set_adapters(adapters)

    def set_adapters(self, adapters: Mapping[str, Weights]) -> None:
        """Serve exactly these adapters from now on."""
        self._adapters = dict(adapters)
        self._slots = {adapter_id: slot for slot, adapter_id in enumerate(self._adapters)}

    @property
    def window(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return int(self._model.config.max_position_embeddings)

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a completion."""
        return self._ends

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt, including the tokenizer's prefix of every text (such as Llama's begin marker)."""
        return list(self._tokenizer.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion, markers spelled out, without the end-of-sequence token."""
        kept = [token for token in token_ids if token not in self._ends]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Return completions in the order of the requests; a completion also ends at the end of the window.

        At temperature 0 the likeliest token is taken and log-probabilities are those at temperature 1. Raise ValueError for
        an unknown adapter or an empty or too long prompt, `EngineUnavailable` if the device is out of memory.
        """
        if not requests:
            return []
        drafts, self._tally = [self._draft(request) for request in requests], _Tally()
        self._progress("completions", 0, len(drafts))
        stack = [*self._adapters.values()]
        if any(request.adapter_id is None for request in requests):
            stack.append(self._base)  # the last row is the base model alone
        try:
            self._lora.load(stack)
            with torch.inference_mode():
                for batch in self._batches(requests, drafts):
                    self._complete(batch, drafts, temperature)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):  # CPU wording
                raise
            raise EngineUnavailable(f"out of memory; lower engine.batch_tokens ({self._batch_tokens})") from error
        return [
            Completion(tuple(draft.token_ids), tuple(draft.logprobs), not draft.stopped and draft.token_ids[-1] not in self._ends)
            for draft in drafts
        ]

    def _draft(self, request: Request) -> _Draft:
        room = self.window - len(request.prompt_ids)
        if not request.prompt_ids or room < 1 or request.max_new_tokens < 1:
            raise ValueError(
                f"prompt of {len(request.prompt_ids)} tokens, window {self.window}, {request.max_new_tokens} to write"
            )
        if request.adapter_id is not None and request.adapter_id not in self._slots:
            raise ValueError(f"adapter {request.adapter_id!r} is not loaded; there are {sorted(self._slots)}")
        limit = min(request.max_new_tokens, room)
        return _Draft(limit, np.random.default_rng(request.seed).random(limit), request.stops)

    def _batches(self, requests: Sequence[Request], drafts: Sequence[_Draft]) -> Iterable[list[_Group]]:
        """Yield groups sorted by length, cut so that rows times cache positions stay within budget; each batch by stack row."""
        groups = sorted(self._groups(requests, drafts), key=lambda group: (len(group.prompt_ids), group.positions))
        batch: list[_Group] = []
        for group in groups:
            rows = sum(len(member.places) for member in batch) + len(group.places)
            positions = max(member.positions for member in [*batch, group])
            if batch and rows * positions > self._batch_tokens:
                yield sorted(batch, key=lambda member: member.slot)
                batch = []
            batch.append(group)
        if batch:
            yield sorted(batch, key=lambda member: member.slot)

    def _groups(self, requests: Sequence[Request], drafts: Sequence[_Draft]) -> Iterable[_Group]:
        places: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for place, request in enumerate(requests):
            slot = len(self._slots) if request.adapter_id is None else self._slots[request.adapter_id]
            places.setdefault((slot, tuple(request.prompt_ids)), []).append(place)
        for (slot, prompt_ids), members in places.items():
            positions = len(prompt_ids) + max(drafts[place].limit for place in members)
            size = max(1, self._batch_tokens // positions)  # a single group may exceed the budget
            for start in range(0, len(members), size):
                yield _Group(slot, prompt_ids, tuple(members[start : start + size]), positions)

    def _complete(self, batch: list[_Group], drafts: list[_Draft], temperature: float) -> None:
        """Write the completions of one batch into their drafts."""
        rows_B = np.repeat(np.arange(len(batch)), [len(group.places) for group in batch])
        slots_B, places_B = np.array([batch[row].slot for row in rows_B]), np.concatenate([group.places for group in batch])
        lengths_B = self._tensor([len(batch[row].prompt_ids) for row in rows_B])
        longest = max(drafts[place].limit for place in places_B)
        logits_UV, cache = self._prefill(batch, rows_B, longest)
        padding_B, logits_BV = cache.length - lengths_B, logits_UV.index_select(0, self._tensor(rows_B))
        for _ in range(longest):
            tokens_B = self._sample(logits_BV, places_B, drafts, temperature)
            alive_B = np.array([not self._finished(drafts[place]) for place in places_B])
            if not alive_B.any():
                return
            if alive_B.mean() < _COMPACT_BELOW:
                keep = np.flatnonzero(alive_B)
                rows = self._tensor(keep)
                cache.keep(rows)
                tokens_B, padding_B = tokens_B[rows], padding_B[rows]
                slots_B, places_B = slots_B[keep], places_B[keep]
            logits_BV = self._step(tokens_B, slots_B, padding_B, cache)

    def _prefill(self, batch: list[_Group], rows_B: np.ndarray, room: int) -> tuple[torch.Tensor, _RowCache]:
        """Return the logits after each prompt, and every row's cache with `room` positions more than the longest prompt.

        Prompts are read in several passes: the activations of all prompts together may exceed the machine's memory.
        """
        longest = max(len(group.prompt_ids) for group in batch)
        cache = _RowCache(len(rows_B), longest + room)
        size = max(1, self._pass_bytes // (longest * self._width * self._model.dtype.itemsize))
        if self._device.type == "cpu":
            size = max(1, min(size, int(CPU_PASS / (2 * self._size * longest))))
        logits = []
        for start in range(0, len(batch), size):
            self._progress("prompts", start, len(batch))
            part = batch[start : start + size]
            part_logits_UV, prompts = self._read(part, longest)
            own = np.flatnonzero((rows_B >= start) & (rows_B < start + len(part)))
            cache.fill(prompts, int(own[0]), self._tensor(rows_B[own] - start))
            logits.append(part_logits_UV)
        self._progress("prompts", len(batch), len(batch))
        return torch.cat(logits), cache

    def _read(self, groups: list[_Group], length: int) -> tuple[torch.Tensor, DynamicCache]:
        """Return the logits after each prompt, and the prompts' cache; prompts are padded on the left to `length`."""
        ids, mask = np.zeros((len(groups), length), np.int64), np.zeros((len(groups), length), np.int64)
        for row, group in enumerate(groups):
            ids[row, length - len(group.prompt_ids) :] = group.prompt_ids
            mask[row, length - len(group.prompt_ids) :] = 1
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        cache = DynamicCache()
        with self._lora.routed(self._counts(np.array([group.slot for group in groups]))):
            out = self._model(
                self._tensor(ids),
                attention_mask=self._tensor(mask),
                position_ids=self._tensor(positions),
                past_key_values=cache,
                use_cache=True,
                # an index copies the last positions; for a slice torch makes a batched product with one copy of the head per row
                logits_to_keep=self._tensor([length - 1]),
            )
        return out.logits[:, -1], cache

    def _step(self, tokens_B: torch.Tensor, slots_B: np.ndarray, padding_B: torch.Tensor, cache: _RowCache) -> torch.Tensor:
        """Return the logits after one more token of every row."""
        seen_K = torch.arange(cache.length + 1, device=self._device)
        mask = torch.zeros(len(tokens_B), 1, 1, cache.length + 1, dtype=self._model.dtype, device=self._device)
        mask.masked_fill_((seen_K < padding_B[:, None])[:, None, None], torch.finfo(mask.dtype).min)
        with self._lora.routed(self._counts(slots_B)):
            out = self._model(
                tokens_B[:, None],
                attention_mask=mask,
                position_ids=(cache.length - padding_B)[:, None],
                past_key_values=cache,
                use_cache=True,
            )
        cache.length += 1
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def _sample(self, logits_BV: torch.Tensor, places_B: np.ndarray, drafts: list[_Draft], temperature: float) -> torch.Tensor:
        """Sample one token per row and write it to the unfinished drafts."""
        uniforms_B = self._tensor([drafts[at].uniforms[min(len(drafts[at].token_ids), drafts[at].limit - 1)] for at in places_B])
        size = max(1, self._pass_bytes // (logits_BV.shape[1] * _DRAW_BYTES))
        pieces = [_draw(*pair, temperature) for pair in zip(logits_BV.split(size), uniforms_B.split(size), strict=True)]
        tokens_B, logprobs_B = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        for place, token, logprob in zip(places_B, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            if not self._finished(drafts[place]):
                drafts[place].token_ids.append(token)
                drafts[place].logprobs.append(logprob)
                drafts[place].stopped = self._stops(drafts[place])
                self._tally.add(drafts[place], self._finished(drafts[place]))
        self._progress("completions", self._tally.completions, len(drafts), self._tally.tokens)
        return tokens_B

    def _stops(self, draft: _Draft) -> bool:
        """Return whether the text now contains a stop sequence. The last tokens decide: each is at least one byte of text."""
        if not draft.stops:
            return False
        tail = draft.token_ids[-max(len(stop.encode()) for stop in draft.stops) - 1 :]
        text = self.decode(tail)
        return any(stop in text for stop in draft.stops)

    def _finished(self, draft: _Draft) -> bool:
        ended = bool(draft.token_ids) and draft.token_ids[-1] in self._ends
        return draft.stopped or ended or len(draft.token_ids) == draft.limit

    def _counts(self, slots_B: np.ndarray) -> list[int]:
        return [int(count) for count in np.bincount(slots_B, minlength=self._lora.num_adapters)]

    def _tensor(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), device=self._device)


def _draw(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one token per row with its log-probability: the first whose cumulative probability exceeds the uniform."""
    logprobs_BV = (logits_BV.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        tokens_B = logprobs_BV.argmax(-1)
    else:
        cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
        targets_B = uniforms_B * cumulative_BV[:, -1]
        # right=True skips tokens of probability zero
        tokens_B = torch.searchsorted(cumulative_BV, targets_B[:, None], right=True)[:, 0].clamp(max=logits_BV.shape[1] - 1)
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
