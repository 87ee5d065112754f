"""The worked questions of docs/storage.md run, in pyarrow and (where it is installed) in DuckDB, and agree."""

import re
from pathlib import Path
from typing import Any

import pytest

from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run

PAGE = (Path(__file__).parents[2] / "docs" / "storage.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/quickstart` in it."""
    made = tmp_path_factory.mktemp("project")
    store = open_store(str(made / "runs"))
    with hold(store, "quickstart") as epoch:
        example_run.build(Run(store, "quickstart", epoch), 2)
    return made


@pytest.fixture
def answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), names)
    return names


def test_the_questions_have_answers(answers: dict[str, Any]) -> None:
    assert answers["answer_1"] == {0: 0.7, 1: 0.7}
    pushes = answers["answer_2"]
    assert pushes[0][1].startswith("g0001-") and pushes[0][0] > 0
    assert sum(answers["answer_3"].values()) == 26
    assert ("t0-g0000", "s0-g0000") in answers["answer_3"]


def test_sql_says_the_same(answers: dict[str, Any]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed; the same questions ran in pyarrow")
    queries = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    first, second, third = (duckdb.sql(query).fetchall() for query in queries)
    assert {generation: pytest.approx(share) for generation, share in first} == answers["answer_1"]
    assert [(pytest.approx(push), name) for name, push in second] == answers["answer_2"]
    assert {(teacher, student): count for teacher, student, count in third} == answers["answer_3"]
