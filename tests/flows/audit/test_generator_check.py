"""The generator's draws are repeated from earlier tables; what differs is found, and what cannot be known is not reported."""

import pyarrow as pa
import pytest

from flows.audit.generator_check import GeneratorCheck, RecentGrades
from flows.config import load
from stages.core import tables
from stages.core.method.curriculum import RECENT, success_variance
from stages.core.seed_model.programs import ProgramKeys
from stages.generate import generate, records_of
from tests.stages.test_generate import met

CONFIG = load("smoke", ["population.teachers=0", "propose.curriculum=success_variance"])
NOTHING = ProgramKeys(frozenset(), frozenset())


@pytest.fixture(scope="module")
def proposals() -> pa.Table:
    return generate(met(), records_of([]), success_variance, 12, CONFIG.propose.num_inputs, NOTHING, CONFIG.seed, 0)


def problems(found: pa.Table, recent: list | None) -> list[tuple[str, str]]:
    return list(GeneratorCheck(lambda config: NOTHING).problems({"matches": met(), "proposals": found}, CONFIG, recent, 0))


def test_a_draw_is_repeated(proposals: pa.Table) -> None:
    assert problems(proposals, []) == []
    other = [row | {"program": row["program"].replace("def f(", "def f( ")} for row in proposals.to_pylist()]
    said = [("proposals", "they are not what the generator draws from the earlier grades")]
    assert problems(tables.table(other, tables.PROPOSALS), []) == said
    assert problems(proposals.slice(1), []) == said


def test_nothing_is_said_without_the_earlier_tables_or_in_a_run_with_teachers(proposals: pa.Table) -> None:
    assert problems(proposals.slice(1), None) == []
    found = {"matches": met(), "proposals": proposals.slice(1)}
    assert list(GeneratorCheck(lambda config: NOTHING).problems(found, load("smoke"), [], 0)) == []


def test_what_could_not_be_read_is_forgotten_after_as_many_generations_as_matter() -> None:
    recent, whole = RecentGrades(), {"tasks": tables.TASKS.empty_table(), "grades": tables.GRADES.empty_table()}
    assert recent.tables() == []
    recent.add(whole)
    recent.add({"tasks": whole["tasks"]})
    assert recent.tables() is None
    for _ in range(RECENT):
        recent.add(whole)
    found = recent.tables()
    assert found is not None and len(found) == RECENT
