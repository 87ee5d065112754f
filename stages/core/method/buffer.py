"""Rows of the task buffer: what a prompt shows of one, and when two are equal. `stages.core.earlier_tasks` holds the buffer."""

from collections.abc import Sequence

from stages.core.prompts.styles import Triplet


def triplet(row: dict) -> Triplet:
    """Return the part of a stored deduction or abduction task that a prompt shows."""
    return Triplet(row["program"], row["inputs"][0], row["outputs"][0])


def task_key(kind: str, program_key: str, inputs: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Return the key by which two tasks are the same: kind, normalised program, and inputs."""
    return kind, program_key, tuple(text.strip() for text in inputs)
