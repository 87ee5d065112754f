"""A curriculum of deductions alone, all depths evenly: the counterpart of deductions.py that does not look at what succeeds."""

from collections.abc import Mapping

from stages.core.method.curriculum import Cell, Record
from stages.core.prompts.styles import Kind


def evenly(records: Mapping[Cell, Record]) -> dict[Cell, float]:
    """Return equal weights of all depths of deductions (stages.core.method.curriculum)."""
    return {cell: 1.0 for cell in records if cell.kind is Kind.DEDUCTION}
