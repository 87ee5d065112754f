"""What ends a completion: tokens, the same in every engine, and stop sequences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

DOCUMENT_END = "<|endoftext|>"
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
"""Tokens with which the templates of families of models end a turn. Base models that carry a template may not list theirs."""
UNDECODABLE = "\ufffd"
"""What tokenizers write where bytes are no text."""


def text_ends(generation: Mapping[str, Any], tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a text: of the model's generation settings, the tokenizer's own, of documents and of turns.

    The instruct models of some families (Qwen, SmolLM) end a turn with a token of their own and need not list the one that
    separates documents. Continuing a document they write it, and then another document.
    """
    listed = generation.get("eos_token_id")
    ends, added = set(listed if isinstance(listed, list) else [listed]), tokenizer.get_added_vocab()
    return frozenset(ends | {tokenizer.eos_token_id, *map(added.get, (DOCUMENT_END, *TURN_ENDS))}) - {None}


def ends_with_stop(token_ids: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> bool:
    """Return whether the last token completes one of the stop sequences. The tokens before it completed none."""
    if not stops:
        return False
    text = decode(token_ids[-max(len(stop.encode()) for stop in stops) - 1 :])  # each token is at least one byte of text
    if UNDECODABLE in text:  # these tokens may begin inside a character, which can hide those behind it
        text = decode(token_ids)
    return any(stop in text for stop in stops)
