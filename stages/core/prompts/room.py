"""Room: whether a task can be posed and answered in the tokens that there are."""

from collections.abc import Callable, Mapping
from typing import Any

from stages.core.prompts.styles import Kind, PromptStyle, solver_prompt

Check = Callable[[str], bool]


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
