"""Which stored tasks a teacher's prompt may show: all of them, or those that are neither too easy nor too hard by now.

A teacher writes programs like those that it is shown, so what is shown sets how hard its tasks are before any reward does.
Absolute Zero Reasoner and PopuLoRA draw references uniformly from the buffer. Deviation (off): recent tasks with mixed results.
While students get better, other and harder tasks have mixed results, and prompts show those.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from stages.core.prompts.styles import Kind

Rows = TypeVar("Rows", bound=Sequence[dict])


def mixed_references(buffer: Mapping[Kind, Rows], mixed: Mapping[Kind, Rows], references: int) -> dict[Kind, Rows]:
    """Return for each kind the rows of `mixed`, or those of `buffer` where there are fewer than a prompt shows."""
    return {kind: mixed[kind] if len(mixed[kind]) >= max(1, references) else rows for kind, rows in buffer.items()}
