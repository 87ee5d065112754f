"""Curricula: weights by hand, and weights that cannot be drawn from."""

import re
from collections.abc import Mapping

import pytest

from stages.core.method.curriculum import Cell, Record, shares, success_variance, uniform
from stages.core.prompts.styles import Kind

EASY, FAIR, HARD, NEW = (Cell(Kind.DEDUCTION, depth) for depth in (1, 3, 7, 9))
RECORDS = {EASY: Record(98, 98), FAIR: Record(6, 3), HARD: Record(18, 0), NEW: Record()}


def test_success_variance_is_p_times_one_minus_p_of_the_mean_under_a_uniform_prior() -> None:
    assert success_variance(RECORDS) == {
        EASY: pytest.approx(0.99 * 0.01),
        FAIR: 0.25,
        HARD: pytest.approx(0.05 * 0.95),
        NEW: 0.25,
    }


def test_uniform_looks_at_nothing() -> None:
    assert shares(uniform, RECORDS) == [0.25] * 4


def test_shares_are_weights_over_their_sum_and_a_cell_without_a_weight_is_not_drawn() -> None:
    assert shares(lambda records: {FAIR: 3, NEW: 1.0}, RECORDS) == [0.0, 0.75, 0.0, 0.25]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({}, "not all zero"),
        ({FAIR: 0.0}, "not all zero"),
        ({FAIR: 1.0, HARD: -0.5}, "not negative"),
        ({FAIR: float("nan")}, "finite"),
        ({FAIR: float("inf")}, "finite"),
        ({Cell(Kind.DEDUCTION, 99): 1.0}, "which is not among the cells"),
    ],
)
def test_weights_that_cannot_be_drawn_from_are_refused(weights: Mapping[Cell, float], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        shares(lambda records: weights, RECORDS)
