"""A user message in the chat template of a model's own tokenizer."""

from collections.abc import Callable
from typing import Any


def has_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer has a chat template, which marks an instruct model."""
    return bool(tokenizer.chat_template)


def templated(tokenizer: Any) -> Callable[[str], str]:
    """Return a function that puts a user message into the template, up to where the answer begins.

    The text is for an `encode` that adds markers. Raise ValueError if the tokenizer has no template.
    """
    if not has_template(tokenizer):
        raise ValueError("the tokenizer has no chat template")
    first = tokenizer.encode("")[:1]
    marker = tokenizer.bos_token if first and first == [tokenizer.bos_token_id] else ""  # `encode` prepends it to every text

    def put(said: str) -> str:
        messages = [{"role": "user", "content": said}]
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text.removeprefix(marker)

    return put
