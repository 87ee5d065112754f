"""Prompts as text: token ids decoded with the tokenizer of the run's base model, if it is on this machine."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from flows.config import PROJECT


def prompt_text(model: str, ids: Sequence[int]) -> str | None:
    """Return the text, including special tokens; None if the model's folder is not on this machine."""
    tokenizer = _tokenizer(model)
    return None if tokenizer is None else str(tokenizer.decode(list(ids), skip_special_tokens=False))


@lru_cache(maxsize=8)
def _tokenizer(model: str) -> Tokenizer | None:
    path = PROJECT / Path(model) / "tokenizer.json"
    if "\0" in model or not path.is_file():
        return None
    return Tokenizer.from_file(str(path))
