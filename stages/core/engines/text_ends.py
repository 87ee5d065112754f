"""The tokens that end a completion, the same in every engine."""

from collections.abc import Mapping
from typing import Any

DOCUMENT_END = "<|endoftext|>"


def text_ends(generation: Mapping[str, Any], tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a text: those of the model's generation settings, the tokenizer's own, and `<|endoftext|>`.

    The instruct models of some families (Qwen, SmolLM) end a turn with a token of their own and need not list the one that
    separates documents. Continuing a document they write it, and then another document.
    """
    listed = generation.get("eos_token_id")
    ends = set(listed if isinstance(listed, list) else [listed])
    return frozenset(ends | {tokenizer.eos_token_id, tokenizer.get_added_vocab().get(DOCUMENT_END)}) - {None}
