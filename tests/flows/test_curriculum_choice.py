"""A curriculum from a file: the one of the configuration `reasoner`."""

import pytest

from flows.backend import Backend
from flows.choices import choose
from flows.config import ConfigError, load
from stages.core.method.curriculum import CURRICULA, Cell, Record
from stages.core.prompts.styles import Kind


def test_the_reasoner_is_given_deductions_whose_depth_it_solves_half_of_the_time() -> None:
    curriculum = choose("propose.curriculum", load("reasoner").propose.curriculum, CURRICULA)
    records = {
        Cell(Kind.DEDUCTION, 1): Record(98, 98),
        Cell(Kind.DEDUCTION, 6): Record(98, 49),
        Cell(Kind.DEDUCTION, 9): Record(98, 0),
        Cell(Kind.ABDUCTION, 6): Record(98, 49),
        Cell(Kind.INDUCTION, 1): Record(),
    }
    assert curriculum(records) == {
        Cell(Kind.DEDUCTION, 1): 0.99 * (1 - 0.99),
        Cell(Kind.DEDUCTION, 6): 0.25,
        Cell(Kind.DEDUCTION, 9): 0.01 * 0.99,
    }


def test_a_curriculum_that_weighs_none_of_the_run_s_kinds_is_refused_before_the_run() -> None:
    backend = Backend(load("reasoner", ["propose.kinds=['abduction']"]))
    with pytest.raises(ConfigError, match=r"propose\.curriculum and propose\.kinds \(abduction\): a curriculum's weights"):
        backend.check()
