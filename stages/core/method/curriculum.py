"""Curricula: of which kinds and depths the generator of graded programs draws the tasks of a run without teachers.

A cell is a kind and a depth. A curriculum is one function: from the record of each cell in the last `RECENT` generations to the
cells' weights, in proportion to which cells are drawn. A run may name its own.

Source of `success_variance`: Sampling for Learnability (Rutherford et al. 2024, arXiv 2408.15099), which trains on the problems
of largest p (1 - p), p being the share of the learner's attempts that are correct. With c correct of n attempts in a cell,

    weight = p (1 - p)    with    p = (c + 1) / (n + 2),

the mean of p under a uniform prior. A cell without attempts has p = 1/2, hence the largest weight: it is tried, and again once
its attempts are older than the record. Deviations: cells instead of single problems, drawn in proportion instead of the best few;
p comes from the attempts of all students that are made anyway, so measuring it costs no tokens.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stages.core.prompts.styles import Kind

RECENT = 10
"""Generations that a record covers. Older attempts were made by weaker students."""


class Cell(NamedTuple):
    """Tasks of one kind whose programs have `depth` dependent steps."""

    kind: Kind
    depth: int


@dataclass(frozen=True)
class Record:
    """Graded attempts at the tasks of a cell, and how many were correct."""

    attempts: int = 0
    correct: int = 0


Curriculum = Callable[[Mapping[Cell, Record]], Mapping[Cell, float]]
"""The record of every cell of the run's kinds -> weights that are not negative; a cell without a weight is not drawn."""


def uniform(records: Mapping[Cell, Record]) -> dict[Cell, float]:
    """Return equal weights."""
    return dict.fromkeys(records, 1.0)


def success_variance(records: Mapping[Cell, Record]) -> dict[Cell, float]:
    """Return p (1 - p) of each cell, with p = (correct + 1) / (attempts + 2)."""
    chances = {cell: (one.correct + 1) / (one.attempts + 2) for cell, one in records.items()}
    return {cell: chance * (1 - chance) for cell, chance in chances.items()}


CURRICULA: dict[str, Curriculum] = {"uniform": uniform, "success_variance": success_variance}


def shares(curriculum: Curriculum, records: Mapping[Cell, Record]) -> list[float]:
    """Return the chance of each cell, in the order of `records`. Raise ValueError for weights that cannot be drawn from."""
    weights = curriculum(records)
    own = [float(weights.get(cell, 0.0)) for cell in records]
    total = math.fsum(own)
    if unknown := set(weights) - set(records):
        raise ValueError(f"the curriculum weighs {sorted(unknown)}, which is not among the cells")
    if min(own) < 0 or not math.isfinite(total) or total <= 0:
        raise ValueError(f"a curriculum's weights must be finite, not negative and not all zero: {own}")
    return [weight / total for weight in own]
