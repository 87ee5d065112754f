"""Rows of the task buffer: what a prompt shows of one, and when two are equal. `stages.core.earlier_tasks` holds the buffer."""

import json
from collections.abc import Sequence
from hashlib import blake2b

from stages.core.prompts.styles import Triplet
from stages.core.values.canonical import respelled_arguments


def triplet(row: dict) -> Triplet:
    """Return the part of a stored deduction or abduction task that a prompt shows."""
    return Triplet(row["program"], row["inputs"][0], row["outputs"][0])


def task_key(kind: str, program_key: str, inputs: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Return the key by which two tasks are the same: kind, normalised program, and inputs, however they are spelled."""
    return kind, program_key, tuple(map(respelled_arguments, inputs))


def task_digest(kind: str, program_key: str, inputs: Sequence[str]) -> str:
    """Return the same key as 32 hexadecimal digits, whatever the task's length."""
    kind, program_key, texts = task_key(kind, program_key, inputs)
    return blake2b(json.dumps([kind, program_key, *texts]).encode(), digest_size=16).hexdigest()
