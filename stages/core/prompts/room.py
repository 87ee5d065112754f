"""Room: whether a task can be posed and answered in the tokens that there are, and in none that steer the model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stages.core.prompts.styles import Kind, PromptStyle, solver_prompt

Check = Callable[[str], bool]
TOO_LONG, CONTROL_TOKEN = "too_long", "control_token"
UNPOSED = (TOO_LONG, CONTROL_TOKEN)
"""Statuses of tasks that are valid but cannot be posed: they have outputs, and count as invalid."""


def posed(style: PromptStyle, row: Mapping[str, Any]) -> str:
    """Return the student's prompt of a row of TASKS or SEEDS."""
    return solver_prompt(style, Kind(row["kind"]), row["program"], row["inputs"], row["outputs"], row["message"])


def too_long(style: PromptStyle, row: Mapping[str, Any], fits: Check, answerable: Check | None = None) -> str:
    """Return why a valid task is too long to be posed, or nothing.

    `fits` returns whether a prompt leaves room for an answer, `answerable` whether an answer's limit has room for a text. Only a
    deduction has one right answer: abductions and inductions have others than the teacher's, which may be shorter.
    """
    if not fits(posed(style, row)):
        return "the student's prompt leaves no room for an answer"
    if answerable is not None and row["kind"] == Kind.DEDUCTION and not answerable(row["outputs"][0]):
        return "the output is longer than an answer may be"
    return ""


def control_token(row: Mapping[str, Any], markers: Sequence[str]) -> str:
    """Return which of the tokenizer's control tokens a valid task writes out, or nothing.

    In a prompt, the tokenizer would make a control token of such a text: a teacher could end the student's text, or open another
    turn of the conversation.
    """
    texts = (row["program"], *row["inputs"], *row["outputs"], row["message"])
    found = next((marker for marker in markers if any(marker in text for text in texts)), "")
    return f"it writes out {found!r}, a control token of the model" if found else ""


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that a tokenizer reads as control tokens: its own, and those that the model adds.

    Some models add tokens such as `<|file_sep|>` that are not marked as special, and are read as tokens all the same.
    """
    added = (
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.special or (token.content.startswith("<|") and token.content.endswith("|>"))
    )
    return tuple(sorted(text for text in {*tokenizer.all_special_tokens, *added} if text.strip()))
