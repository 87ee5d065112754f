"""The transformers engine: completions from many adapters in one batch, on CPU or CUDA, bitwise reproducible on a CPU.

Requests that share an adapter and a prompt form a group: the prompt is computed once. On a CPU, the rows of a group also read its
keys and values together (see shared_prompts); elsewhere, and where prompts have few rows, they are copied to each row. The tokens
that prompts of one adapter begin with, such as the instructions of a kind, are computed once as well (see prefixes). Finished
rows leave the batch, and waiting groups take their places. Rows follow the order of the adapter stack (see grouped_lora).
Sampling inverts the cumulative distribution with uniforms drawn beforehand from the request's own seed, at the given temperature
without truncation (top_p 1, top_k off), so a draw depends on nothing else in the batch.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from stages.core.engines.decoding import PASS_BYTES, REFILL_AT, Decoder, Draft, Group
from stages.core.engines.precision import compute_dtype
from stages.core.engines.prefixes import shared_prefixes
from stages.core.engines.protocol import Completion, Ended, EngineUnavailable, Request
from stages.core.engines.shared_prompts import can_share
from stages.core.engines.text_ends import ends_with_stop, text_ends
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import parameter_shapes
from stages.core.progress import Progress, silent
from stages.core.training.attention_kernels import avoid_cudnn
from stages.core.training.grouped_lora import GroupedLoRA

_SPREAD = 2.0  # rows of one batch have equally long buffers: at most this many times what the shortest needs


def load_model(path_or_name: str, device: str = "auto", dtype: str = "bfloat16") -> nn.Module:
    """Load a causal language model in eval mode. `auto` takes the first GPU. The type is `compute_dtype`'s."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    avoid_cudnn()
    if torch.device(device).type == "cuda":
        _grow_segments()
    logging.disable_progress_bar()  # a run shows its own progress bars
    chosen = getattr(torch, compute_dtype(device, dtype))
    model = AutoModelForCausalLM.from_pretrained(
        path_or_name, dtype=chosen, attn_implementation="sdpa", use_safetensors=True, trust_remote_code=False
    )
    loaded: nn.Module = model.to(device).eval()
    return loaded


def _grow_segments() -> None:
    """Let torch grow the segments of GPU memory that it reserves, unless the user has set how it allocates.

    Passes differ a little in size, and the first one leaves gradients between freed activations: fixed segments would hold far
    more than is in use. Only this process: in the environment, the setting would reach vLLM, which has its own.
    """
    if not (os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def load_tokenizer(path_or_name: str) -> Any:
    """Load the model's tokenizer."""
    return AutoTokenizer.from_pretrained(path_or_name, trust_remote_code=False)


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
        window: int = 0,
    ) -> None:
        """Serve `adapters`. `window` bounds a prompt and its completion, in tokens; 0 is the model's own limit."""
        self._lora, self._tokenizer, self._batch_tokens, self._pass_bytes = lora, tokenizer, batch_tokens, pass_bytes
        self._progress = progress
        model: Any = lora.model
        self._model, own = model, int(model.config.max_position_embeddings)
        self._window = min(window or own, own)
        self._ends = text_ends(model.generation_config.to_dict() if model.generation_config else {}, tokenizer)
        shapes = parameter_shapes(lora.shapes(), lora.rank)
        self._base: Weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._lora.load([self._base])
        with torch.inference_mode(), self._lora.rounded():
            self._shares_prompts = can_share(self._lora)
        self.set_adapters(adapters)

    def set_adapters(self, adapters: Mapping[str, Weights]) -> None:
        """Serve exactly these adapters from now on."""
        self._adapters = dict(adapters)
        self._slots = {adapter_id: slot for slot, adapter_id in enumerate(self._adapters)}

    @property
    def window(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return self._window

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

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        """Return completions in the order of the requests; a completion also ends at the end of the window.

        At temperature 0 the likeliest token is taken and log-probabilities are those at temperature 1. Raise ValueError for
        an unknown adapter or an empty or too long prompt, `EngineUnavailable` if the device is out of memory.
        """
        if not requests:
            return []
        drafts = [self._draft(request) for request in requests]

        def finished(place: int) -> None:
            if ended is not None:
                ended(place, _completion(drafts[place]))

        stack = [*self._adapters.values()]
        if any(request.adapter_id is None for request in requests):
            stack.append(self._base)  # the last row is the base model alone
        try:
            self._lora.load(stack)
            self._lora.pack()
            with torch.inference_mode(), self._lora.rounded():
                rest = self._pass_bytes, self._progress, finished, self._shares_prompts
                decoder = Decoder(self._lora, drafts, temperature, self._ended, *rest)
                for pool, rows in self._pools(self._groups(requests, drafts)):
                    decoder.complete(pool, rows)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):  # CPU wording
                raise
            raise EngineUnavailable(f"out of memory; lower engine.batch_tokens ({self._batch_tokens})") from error
        return [_completion(draft) for draft in drafts]

    def _draft(self, request: Request) -> Draft:
        room = self.window - len(request.prompt_ids)
        if not request.prompt_ids or room < 1 or request.max_new_tokens < 1:
            raise ValueError(
                f"prompt of {len(request.prompt_ids)} tokens, window {self.window}, {request.max_new_tokens} to write"
            )
        if request.adapter_id is not None and request.adapter_id not in self._slots:
            raise ValueError(f"adapter {request.adapter_id!r} is not loaded; there are {sorted(self._slots)}")
        limit = min(request.max_new_tokens, room)
        return Draft(limit, np.random.default_rng(request.seed).random(limit), request.stops)

    def _groups(self, requests: Sequence[Request], drafts: Sequence[Draft]) -> list[Group]:
        """Return the requests by stack row and prompt."""
        places: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for place, request in enumerate(requests):
            slot = len(self._slots) if request.adapter_id is None else self._slots[request.adapter_id]
            places.setdefault((slot, tuple(request.prompt_ids)), []).append(place)
        return [
            Group(slot, prompt_ids, tuple(members), len(prompt_ids) + max(drafts[place].limit for place in members))
            for (slot, prompt_ids), members in places.items()
        ]

    def _pools(self, groups: Sequence[Group]) -> Iterator[tuple[list[Group], int]]:
        """Yield groups of similar length, in the order in which they are decoded, with the number of rows that they may use.

        Rows times positions stay within the budget, except that there is always one row.
        """
        pool: list[Group] = []
        for group in sorted(groups, key=lambda group: (group.positions, group.slot, group.prompt_ids)):
            rows = sum(len(member.places) for member in [*pool, group])
            if pool and rows * group.positions > self._batch_tokens and group.positions > _SPREAD * pool[0].positions:
                yield self._cut(pool)
                pool = []
            pool.append(group)
        if pool:
            yield self._cut(pool)

    def _cut(self, pool: Sequence[Group]) -> tuple[list[Group], int]:
        """Cut groups that are too large to find room beside others, and order all by adapter and shared beginning."""
        rows, total = max(1, self._batch_tokens // pool[-1].positions), sum(len(group.places) for group in pool)
        size = rows if total <= rows else max(1, int(rows * REFILL_AT))
        groups = [
            replace(group, places=group.places[start : start + size])
            for group in pool
            for start in range(0, len(group.places), size)
        ]
        found = []
        for slot in sorted({group.slot for group in groups}):
            own = [group for group in groups if group.slot == slot]
            lengths = shared_prefixes([group.prompt_ids for group in own])
            found += [replace(group, shared=shared) for group, shared in zip(own, lengths, strict=True)]
        return sorted(found, key=lambda group: (group.prefix, group.prompt_ids, group.places)), rows

    def _ended(self, draft: Draft) -> bool:
        """Return whether the last token is an end token or completes a stop sequence."""
        return draft.token_ids[-1] in self._ends or ends_with_stop(draft.token_ids, draft.stops, self.decode)


def _completion(draft: Draft) -> Completion:
    return Completion(tuple(draft.token_ids), tuple(draft.logprobs), not draft.ended)
