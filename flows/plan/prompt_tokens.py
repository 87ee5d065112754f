"""Usual lengths of prompts, by style: what the plan computes with."""

from flows.config import RunConfig

PROMPTS = {"compact": (100, 60), "trace": (110, 60), "document": (700, 200), "chat": (600, 350), "azr": (1200, 700)}
"""Tokens of a teacher's and of a student's prompt, by style."""


def prompt_tokens(config: RunConfig) -> tuple[int, int]:
    """Return the tokens of a teacher's and of a student's prompt; those of `document` where the style is not known yet."""
    return PROMPTS.get(config.model.style, PROMPTS["document"])
