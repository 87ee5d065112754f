"""A curriculum of deductions alone: depths are drawn in proportion to p (1 - p), other kinds not at all."""

from collections.abc import Mapping

from stages.core.method.curriculum import Cell, Record, success_variance
from stages.core.prompts.styles import Kind


def by_success_variance(records: Mapping[Cell, Record]) -> dict[Cell, float]:
    """Return p (1 - p) of each depth of deductions (stages.core.method.curriculum)."""
    return {cell: weight for cell, weight in success_variance(records).items() if cell.kind is Kind.DEDUCTION}
