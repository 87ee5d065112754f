"""A user message in the chat template of a model's own tokenizer."""

from collections.abc import Callable
from typing import Any

DAY = "26 Jul 2024"
"""What templates show as the date of today (Llama 3's own default): prompts must be the same on every day."""


def has_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer has a chat template, which marks an instruct model."""
    return bool(tokenizer.chat_template)


def templated(tokenizer: Any) -> Callable[[str], str]:
    """Return a function that puts a user message into the template, up to where the answer begins, on any day the same.

    The text is for an `encode` that adds markers. Raise ValueError if the tokenizer has no template.
    """
    if not has_template(tokenizer):
        raise ValueError("the tokenizer has no chat template")
    first = tokenizer.encode("")[:1]
    marker = tokenizer.bos_token if first and first == [tokenizer.bos_token_id] else ""  # `encode` prepends it to every text

    def put(said: str) -> str:
        messages = [{"role": "user", "content": said}]
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, date_string=DAY, strftime_now=lambda _: DAY
        )
        return text.removeprefix(marker)

    return put
